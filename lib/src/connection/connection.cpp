#include <rcverbs/connection.hpp>

#include "connection/core.hpp"
#include "connection/leaked_resources.hpp"

namespace rcverbs::detail {

error_code refusal_code(connection_core const& core, errc why) noexcept {
    return why == errc::not_connected ? core.why_not_connected() : error_code{why};
}

boost::asio::any_io_executor const& executor_of(connection_core const& core) noexcept {
    return core.executor();
}

void post_refusal(connection_core const& core, handler_source const& source, errc why) {
    post_refused_handler(core.executor(), source, refusal_code(core, why));
}

std::shared_ptr<connection_core> connection_calls::make(
    place const& where, connection_options options
) {
    return connection_core::make(where, std::move(options));
}

std::shared_ptr<connection_core> connection_calls::make(
    place const& where, connection_request request, connection_options options, error_code& ec
) {
    ec = validate(options);
    std::shared_ptr<waiting_request> const waiting = access::core_of(request);
    if (!ec && waiting == nullptr) ec = errc::not_connected;
    if (!ec && waiting->has_expired()) ec = errc::timed_out;
    if (!ec && waiting->is_withdrawn()) ec = errc::peer_disconnected;
    if (ec) return nullptr;
    auto made = connection_core::make_for_request(where, std::move(options), waiting->take(), ec);
    if (ec && made != nullptr) std::exchange(made, nullptr)->close();
    return made;
}

void connection_calls::close(core& c) noexcept { c.close(); }
void connection_calls::close(core& c, error_code violation) noexcept { c.close_for(violation); }
void connection_calls::cancel(core& c) { c.cancel_waiting(); }
void connection_calls::set_keepalive_interval(
    core& c, std::chrono::milliseconds interval
) noexcept {
    c.set_keepalive_interval(interval);
}
void connection_calls::start_resolve(core& c, endpoint const& peer, control_handler handler) {
    c.start_resolve(peer, false, std::move(handler));
}
void connection_calls::start_establish(
    core& c, std::span<std::byte const> private_data, control_handler handler
) {
    c.start_establish(private_data, std::move(handler));
}
void connection_calls::start_connect(core& c, endpoint const& peer, control_handler handler) {
    c.start_resolve(peer, true, std::move(handler));
}
void connection_calls::start_accept(
    core& c, std::span<std::byte const> private_data, control_handler handler
) {
    c.start_accept(private_data, std::move(handler));
}
void connection_calls::start_disconnect(core& c, control_handler handler) {
    c.start_disconnect(std::move(handler));
}
void connection_calls::start_wait(core& c, control_handler handler) {
    c.start_wait(std::move(handler));
}
error_code connection_calls::reject(core& c, std::span<std::byte const> private_data) {
    return c.reject(private_data);
}
queue_pair_address connection_calls::prepare(
    core& c, std::string const& device, std::optional<std::uint8_t> gid_index, error_code& ec
) {
    return c.prepare(device, gid_index, ec);
}
error_code connection_calls::establish(core& c, queue_pair_address const& peer) {
    return c.establish(peer);
}
error_code connection_calls::set_remote_access(core& c, access_flags rights) {
    return c.set_remote_access(rights);
}
bool connection_calls::is_open(core const& c) noexcept { return c.is_open(); }
protection_domain connection_calls::domain(core const& c) { return c.domain(); }
connection_limits connection_calls::limits(core const& c) { return c.limits(); }
endpoint connection_calls::remote_endpoint(core const& c) { return c.peer(); }
endpoint connection_calls::local_endpoint(core const& c) { return c.local(); }
std::vector<std::byte> connection_calls::private_data(core const& c) { return c.private_data(); }
close_reason connection_calls::reason(core const& c) { return c.reason(); }
failure connection_calls::last_failure(core const& c) { return c.last_failure(); }
connection_statistics connection_calls::statistics(core const& c) { return c.statistics(); }
std::uint32_t connection_calls::queue_pair_number(core const& c) { return c.queue_pair_number(); }
ibv_qp* connection_calls::native_handle(core const& c) { return c.native_queue_pair(); }
std::size_t connection_calls::leaked_count() noexcept { return detail::leaked_count(); }

}  // namespace rcverbs::detail
