#include <rcverbs/failure.hpp>
#include <rcverbs/open_domain.hpp>

#include "cm/device_list.hpp"
#include "cm/id.hpp"
#include "connection/connection_services.hpp"
#include "verbs/domain.hpp"
#include "error/detailed_error.hpp"

namespace rcverbs {

namespace {

using any_runs_on = runs_on<boost::asio::any_io_executor>;

cm::event_channel& channel_of(any_runs_on const& where) {
    return detail::connection_services::of(detail::access::place_of(where).executor).channel();
}

protection_domain shared_domain(
    cm::event_channel& channel, verbs::device_context const& device, error_code& ec
) {
    if (ec) return {};
    std::shared_ptr<verbs::domain> found = channel.shared_domain(device, ec);
    return ec ? protection_domain{} : detail::access::make<protection_domain>(std::move(found));
}

}  // namespace

protection_domain open_domain(any_runs_on const& where, endpoint const& local, error_code& ec) {
    cm::event_channel& channel = channel_of(where);
    std::unique_ptr<cm::id> const id = channel.make_id(ec);
    if (!ec) ec = id->bind(local);
    if (!ec && id->device() == nullptr) ec = errc::no_rdma_device;
    if (ec) return {};
    verbs::device_context const found = cm::keep_open(id->device(), ec);
    return shared_domain(channel, found, ec);
}

protection_domain open_domain(any_runs_on const& where, endpoint const& local) {
    error_code ec;
    protection_domain found = open_domain(where, local, ec);
    if (ec) throw detail::detailed_error{ec, failure{step::open, ec, local, 0}.message()};
    return found;
}

protection_domain detail::open_domain_of(
    any_runs_on const& where, std::string const& device, error_code& ec
) {
    cm::event_channel& channel = channel_of(where);
    verbs::device_context const found = cm::find_device(device, ec);
    return shared_domain(channel, found, ec);
}

}  // namespace rcverbs
