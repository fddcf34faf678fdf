// What happens to whole devices: killed programs, power, removal, links.
#include "network.hpp"

#include <vector>

namespace rcverbs::fabric::detail {

// Nothing more is said to the programs of a device; what they had comes back to them, flushed.
void network::abandon(device& on, bool tells_peers) {
    std::vector<std::uint64_t> numbers;  // requests that nobody took are forgotten on the way
    for (auto const& [number, id] : ids_) {
        if (id->on == &on) numbers.push_back(number);
    }
    for (std::uint64_t const number : numbers) {
        cm_id* const id = find_id(number);
        if (id == nullptr) continue;
        if (tells_peers) say_goodbye(*id);
        drop_events(*id);
        id->is_abandoned = true;
    }
    for (auto const& [number, qp] : numbers_) {
        if (qp->on == &on) break_qp(*qp);
    }
}

void network::kill_program(device& on) {
    abandon(on, true);
    // Those that listen at every address are on no device.
    on.killed_below = next_id_;
}

void network::power_off(device& on) {
    on.is_powered = false;
    abandon(on, false);
    on.killed_below = next_id_;
}

void network::remove(device& on) {
    if (on.is_removed) return;
    for (auto const& [number, id] : ids_) {
        if (id->on == &on) tell(*id, RDMA_CM_EVENT_DEVICE_REMOVAL);
    }
    on.is_removed = true;
    for (auto const& [number, qp] : numbers_) {
        if (qp->on == &on) break_qp(*qp);
    }
    raise_port(on, IBV_EVENT_DEVICE_FATAL);
}

void network::set_port(device& on, bool is_up) {
    if (on.is_up == is_up) return;
    on.is_up = is_up;
    raise_port(on, is_up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void network::lose_addresses(device& on) {
    on.has_lost_addresses = true;
    raise_port(on, IBV_EVENT_GID_CHANGE);
}

void network::fail_queue_pairs(device& on) {
    for (auto const& [number, qp] : numbers_) {
        if (qp->on == &on) fail_qp(*qp);
    }
}

void network::stop_send_queues(device& on) {
    for (auto const& [number, qp] : numbers_) {
        if (qp->on == &on) qp->is_asleep = true;
    }
}

void network::overrun(device& on) {
    std::map<std::uint32_t, completion_queue*> in_order;
    for (auto const& [key, cq] : queues_) {
        if (context_of(cq->context)->on == &on) in_order.emplace(cq->handle, cq.get());
    }
    for (auto const& [handle, cq] : in_order) overrun(*cq);
}

}  // namespace rcverbs::fabric::detail
