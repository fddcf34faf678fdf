#include <rcverbs/options.hpp>

#include <algorithm>

#include "connection/option_problems.hpp"
#include <rcverbs/detail/option_check.hpp>
#include <rcverbs/detail/timeouts.hpp>
#include "machines/liveness.hpp"
#include "verbs/device.hpp"
#include "verbs/queue_pair.hpp"

namespace rcverbs {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// The longest time for which a queue pair retries. By the specification the timer runs for one to
// four times its value. Source: InfiniBand specification, local ACK timeout.
nanoseconds retrying(nanoseconds ack_timeout, unsigned retry_count) noexcept {
    return verbs::decode_ack_timeout(verbs::encode_ack_timeout(ack_timeout)) * 4 *
           (retry_count + 1);
}

}  // namespace

bool detail::has_domain(placement_options const& o, domain_sharing how) noexcept {
    auto const* const chosen = std::get_if<domain_sharing>(&o.domain);
    return chosen != nullptr && *chosen == how;
}

std::string detail::problem_of(connection_options const& o) {
    constexpr milliseconds least{1};
    auto const* const given = std::get_if<protection_domain>(&o.placement.domain);
    option_check check{"connection_options"};
    check.within("queue_pair.rnr_retry_count", o.queue_pair.rnr_retry_count, 0, 7)
        .within("queue_pair.retry_count", o.queue_pair.retry_count, 0, 6)
        .within(
            "queue_pair.ack_timeout",
            o.queue_pair.ack_timeout,
            nanoseconds{4096},
            std::chrono::seconds{8800}
        )
        .within(
            "queue_pair.min_rnr_timer",
            o.queue_pair.min_rnr_timer,
            std::chrono::microseconds{10},
            std::chrono::microseconds{655'360}
        )
        .from("queue_pair.send_queue_depth", o.queue_pair.send_queue_depth, 1)
        .from("queue_pair.receive_queue_depth", o.queue_pair.receive_queue_depth, 1)
        .from("queue_pair.send_segments_max", o.queue_pair.send_segments_max, 1)
        .from("queue_pair.receive_segments_max", o.queue_pair.receive_segments_max, 1)
        .from("timeouts.resolve_address", o.timeouts.resolve_address, least)
        .from("timeouts.resolve_route", o.timeouts.resolve_route, least)
        .from("timeouts.connect", o.timeouts.connect, least)
        .from("timeouts.disconnect", o.timeouts.disconnect, least)
        .from("timeouts.drain", o.timeouts.drain, least)
        .from("liveness.stall_timeout", o.liveness.stall_timeout, least)
        .from("liveness.keepalive_interval", o.liveness.keepalive_interval, least)
        .from("liveness.idle_timeout", o.liveness.idle_timeout, least)
        .within("placement.flow_label", o.placement.flow_label, 0, 0xFFFFF)
        .within("placement.service_level", o.placement.service_level, 0, 15)
        .within("placement.hop_limit", o.placement.hop_limit, 1, 255)
        .that(
            !o.placement.path_mtu_bytes || verbs::encode_mtu(*o.placement.path_mtu_bytes) != 0,
            "placement.path_mtu_bytes",
            "is not 256, 512, 1024, 2048 or 4096"
        )
        .that(
            !has_domain(o.placement, domain_sharing::isolated) ||
                !o.placement.shared_receives.is_valid(),
            "placement.domain",
            "is isolated, which does not go with shared_receives"
        )
        .that(!given || given->is_open(), "placement.domain", "is not open");
    return check.problem();
}

machines::liveness::limits detail::limits_of(liveness_options const& o) noexcept {
    constexpr milliseconds none{0};
    return {
        detail::bounded(o.stall_timeout.value_or(none)),
        detail::bounded(o.keepalive_interval.value_or(none)),
        detail::bounded(o.idle_timeout.value_or(none))};
}

error_code detail::validate(connection_options const& o) {
    return problem_of(o).empty() ? error_code{} : make_error_code(errc::invalid_option);
}

detection_time worst_case_detection(connection_options const& o) noexcept {
    milliseconds const period = machines::liveness::look_period(detail::limits_of(o.liveness));
    auto const latest = [period](milliseconds limit) -> nanoseconds {
        return machines::liveness::latest(detail::bounded(limit), period);
    };
    nanoseconds busy = retrying(o.queue_pair.ack_timeout, o.queue_pair.retry_count);
    if (o.liveness.stall_timeout) busy = std::min(busy, latest(*o.liveness.stall_timeout));
    nanoseconds idle = nanoseconds::max();
    if (o.liveness.keepalive_interval) idle = latest(*o.liveness.keepalive_interval) + busy;
    if (o.liveness.idle_timeout) idle = std::min(idle, latest(*o.liveness.idle_timeout));
    return {busy, idle};
}

void detect_within(connection_options& o, milliseconds within) {
    if (within < detect_within_min || within > detect_within_max) {
        throw boost::system::system_error{
            errc::invalid_option, "detect_within() takes 10 ms to an hour"};
    }
    // Half of the time to detect silence, half for the retries.
    unsigned const share = 2 * 4 * (o.queue_pair.retry_count + 1U);
    o.queue_pair.ack_timeout =
        verbs::decode_ack_timeout(verbs::ack_timeout_within(nanoseconds{within} / share));
    // Detection takes up to one check period more, which is an eighth of this interval.
    o.liveness.keepalive_interval = std::max(within * 3 / 8, milliseconds{1});
}

}  // namespace rcverbs
