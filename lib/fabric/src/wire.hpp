// wire.hpp — what a network with other processes needs of them.
//
// The lock of the network guards all calls except wake() and note_poll().
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "objects.hpp"
#include "packet.hpp"

namespace rcverbs::fabric::detail {

class wire {
public:
    wire() = default;
    wire(wire const&) = delete;
    wire& operator=(wire const&) = delete;
    virtual ~wire() = default;

    /// True if the queue pair with this number behind this GID belongs to another process.
    virtual bool is_elsewhere(ibv_gid const& gid, std::uint32_t qp_num) const noexcept = 0;
    /// True if the connection manager with this address belongs to another process. `id` is 0 for a
    /// request, whose port decides.
    virtual bool is_elsewhere(address const& to, std::uint64_t id) = 0;
    /// True if a device of another process may have this address: it can be resolved.
    virtual bool has_neighbour(address const& to) const noexcept = 0;
    /// The first number of this process's queue pairs, and of its connection manager's ids.
    virtual std::uint32_t first_qp_num() const noexcept = 0;
    virtual std::uint64_t first_id() const noexcept = 0;

    /// False if packets have to wait: writable() of the network follows.
    virtual bool has_room(ibv_gid const& to, std::uint32_t qp_num) noexcept = 0;
    virtual void send(packet const& p) = 0;
    /// False if nobody is there.
    virtual bool send(cm_message const& m) = 0;
    /// Sends what the calls before have collected.
    virtual void flush() = 0;
    /// True if something that was sent has to wait for another process.
    virtual bool has_unsent() const noexcept = 0;

    /// A port of all processes of this node: 0, or EADDRINUSE.
    virtual int claim_port(std::uint16_t port) = 0;
    /// From now on, others see that somebody listens there. REQUIRES: claimed.
    virtual void show_port(std::uint16_t port) noexcept = 0;
    virtual void release_port(std::uint16_t port) noexcept = 0;

    /// The time of a network that goes on step by step; none: that of the machine.
    virtual std::optional<nanoseconds> time() const noexcept = 0;
    /// False if timers that are due have to wait for their step.
    virtual bool may_run_timers() noexcept = 0;
    /// Passes what has arrived to the network; true if there was anything.
    virtual bool receive() = 0;
    /// Waits, without the lock, until something arrives, wake() or the timeout.
    virtual void wait(std::unique_lock<std::mutex>& held, std::optional<nanoseconds> timeout) = 0;
    virtual void wake() noexcept = 0;
    /// The program has polled an empty queue; true if it should call receive() itself, because it
    /// polls all the time.
    virtual bool note_poll() noexcept = 0;
    /// The program is going to wait for an event.
    virtual void note_arm() noexcept = 0;
};

}  // namespace rcverbs::fabric::detail
