#include "cm/device_watch.hpp"

#include <algorithm>
#include <map>

#include "verbs/errno_map.hpp"

namespace rcverbs::cm {

namespace {

struct known_watches {
    std::mutex mutex;
    std::map<ibv_context*, std::weak_ptr<device_watch>> by_device;
};

known_watches& all_watches() {
    static auto& all = *new known_watches;  // never destroyed: polling threads may outlive statics
    return all;
}

// Fills `e` from the event. Returns false if the event does not affect connections.
bool describe(ibv_async_event const& from, device_event& e) noexcept {
    using kind = device_event::kind;
    e.type = from.event_type;
    auto const about_queue_pair = [&](kind what) {
        e.what = what;
        e.object = from.element.qp;
        e.number = from.element.qp->qp_num;  // valid until the event is acknowledged
        return true;
    };
    auto const about_port = [&](kind what) {
        e.what = what;
        e.number = static_cast<std::uint32_t>(from.element.port_num);
        return true;
    };
    switch (from.event_type) {
    case IBV_EVENT_QP_FATAL: return about_queue_pair(kind::queue_pair_failed);
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: return about_queue_pair(kind::peer_violation);
    case IBV_EVENT_CQ_ERR:
        e.what = kind::completion_queue_failed;
        e.object = from.element.cq;
        return true;
    case IBV_EVENT_SRQ_ERR:
        e.what = kind::shared_queue_failed;
        e.object = from.element.srq;
        return true;
    case IBV_EVENT_PORT_ERR: return about_port(kind::port_down);
    case IBV_EVENT_GID_CHANGE: return about_port(kind::addresses_changed);
    case IBV_EVENT_DEVICE_FATAL: e.what = kind::device_failed; return true;
    // PORT_ACTIVE needs no handling: the next connect uses the port. The other events concern path
    // migration, subnet managers or unreliable transports, or repeat the content of completions.
    default: return false;
    }
}

}  // namespace

std::shared_ptr<device_watch> device_watch::of(
    verbs::device_context const& device, error_code& ec
) {
    known_watches& all = all_watches();
    std::lock_guard const lock{all.mutex};
    ec.clear();
    std::erase_if(all.by_device, [](auto const& k) { return k.second.expired(); });
    std::weak_ptr<device_watch>& known = all.by_device[device.get()];
    if (auto alive = known.lock()) return alive;
    ec = verbs::set_non_blocking(device->async_fd);
    if (ec) return nullptr;
    auto made = std::make_shared<device_watch>(device);
    known = made;
    return made;
}

void device_watch::add(std::weak_ptr<device_event_sink> sink) {
    std::lock_guard const lock{mutex_};
    if (sinks_.size() >= tidy_at_) {
        std::erase_if(sinks_, [](auto const& s) { return s.expired(); });
        tidy_at_ = 2 * sinks_.size() + 16;
    }
    sinks_.push_back(std::move(sink));
}

bool device_watch::has_sinks() {
    std::lock_guard const lock{mutex_};
    return std::any_of(sinks_.begin(), sinks_.end(), [](auto const& s) { return !s.expired(); });
}

device_watch::taken device_watch::take(device_event& e) {
    ibv_async_event from{};
    if (ibv_get_async_event(device_.get(), &from) != 0) {
        return verbs::from_minus_one(-1) == boost::system::errc::resource_unavailable_try_again
                   ? taken::none
                   : taken::failed;
    }
    bool const concerns_us = describe(from, e);
    ibv_ack_async_event(&from);
    return concerns_us ? taken::event : taken::of_no_interest;
}

bool device_watch::tell() {
    for (;;) {
        device_event e;
        std::vector<std::shared_ptr<device_event_sink>> told;
        {
            std::lock_guard const lock{mutex_};
            taken const result = take(e);
            if (result == taken::none || result == taken::failed) return result == taken::none;
            if (result == taken::of_no_interest) continue;
            for (auto const& s : sinks_) {
                if (auto alive = s.lock()) told.push_back(std::move(alive));
            }
        }
        for (auto const& s : told) s->on_device_event(e);
    }
}

}  // namespace rcverbs::cm
