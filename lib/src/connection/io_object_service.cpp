#include "connection/io_object_service.hpp"

#include <boost/asio/steady_timer.hpp>

#include "progress/executors.hpp"

namespace rcverbs::detail {

boost::asio::execution_context::id io_object_service::id;

io_object_service::io_object_service(boost::asio::execution_context& context)
    : boost::asio::execution_context::service{context},
      channel_{boost::asio::use_service<cm::event_channel>(context)},
      descriptors_{boost::asio::use_service<progress::descriptor_set>(context)} {}

io_object_service& io_object_service::of(boost::asio::any_io_executor const& executor) {
    boost::asio::execution_context& context = progress::context_of(executor);
    if (!boost::asio::has_service<io_object_service>(context)) {
        // Creates the timer service first, so that it is older than the io_object_service and shut
        // down after it.
        boost::asio::steady_timer const probe{executor};
    }
    auto& found = boost::asio::use_service<io_object_service>(context);
    found.channel_.run_on(progress::at_large(executor));
    return found;
}

void io_object_service::add(std::shared_ptr<io_object> const& member, layer of) {
    std::lock_guard const lock{mutex_};
    members_.emplace(std::pair{of, member.get()}, member);
}

void io_object_service::remove(io_object const* member) noexcept {
    std::lock_guard const lock{mutex_};
    for (layer const of : {layer::above, layer::connections}) members_.erase({of, member});
}

void io_object_service::shutdown() noexcept {
    for (;;) {
        std::shared_ptr<io_object> member;
        {
            std::lock_guard const lock{mutex_};
            if (members_.empty()) break;
            member = members_.begin()->second.lock();
            members_.erase(members_.begin());
        }
        if (member != nullptr) member->shut_down();
    }
}

}  // namespace rcverbs::detail
