#include "machines/liveness.hpp"

#include <algorithm>

namespace rcverbs::machines {

namespace {

using std::chrono::milliseconds;

constexpr int looks_per_limit = 8;

std::int64_t in_looks(milliseconds limit, milliseconds period) noexcept {
    return (limit.count() + period.count() - 1) / period.count();
}

}  // namespace

milliseconds liveness::look_period(limits const& l) noexcept {
    milliseconds shortest = milliseconds::max();
    for (milliseconds const limit : {l.stall, l.keepalive, l.idle}) {
        if (limit.count() > 0) shortest = std::min(shortest, limit);
    }
    return std::max(shortest / looks_per_limit, milliseconds{1});
}

milliseconds liveness::latest(milliseconds limit, milliseconds period) noexcept {
    // A change right after a tick is seen by the next tick, and the count starts only then.
    return (in_looks(limit, period) + 1) * period;
}

liveness::liveness(limits const& l) noexcept
    : period_{look_period(l)},
      stall_{in_looks(l.stall, period_)},
      keepalive_{in_looks(l.keepalive, period_)},
      idle_{in_looks(l.idle, period_)} {}

void liveness::begin(sample const& now) noexcept {
    was_posted_ = now.is_posted;
    oldest_send_ = now.oldest_send;
    traffic_ = now.completed - keepalives_;
    stalled_for_ = silent_for_ = unused_for_ = 0;
}

liveness::action liveness::tick(sample const& now) noexcept {
    bool const is_same = was_posted_ && now.is_posted && now.oldest_send == oldest_send_;
    was_posted_ = now.is_posted;
    oldest_send_ = now.oldest_send;
    if (now.is_awaiting) {
        // This work needs an acknowledgement from the peer, so no keepalive is necessary.
        stalled_for_ = is_same ? stalled_for_ + 1 : 0;
        if (!is_same) return action::none;
        return stall_ > 0 && stalled_for_ >= stall_ ? action::stalled : action::kick_send_queue;
    }
    stalled_for_ = 0;
    if (std::uint64_t const traffic = now.completed - keepalives_; traffic != traffic_) {
        traffic_ = traffic;
        silent_for_ = unused_for_ = 0;
        return action::none;
    }
    ++silent_for_;
    ++unused_for_;
    if (idle_ > 0 && unused_for_ >= idle_) return action::idle;
    if (keepalive_ == 0 || silent_for_ < keepalive_)
        return is_same ? action::kick_send_queue : action::none;
    silent_for_ = 0;
    ++keepalives_;
    return action::send_keepalive;
}

}  // namespace rcverbs::machines
