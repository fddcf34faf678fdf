#include <rcverbs/error.hpp>

#include <string>

#include "error/descriptions.hpp"

namespace rcverbs {

namespace {

// The text of a code; `unknown` for a number outside the enumeration.
template <class Code>
std::string message_of(Code e, std::string const& unknown) {
    detail::description const known = detail::describe(e);
    return known.what != nullptr ? known.text() : unknown;
}

namespace conditions = boost::system::errc;

conditions::errc_t meaning(errc e) noexcept {
    switch (e) {
    case errc::not_connected: return conditions::not_connected;
    case errc::already_connected: return conditions::already_connected;
    case errc::operation_in_progress: return conditions::operation_in_progress;
    case errc::queue_full: return conditions::no_buffer_space;
    case errc::timed_out:
    case errc::stalled:
    case errc::idle: return conditions::timed_out;
    case errc::out_of_range:
    case errc::misaligned:
    case errc::invalid_option:
    case errc::foreign_domain:
    case errc::receives_are_shared: return conditions::invalid_argument;
    case errc::access_denied: return conditions::permission_denied;
    case errc::atomics_unsupported:
    case errc::read_depth_zero:
    case errc::invalidate_unsupported: return conditions::operation_not_supported;
    case errc::message_too_large:
    case errc::private_data_too_large: return conditions::message_size;
    case errc::too_many_segments: return conditions::argument_list_too_long;
    case errc::region_gone: return conditions::bad_address;
    case errc::would_block: return conditions::operation_would_block;
    case errc::peer_disconnected:
    case errc::peer_closed_early: return conditions::connection_reset;
    case errc::foreign_peer:
    case errc::version_mismatch:
    case errc::mode_mismatch:
    case errc::unexpected_message:
    case errc::peer_violation: return conditions::protocol_error;
    case errc::malformed_message: return conditions::bad_message;
    case errc::peer_busy: return conditions::device_or_resource_busy;
    case errc::no_rdma_device:
    case errc::device_removed: return conditions::no_such_device;
    case errc::completion_queue_broken:
    case errc::not_drained:
    case errc::queue_pair_failed: return conditions::io_error;
    case errc::port_down: return conditions::network_down;
    case errc::address_gone: return conditions::address_not_available;
    case errc::address_family_unsupported: return conditions::address_family_not_supported;
    case errc::pool_exhausted: return conditions::not_enough_memory;
    case errc::windows_unsupported:
    case errc::dmabuf_unsupported:
    case errc::on_demand_paging_unsupported: return conditions::operation_not_supported;
    case errc::window_bound: return conditions::device_or_resource_busy;
    case errc::window_unbound:
    case errc::foreign_window: return conditions::invalid_argument;
    case errc::message_declined:
    case errc::message_withdrawn:
    case errc::request_dropped: return conditions::operation_canceled;
    }
    return conditions::io_error;
}

conditions::errc_t meaning(wc_errc e) noexcept {
    switch (e) {
    case wc_errc::local_length: return conditions::message_size;
    case wc_errc::flushed: return conditions::operation_canceled;
    case wc_errc::local_protection:
    case wc_errc::local_access:
    case wc_errc::remote_access: return conditions::permission_denied;
    case wc_errc::retry_exceeded:
    case wc_errc::response_timeout: return conditions::timed_out;
    case wc_errc::rnr_retry_exceeded: return conditions::no_buffer_space;
    case wc_errc::remote_aborted: return conditions::connection_aborted;
    default: return conditions::io_error;
    }
}

conditions::errc_t meaning(cm_errc e) noexcept {
    switch (e) {
    case cm_errc::address_error:
    case cm_errc::unreachable: return conditions::host_unreachable;
    case cm_errc::route_error: return conditions::network_unreachable;
    case cm_errc::connect_error: return conditions::io_error;
    case cm_errc::disconnected: return conditions::connection_reset;
    case cm_errc::device_removal: return conditions::no_such_device;
    case cm_errc::address_change: return conditions::address_not_available;
    default: return conditions::connection_refused;
    }
}

class rcverbs_errors final : public boost::system::error_category {
public:
    char const* name() const noexcept override { return "rcverbs"; }
    std::string message(int value) const override {
        return message_of(static_cast<errc>(value), "unknown error");
    }
    boost::system::error_condition default_error_condition(int value) const noexcept override {
        return conditions::make_error_condition(meaning(static_cast<errc>(value)));
    }
};

class completion_errors final : public boost::system::error_category {
public:
    char const* name() const noexcept override { return "rcverbs.work_completion"; }
    std::string message(int value) const override {
        return message_of(static_cast<wc_errc>(value), "unknown completion status");
    }
    boost::system::error_condition default_error_condition(int value) const noexcept override {
        return conditions::make_error_condition(meaning(static_cast<wc_errc>(value)));
    }
};

class manager_errors final : public boost::system::error_category {
public:
    char const* name() const noexcept override { return "rcverbs.connection_manager"; }
    std::string message(int value) const override {
        return message_of(
            static_cast<cm_errc>(value),
            value >= 1000 ? "rejected with reason " + std::to_string(value - 1000)
                          : "connection manager event " + std::to_string(value)
        );
    }
    boost::system::error_condition default_error_condition(int value) const noexcept override {
        return conditions::make_error_condition(meaning(static_cast<cm_errc>(value)));
    }
};

}  // namespace

boost::system::error_category const& rcverbs_category() noexcept {
    static rcverbs_errors const category;
    return category;
}

boost::system::error_category const& work_completion_category() noexcept {
    static completion_errors const category;
    return category;
}

boost::system::error_category const& connection_manager_category() noexcept {
    static manager_errors const category;
    return category;
}

bool is_transient(error_code const& ec) noexcept {
    if (!ec) return false;
    if (ec.category() == connection_manager_category()) return true;
    if (ec.category() == work_completion_category()) {
        switch (static_cast<wc_errc>(ec.value())) {
        case wc_errc::flushed:
        case wc_errc::remote_access:
        case wc_errc::retry_exceeded:
        case wc_errc::rnr_retry_exceeded:
        case wc_errc::remote_aborted:
        case wc_errc::fatal:
        case wc_errc::response_timeout:
        case wc_errc::general: return true;
        default: return false;  // the same request would fail again
        }
    }
    if (ec.category() == rcverbs_category()) {
        switch (static_cast<errc>(ec.value())) {
        case errc::timed_out:
        case errc::no_rdma_device:  // a device that is being reset has no addresses for a while
        case errc::peer_disconnected:
        case errc::peer_closed_early:
        case errc::peer_busy:
        case errc::device_removed:
        case errc::completion_queue_broken:
        case errc::queue_pair_failed:
        case errc::port_down:
        case errc::address_gone:
        case errc::stalled:
        case errc::idle: return true;
        default: return false;
        }
    }
    namespace e = boost::system::errc;
    return ec == e::timed_out || ec == e::network_unreachable || ec == e::host_unreachable ||
           ec == e::network_down || ec == e::connection_refused || ec == e::connection_reset ||
           ec == e::resource_unavailable_try_again || ec == e::not_enough_memory ||
           ec == e::too_many_files_open || ec == e::address_not_available;
}

bool is_fatal(error_code const& ec) noexcept {
    if (!ec) return false;
    if (ec.category() != rcverbs_category()) return true;
    switch (static_cast<errc>(ec.value())) {
    case errc::operation_in_progress:
    case errc::queue_full:
    case errc::out_of_range:
    case errc::access_denied:
    case errc::misaligned:
    case errc::atomics_unsupported:
    case errc::read_depth_zero:
    case errc::message_too_large:
    case errc::private_data_too_large:
    case errc::too_many_segments:
    case errc::region_gone:
    case errc::foreign_domain:
    case errc::would_block:
    case errc::receives_are_shared:
    case errc::invalidate_unsupported:
    case errc::pool_exhausted:
    case errc::windows_unsupported:
    case errc::window_bound:
    case errc::window_unbound:
    case errc::foreign_window:
    case errc::dmabuf_unsupported:
    case errc::on_demand_paging_unsupported:
    case errc::message_declined:
    case errc::message_withdrawn:
    case errc::request_dropped: return false;
    default: return true;
    }
}

}  // namespace rcverbs

extern "C" void RCVERBS_BOOST_SYMBOL(BOOST_VERSION)() noexcept {}  // its name is what it is for
