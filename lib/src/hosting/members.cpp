#include "hosting/members.hpp"

#include <boost/asio/steady_timer.hpp>

#include <array>
#include <mutex>
#include <utility>

#include "hosting/executors.hpp"

namespace rcverbs::hosting {

boost::asio::execution_context::id members::id;

struct member_registry {
    explicit member_registry(boost::asio::execution_context const& c) : context{c} {}

    boost::asio::execution_context const& context;
    std::mutex mutex;
    std::array<membership*, 3> first{};
};

members::members(boost::asio::execution_context& context)
    : boost::asio::execution_context::service{context},
      registry_{std::make_shared<member_registry>(context)} {}

members::~members() = default;

members& members::of(boost::asio::any_io_executor const& executor) {
    boost::asio::execution_context& context = context_of(executor);
    if (!boost::asio::has_service<members>(context)) {
        // Creates the timer service first, so that it is older than this one and shut down after
        // it.
        boost::asio::steady_timer const probe{executor};
    }
    return boost::asio::use_service<members>(context);
}

void members::notify_all() noexcept {
    for (std::size_t i = 0; i < registry_->first.size();) {
        std::shared_ptr<member> who;
        {
            std::lock_guard const lock{registry_->mutex};
            membership* const m = registry_->first[i];
            if (m == nullptr) {
                ++i;
                continue;
            }
            who = m->who_.lock();
            registry_->first[i] = m->next_;
            if (m->next_ != nullptr) m->next_->back_ = &registry_->first[i];
            m->back_ = nullptr;
        }
        if (who == nullptr) continue;  // it is being destroyed
        who->context_is_going(registry_->context);
        i = 0;  // new members may have joined
    }
}

void membership::join(
    boost::asio::execution_context& context, std::weak_ptr<member> who, rank when
) {
    join(boost::asio::use_service<members>(context), std::move(who), when);
}

void membership::join(
    boost::asio::any_io_executor const& executor, std::weak_ptr<member> who, rank when
) {
    join(members::of(executor), std::move(who), when);
}

void membership::join(members& all, std::weak_ptr<member> who, rank when) {
    registry_ = all.registry_;
    who_ = std::move(who);
    membership*& first = registry_->first[static_cast<std::size_t>(when)];
    std::lock_guard const lock{registry_->mutex};
    next_ = first;
    if (next_ != nullptr) next_->back_ = &next_;
    first = this;
    back_ = &first;
}

bool membership::is_listed() const noexcept {
    if (registry_ == nullptr) return false;
    std::lock_guard const lock{registry_->mutex};
    return back_ != nullptr;
}

bool membership::is_of(boost::asio::execution_context const& context) const noexcept {
    return is_listed() && &registry_->context == &context;
}

void membership::leave() noexcept {
    if (registry_ == nullptr) return;
    std::lock_guard const lock{registry_->mutex};
    if (back_ == nullptr) return;
    *back_ = next_;
    if (next_ != nullptr) next_->back_ = back_;
    back_ = nullptr;
}

}  // namespace rcverbs::hosting
