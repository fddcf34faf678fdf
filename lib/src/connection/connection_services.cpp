#include "connection/connection_services.hpp"

#include "hosting/executors.hpp"

namespace rcverbs::detail {

boost::asio::execution_context::id connection_services::id;

connection_services::connection_services(boost::asio::execution_context& context)
    : boost::asio::execution_context::service{context},
      channel_{boost::asio::use_service<cm::event_channel>(context)},
      descriptors_{boost::asio::use_service<progress::descriptor_set>(context)} {}

connection_services& connection_services::of(boost::asio::any_io_executor const& executor) {
    auto& found = boost::asio::use_service<connection_services>(hosting::context_of(executor));
    found.channel_.run_on(hosting::at_large(executor));
    return found;
}

}  // namespace rcverbs::detail
