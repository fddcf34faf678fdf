#include <rcverbs/options.hpp>

#include <algorithm>

#include "connection/core.hpp"
#include "verbs/queue_pair.hpp"

namespace rcverbs {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

bool is_positive(milliseconds d) noexcept { return d > milliseconds{0}; }
bool is_limit(milliseconds d) noexcept { return d >= milliseconds{0}; }

// How long a queue pair goes on sending again. The timer of the specification runs for one to four times its value.
// Source: InfiniBand specification, local ACK timeout.
nanoseconds retrying(nanoseconds ack_timeout, unsigned retry_count) noexcept {
    return verbs::decode_ack_timeout(verbs::encode_ack_timeout(ack_timeout)) * 4 * (retry_count + 1);
}

}  // namespace

error_code detail::validate(connection_options const& o) noexcept {
    bool const deadlines = is_positive(o.resolve_address_deadline) && is_positive(o.resolve_route_deadline) &&
                           is_positive(o.connect_deadline) && is_positive(o.disconnect_deadline) &&
                           is_positive(o.drain_deadline) && is_limit(o.stall_timeout) && is_limit(o.idle_timeout) &&
                           is_limit(o.keepalive_interval);
    bool const counts = o.rnr_retry_count <= 7 && o.retry_count <= 6 && o.send_queue_depth > 0 &&
                        o.receive_queue_depth > 0 && o.send_segments_max > 0 && o.receive_segments_max > 0;
    bool const times = o.ack_timeout >= nanoseconds{4096} && o.ack_timeout <= std::chrono::seconds{8800} &&
                       o.min_rnr_timer >= std::chrono::microseconds{10} &&
                       o.min_rnr_timer <= std::chrono::microseconds{655360} &&
                       o.polling.spin >= nanoseconds{0};
    bool const placement = (o.progress == progress_on::poller || !o.shared_poller.is_open()) &&
                           !(o.private_domain && (o.shared_receives.is_valid() || o.domain.is_open()));
    return deadlines && counts && times && placement ? error_code{} : make_error_code(errc::invalid_option);
}

detection_time worst_case_detection(connection_options const& o) noexcept {
    milliseconds const period = machines::liveness::look_period({o.stall_timeout, o.keepalive_interval, o.idle_timeout});
    auto const latest = [period](milliseconds limit) -> nanoseconds { return machines::liveness::latest(limit, period); };
    nanoseconds busy = retrying(o.ack_timeout, o.retry_count);
    if (is_positive(o.stall_timeout)) busy = std::min(busy, latest(o.stall_timeout));
    nanoseconds idle = nanoseconds::max();
    if (is_positive(o.keepalive_interval)) idle = latest(o.keepalive_interval) + busy;
    if (is_positive(o.idle_timeout)) idle = std::min(idle, latest(o.idle_timeout));
    return {busy, idle};
}

void detect_within(connection_options& o, milliseconds within) {
    if (within < detect_within_min || within > detect_within_max) {
        throw boost::system::system_error{errc::invalid_option, "detect_within"};
    }
    // Half of it to notice that nothing comes, half of it to try again.
    unsigned const share = 2 * 4 * (o.retry_count + 1U);
    o.ack_timeout = verbs::decode_ack_timeout(verbs::ack_timeout_within(nanoseconds{within} / share));
    // One look, an eighth of it, comes on top.
    o.keepalive_interval = std::max(within * 3 / 8, milliseconds{1});
}

}  // namespace rcverbs
