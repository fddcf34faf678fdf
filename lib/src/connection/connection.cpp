#include <rcverbs/connection.hpp>

#include "connection/core.hpp"
#include "connection/leaked_resources.hpp"
#include "error/detailed_error.hpp"

namespace rcverbs::detail {

error_code refusal_code(connection_core const& core, errc why) noexcept {
    return why == errc::not_connected ? core.why_not_connected() : error_code{why};
}

boost::asio::any_io_executor const& executor_of(connection_core const& core) noexcept {
    return core.executor();
}

failure last_failure_of(connection_core const& core) { return core.last_failure(); }

void post_refusal(connection_core const& core, handler_source const& source, errc why) {
    auto op = refused_operation(core.executor(), source, refusal_code(core, why));
    if (op != nullptr) core.order()->call([op = std::move(op)] { complete_refused(*op); });
}

namespace {

std::shared_ptr<connection_core> make_for_request(
    place const& where,
    connection_request const& request,
    connection_options options,
    error_code& ec
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

// Starts a request without a handler.
error_code start_silently(
    std::shared_ptr<connection_core> const& core, work_request const& what
) noexcept {
    errc const refusal = start_operation(core, {&what, 1}, turn::now, {});
    return to_code(*core, refusal);
}

}  // namespace

}  // namespace rcverbs::detail

namespace rcverbs {

connection_base::connection_base(detail::place const& where, connection_options options)
    : core_{detail::connection_core::make(where, std::move(options))} {}

connection_base::connection_base(
    detail::place const& where,
    connection_request request,
    connection_options options,
    error_code& ec
)
    : core_{detail::make_for_request(where, request, std::move(options), ec)} {}

connection_base::connection_base(
    detail::place const& where, connection_request request, connection_options options
) {
    error_code ec;
    core_ = detail::make_for_request(where, request, std::move(options), ec);
    if (ec) throw boost::system::system_error{ec, "connection"};
}

connection_base& connection_base::operator=(connection_base&& other) noexcept {
    if (this == &other) return *this;
    close();
    core_ = std::move(other.core_);
    return *this;
}

error_code connection_base::try_start(op::write_t const& what) {
    return detail::start_silently(core_, detail::access::request_of(what));
}
error_code connection_base::try_start(op::send_t const& what) {
    return detail::start_silently(core_, detail::access::request_of(what));
}

void connection_base::close() noexcept {
    if (core_ != nullptr) core_->close();
}
void connection_base::close(error_code violation) noexcept {
    if (core_ != nullptr) core_->close_for(violation);
}
void connection_base::cancel() {
    if (core_ != nullptr) core_->cancel_waiting();
}
void connection_base::set_keepalive_interval(
    std::optional<std::chrono::milliseconds> interval, error_code& ec
) noexcept {
    bool const is_right = !interval || interval->count() > 0;
    ec = is_right ? error_code{} : error_code{errc::invalid_option};
    if (is_right) core_->set_keepalive_interval(interval);
}
void connection_base::set_keepalive_interval(std::optional<std::chrono::milliseconds> interval) {
    error_code ec;
    set_keepalive_interval(interval, ec);
    detail::throw_if(ec, "set_keepalive_interval");
}
std::optional<std::chrono::milliseconds> connection_base::keepalive_interval() const {
    return core_->keepalive_interval();
}
void connection_base::reject(std::span<std::byte const> private_data, error_code& ec) {
    ec = core_->reject(private_data);
}
void connection_base::reject(std::span<std::byte const> private_data) {
    error_code ec;
    reject(private_data, ec);
    detail::throw_if(ec, "reject");
}
queue_pair_address connection_base::prepare(
    std::string const& device, std::optional<std::uint8_t> gid_index, error_code& ec
) {
    return core_->prepare(device, {.index = gid_index}, ec);
}
queue_pair_address connection_base::prepare(
    std::string const& device, std::optional<std::uint8_t> gid_index
) {
    error_code ec;
    queue_pair_address const made = prepare(device, gid_index, ec);
    detail::throw_if(ec, "prepare");
    return made;
}
queue_pair_address connection_base::prepare_for(
    std::string const& device, queue_pair_address const& peer, error_code& ec
) {
    return core_->prepare(device, {.peer = peer.gid}, ec);
}
queue_pair_address connection_base::prepare_for(
    std::string const& device, queue_pair_address const& peer
) {
    error_code ec;
    queue_pair_address const made = prepare_for(device, peer, ec);
    detail::throw_if(ec, "prepare_for");
    return made;
}
void connection_base::establish(queue_pair_address const& peer, error_code& ec) {
    ec = core_->establish(peer);
}
void connection_base::establish(queue_pair_address const& peer) {
    error_code ec;
    establish(peer, ec);
    detail::throw_if(ec, "establish");
}
void connection_base::set_remote_access(access_flags rights, error_code& ec) {
    ec = core_->set_remote_access(rights);
}
void connection_base::set_remote_access(access_flags rights) {
    error_code ec;
    set_remote_access(rights, ec);
    detail::throw_if(ec, "set_remote_access");
}
bool connection_base::is_open() const noexcept { return core_ != nullptr && core_->is_open(); }
protection_domain connection_base::domain() const { return core_->domain(); }
connection_limits connection_base::limits() const { return core_->limits(); }
endpoint connection_base::remote_endpoint() const { return core_->peer(); }
endpoint connection_base::local_endpoint() const { return core_->local(); }
std::vector<std::byte> connection_base::private_data() const { return core_->private_data(); }
failure connection_base::last_failure() const { return core_->last_failure(); }
connection_statistics connection_base::statistics() const { return core_->statistics(); }
std::uint32_t connection_base::queue_pair_number() const { return core_->queue_pair_number(); }
ibv_qp* connection_base::native_handle() const { return core_->native_queue_pair(); }
std::size_t connection_base::leaked_count() noexcept { return detail::leaked_count(); }

void connection_base::start_resolve(
    detail::connection_core& c, endpoint const& peer, detail::control_handler handler
) {
    c.start_resolve(peer, false, std::move(handler));
}
void connection_base::start_establish(
    detail::connection_core& c,
    std::span<std::byte const> private_data,
    detail::control_handler handler
) {
    c.start_establish(private_data, std::move(handler));
}
void connection_base::start_connect(
    detail::connection_core& c, endpoint const& peer, detail::control_handler handler
) {
    c.start_resolve(peer, true, std::move(handler));
}
void connection_base::start_accept(
    detail::connection_core& c,
    std::span<std::byte const> private_data,
    detail::control_handler handler
) {
    c.start_accept(private_data, std::move(handler));
}
void connection_base::start_disconnect(
    detail::connection_core& c, detail::control_handler handler
) {
    c.start_disconnect(std::move(handler));
}
void connection_base::start_wait(detail::connection_core& c, detail::control_handler handler) {
    c.start_wait(std::move(handler));
}

}  // namespace rcverbs
