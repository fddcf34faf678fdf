#include "error/symbols.hpp"

#include <cstring>
#include <span>

#include "error/symbol_tables.hpp"

namespace rcverbs::detail {

namespace {

constexpr named ours[] = {
    {1, "errc::not_connected"},
    {2, "errc::already_connected"},
    {3, "errc::operation_in_progress"},
    {4, "errc::queue_full"},
    {5, "errc::timed_out"},
    {6, "errc::out_of_range"},
    {7, "errc::access_denied"},
    {8, "errc::misaligned"},
    {9, "errc::atomics_unsupported"},
    {10, "errc::read_depth_zero"},
    {11, "errc::message_too_large"},
    {12, "errc::private_data_too_large"},
    {13, "errc::invalid_option"},
    {14, "errc::no_rdma_device"},
    {15, "errc::too_many_segments"},
    {16, "errc::region_gone"},
    {17, "errc::foreign_domain"},
    {18, "errc::would_block"},
    {19, "errc::invalidate_unsupported"},
    {20, "errc::peer_disconnected"},
    {21, "errc::peer_closed_early"},
    {22, "errc::foreign_peer"},
    {23, "errc::version_mismatch"},
    {24, "errc::mode_mismatch"},
    {25, "errc::peer_busy"},
    {26, "errc::malformed_message"},
    {27, "errc::unexpected_message"},
    {28, "errc::device_removed"},
    {29, "errc::completion_queue_broken"},
    {30, "errc::not_drained"},
    {31, "errc::stalled"},
    {32, "errc::receives_are_shared"},
    {33, "errc::idle"},
    {34, "errc::queue_pair_failed"},
    {35, "errc::peer_violation"},
    {36, "errc::port_down"},
    {37, "errc::address_gone"},
    {38, "errc::address_family_unsupported"},
    {39, "errc::pool_exhausted"},
    {40, "errc::windows_unsupported"},
    {41, "errc::window_bound"},
    {42, "errc::window_unbound"},
    {43, "errc::dmabuf_unsupported"},
    {44, "errc::on_demand_paging_unsupported"},
    {45, "errc::message_declined"},
    {46, "errc::message_withdrawn"},
    {47, "errc::request_dropped"},
    {48, "errc::foreign_window"},
};

// Source: InfiniBand specification, table of rejection reasons.
constexpr named reasons[] = {
    {1, "no queue pair available"},
    {3, "no resources available"},
    {4, "timeout"},
    {5, "unsupported request"},
    {6, "invalid communication id"},
    {8, "invalid service id"},
    {9, "invalid service type"},
    {10, "stale connection"},
    {12, "invalid GID"},
    {13, "invalid LID"},
    {14, "invalid service level"},
    {15, "invalid traffic class"},
    {16, "invalid hop limit"},
    {17, "invalid packet rate"},
    {24, "port and CM redirection"},
    {25, "port redirection"},
    {26, "invalid path MTU"},
    {27, "insufficient responder resources"},
    {28, "consumer defined"},
    {29, "invalid RNR retry count"},
    {33, "unsupported class version"},
    {34, "invalid flow label"},
    {35, "invalid alternate flow label"},
};

// A rejection has the code 1000 + reason, to keep it apart from event numbers.
constexpr int rejections = 1000;

char const* find(std::span<named const> in, int value) noexcept {
    for (named const& n : in) {
        if (n.value == value) return n.name;
    }
    return nullptr;
}

std::string or_empty(char const* name) { return name != nullptr ? name : ""; }

}  // namespace

std::string symbol_of(error_code const& ec) {
    int const value = ec.value();
    if (ec.category() == rcverbs_category()) return or_empty(find(ours, value));
    if (ec.category() == work_completion_category()) return or_empty(find(statuses, value));
    if (ec.category() == connection_manager_category()) {
        if (value < rejections) return or_empty(find(events, value));
        char const* const reason = find(reasons, value - rejections);
        return "RDMA_CM_EVENT_REJECTED, reason: " +
               (reason != nullptr ? reason : std::to_string(value - rejections));
    }
    if (ec.category() == boost::system::system_category())
        return or_empty(::strerrorname_np(value));
    return "";
}

std::string describe_status(error_code const& ec, int status) {
    if (status == 0) return "";
    std::string const number = std::to_string(status);
    if (ec.category() == work_completion_category()) return "vendor error " + number;
    char const* const event =
        ec.category() == rcverbs_category() ? find(device_events, status) : nullptr;
    if (event != nullptr) return event + (" (" + number + ')');
    char const* const name = status < 0 ? ::strerrorname_np(-status) : nullptr;
    return "status " + number + (name != nullptr ? std::string{' '} + name : "");
}

}  // namespace rcverbs::detail
