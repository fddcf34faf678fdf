#include "progress/guests.hpp"

#include <utility>

namespace rcverbs::progress {

boost::asio::execution_context::id guests::id;

void guests::add(std::weak_ptr<guest> one) {
    std::lock_guard const lock{mutex_};
    if (all_.size() >= tidy_at_) {
        std::erase_if(all_, [](auto const& g) { return g.expired(); });
        tidy_at_ = 2 * all_.size() + 16;
    }
    all_.push_back(std::move(one));
}

void guests::shutdown() noexcept {
    std::vector<std::weak_ptr<guest>> all;
    {
        std::lock_guard const lock{mutex_};
        all.swap(all_);
    }
    for (auto const& g : all) {
        if (auto const alive = g.lock()) alive->host_is_going();
    }
}

}  // namespace rcverbs::progress
