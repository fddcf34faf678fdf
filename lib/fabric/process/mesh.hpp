// mesh.hpp — the other processes of a network, through Unix sockets: one for each process, and a connection for each pair of
// processes that have something to say to each other.
//
// Frames keep their order on a connection; what a socket does not take now is kept, and packets wait
// for room, so that one process that does not read costs the others a bounded amount of memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "../src/frame.hpp"
#include "../src/network.hpp"
#include "capture.hpp"
#include "directory.hpp"
#include "settings.hpp"
#include "stepping.hpp"

namespace rcverbs::fabric::detail {

/// The node that has this GID; 0 if it is none of these addresses.
std::uint32_t node_of(ibv_gid const& gid) noexcept;

class mesh : public wire {
public:
    /// Takes a slot of the node. Throws std::runtime_error.
    mesh(network& net, directory where, std::uint32_t node, settings const& with);
    ~mesh() override;

    bool is_elsewhere(ibv_gid const& gid, std::uint32_t qp_num) const noexcept override;
    bool is_elsewhere(address const& to, std::uint64_t id) override;
    bool has_neighbour(address const& to) const noexcept override;
    std::uint32_t first_qp_num() const noexcept override;
    std::uint64_t first_id() const noexcept override;
    bool has_room(ibv_gid const& to, std::uint32_t qp_num) noexcept override;
    void send(packet const& p) override;
    bool send(cm_message const& m) override;
    void flush() override;
    bool has_unsent() const noexcept override;
    int claim_port(std::uint16_t port) override;
    void show_port(std::uint16_t port) noexcept override;
    void release_port(std::uint16_t port) noexcept override;
    std::optional<nanoseconds> time() const noexcept override;
    bool may_run_timers() noexcept override;
    bool receive() override;
    void wait(std::unique_lock<std::mutex>& held, std::optional<nanoseconds> timeout) override;
    void wake() noexcept override;
    bool note_poll() noexcept override;
    void note_arm() noexcept override;

private:
    // A process: its node and its slot.
    using place = std::pair<std::uint32_t, std::uint32_t>;
    struct peer {
        descriptor socket;
        // Unknown until its hello has arrived and was found true.
        std::optional<place> who;
        std::uint32_t generation = 0;
        // Frames that are sent with the next flush, and datagrams that the socket did not take.
        std::vector<std::byte> collected;
        std::deque<std::vector<std::byte>> waiting;
        std::size_t waiting_bytes = 0;
        bool is_dirty = false;
        // This process has connected.
        bool is_outgoing = false;
        // Its link is down: nobody hears of its end.
        bool is_silent = false;
        bool is_ended = false;
    };
    struct claimed_port {
        descriptor lock;
        std::size_t users = 0;
    };

    peer* reach(place const& to);
    peer* add(descriptor socket, bool is_outgoing);
    void watch(peer& which, int operation);
    nanoseconds capture_time() const;
    void collect(peer& to, auto const& what);
    void send_collected(peer& to);
    void send_waiting(peer& to);
    bool send_now(peer& to, std::vector<std::byte> const& datagram);
    void accept_all();
    bool read(peer& from, int datagrams_max);
    bool take(peer& from, std::span<std::byte const> datagram);
    packet_fate decide();
    void kill(std::uint32_t node);
    void obey(control const& c);
    bool hear(peer& from, control const& c);
    void announce_link(bool is_up);
    void show_faults() const;
    void end(peer& which);
    void remove_ended();
    void join_stepper();
    bool obey_stepper();
    step_source place_of(peer const& which);
    std::vector<std::pair<step_source, peer*>> step_sources();
    void answer_stepper();
    void take_step(step_message const& order);
    void tell_stepper(step_message const& m) noexcept;
    void take_wake() noexcept;
    void tell_change() noexcept;

    network& net_;
    directory where_;
    descriptor node_lock_;
    std::uint32_t node_;
    directory::member slot_;
    descriptor listener_;
    descriptor waker_;
    descriptor poller_;
    std::map<peer const*, std::unique_ptr<peer>> peers_;
    std::map<place, peer*> places_;
    std::vector<peer*> dirty_;
    std::map<std::uint16_t, claimed_port> ports_;
    std::vector<std::byte> datagram_;
    bool had_full_ = false;
    bool has_ended_ = false;
    // The faults that were ordered.
    std::mt19937_64 random_;
    double loss_;
    bool is_link_down_ = false;
    nanoseconds delay_;
    std::optional<kill_order> kill_;
    std::optional<capture> capture_;
    std::uint64_t packets_ = 0;
    // In a network that goes on step by step: its stepper says what is read next, and which time it is.
    descriptor stepper_;
    bool is_stepped_ = false;
    bool owes_done_ = false;
    bool runs_timers_ = false;
    std::uint64_t step_ = 0;
    std::atomic<nanoseconds::rep> stepped_ns_{0};
    std::atomic<bool> has_told_change_{false};
    // Polls of empty queues since the program last prepared to wait.
    std::atomic<unsigned> empty_polls_{0};
    std::atomic<bool> is_aside_{false};
};

}  // namespace rcverbs::fabric::detail
