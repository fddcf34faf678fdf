#include "connection/registry.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

namespace rcverbs::detail {

boost::asio::execution_context::id registry::id;

namespace {

// Makes the timer service exist, so that it is older than the registry and shut down after it.
boost::asio::io_context& with_timers(boost::asio::execution_context& context) {
    auto& io = static_cast<boost::asio::io_context&>(context);  // asio::use_service was given one
    boost::asio::steady_timer const probe{io};
    return io;
}

}  // namespace

registry::registry(boost::asio::execution_context& context)
    : boost::asio::execution_context::service{context},
      threads_{boost::asio::use_service<progress::thread_owner>(with_timers(context))},
      channel_{boost::asio::use_service<cm::event_channel>(context)},
      descriptors_{boost::asio::use_service<progress::descriptor_set>(context)} {}

void registry::add(std::shared_ptr<registered> const& member) {
    std::lock_guard const lock{mutex_};
    members_.emplace(member.get(), member);
}

void registry::remove(registered const* member) noexcept {
    std::lock_guard const lock{mutex_};
    members_.erase(member);
}

void registry::shutdown() noexcept {
    threads_.stop_all();
    for (;;) {
        std::shared_ptr<registered> member;
        {
            std::lock_guard const lock{mutex_};
            if (members_.empty()) break;
            member = members_.begin()->second.lock();
            members_.erase(members_.begin());
        }
        if (member != nullptr) member->shut_down();
    }
    threads_.drop_handlers();
}

}  // namespace rcverbs::detail
