#include <rcverbs/connection.hpp>

#include "connection/core.hpp"
#include "connection/quarantine.hpp"

namespace rcverbs {

namespace detail {

boost::asio::any_io_executor executor_of(connection_core const& core) noexcept { return core.executor(); }

}  // namespace detail

connection::connection(boost::asio::io_context& context, connection_options options)
    : data_operations{detail::connection_core::make(context, std::move(options))} {}

connection& connection::operator=(connection&& other) noexcept {
    if (this != &other) {
        if (core_ != nullptr) core_->close();
        core_ = std::move(other.core_);
    }
    return *this;
}

connection::~connection() {
    if (core_ != nullptr) core_->close();
}

void connection::start_resolve(
    detail::connection_core& core, endpoint const& peer, detail::control_handler handler
) {
    core.start_resolve(peer, false, std::move(handler));
}

void connection::start_establish(
    detail::connection_core& core, std::span<std::byte const> private_data, detail::control_handler handler
) {
    core.start_establish(private_data, std::move(handler));
}

void connection::start_connect(
    detail::connection_core& core, endpoint const& peer, detail::control_handler handler
) {
    core.start_resolve(peer, true, std::move(handler));
}

void connection::start_accept(
    detail::connection_core& core, std::span<std::byte const> private_data, detail::control_handler handler
) {
    core.start_accept(private_data, std::move(handler));
}

void connection::start_disconnect(detail::connection_core& core, detail::control_handler handler) {
    core.start_disconnect(std::move(handler));
}

void connection::start_wait(detail::connection_core& core, detail::control_handler handler) {
    core.start_wait(std::move(handler));
}

queue_pair_address connection::prepare(std::string const& device, std::optional<std::uint8_t> gid_index, error_code& ec) {
    return core_->prepare(device, gid_index, ec);
}
error_code connection::establish(queue_pair_address const& peer) { return core_->establish(peer); }
error_code connection::set_remote_access(access_flags rights) { return core_->set_remote_access(rights); }
void connection::stop_keepalive() noexcept { core_->stop_keepalive(); }
error_code connection::reject(std::span<std::byte const> private_data) { return core_->reject(private_data); }
void connection::close(failure const& why, close_reason reason) noexcept {
    if (core_ != nullptr) core_->fail(why, reason);
}

void connection::close() noexcept {
    if (core_ != nullptr) core_->close();
}

bool connection::is_open() const noexcept { return core_ != nullptr && core_->is_open(); }
protection_domain connection::domain() const { return core_->domain(); }
connection_limits connection::limits() const { return core_->limits(); }
endpoint connection::peer() const { return core_->peer(); }
endpoint connection::local() const { return core_->local(); }
std::vector<std::byte> connection::private_data() const { return core_->private_data(); }
close_reason connection::reason() const { return core_->reason(); }
failure connection::last_failure() const { return core_->last_failure(); }
boost::asio::io_context& connection::context() const noexcept { return core_->context(); }
connection_statistics connection::statistics() const { return core_->statistics(); }
std::uint32_t connection::queue_pair_number() const { return core_->queue_pair_number(); }
ibv_qp* connection::native_handle() const { return core_->native_queue_pair(); }
std::size_t connection::quarantined_count() noexcept { return detail::quarantined_count(); }

}  // namespace rcverbs
