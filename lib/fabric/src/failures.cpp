// Failures of whole devices: killed programs, power, removal, links.
#include "network.hpp"

namespace rcverbs::fabric::detail {

// Fails the queue pairs of a device, and stops the events to its ids. A program under test that is still
// there hears that its device has failed, and does not blame the peer.
void network::abandon(device& on, bool tells_peers) {
    cm.abandon(on, tells_peers);
    for (auto const& [number, qp] : numbers_) {
        if (qp->on != &on) continue;
        if (qp->state == IBV_QPS_RTS) qp->fail();
        qp->move_to_error();
    }
}

void network::kill_program(device& on) {
    abandon(on, true);
    // Listeners on the wildcard address belong to no device.
    on.killed_below = cm.next_number();
}

void network::power_off(device& on) {
    on.is_powered = false;
    abandon(on, false);
    on.killed_below = cm.next_number();
}

void network::remove(device& on) {
    if (on.is_removed) return;
    cm.tell_of_removal(on);
    on.is_removed = true;
    for (auto const& [number, qp] : numbers_) {
        if (qp->on == &on) qp->move_to_error();
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
        if (qp->on == &on) qp->fail();
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
