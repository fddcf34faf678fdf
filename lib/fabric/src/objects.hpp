// objects.hpp — what stands behind the pointers that a program holds: each C structure, with what the device knows of it.
//
// Plain data; the rules are in the files that act on it. The network's lock guards all of it, unless it says otherwise.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/fabric.hpp>

#include "scheduler.hpp"

namespace rcverbs::fabric::detail {

/// A descriptor that is readable as long as there is something to take: one unit is one thing.
class doorbell_descriptor {
public:
    doorbell_descriptor();
    doorbell_descriptor(doorbell_descriptor const&) = delete;
    doorbell_descriptor& operator=(doorbell_descriptor const&) = delete;
    ~doorbell_descriptor();

    int get() const noexcept { return descriptor_; }
    void ring() noexcept;
    /// Takes one unit; waits for it if the descriptor blocks. Returns -1 with errno.
    int take() noexcept;
    /// Takes back units that were rung and not taken; never waits.
    void drop(std::size_t count) noexcept;
    /// True if the program has left the descriptor as it was made.
    bool blocks() const noexcept;
    bool is_rung() const noexcept;

private:
    int descriptor_;
};

struct address {
    sockaddr_storage raw{};

    sa_family_t family() const noexcept { return raw.ss_family; }
};

/// As a port's table has it: an IPv4 address is mapped.
ibv_gid gid_of(address const& a) noexcept;

struct context;

struct device : ibv_device {
    device_options options;
    std::vector<address> addresses;
    device_counters counters;
    std::uint64_t guid = 0;
    bool is_up = true;
    bool is_powered = true;
    bool is_removed = false;
    bool has_lost_addresses = false;
    // Listeners with a smaller number were killed: they take no requests that come in here.
    std::uint64_t killed_below = 0;
    nanoseconds link_free{0};  // the connection manager's messages stay in order, too

    bool is_reachable() const noexcept { return is_up && is_powered && !is_removed; }
    // librdmacm opens each device once, for all ids of the process.
    context* borrowed = nullptr;
};

struct async_event {
    ibv_async_event event;
    // Of the object that the event is about, for the wait in its destruction.
    void* object;
};

struct context {
    verbs_context verbs{};  // first: the program's pointer leads to its last member
    device* on = nullptr;
    std::uint64_t number = 0;
    doorbell_descriptor async;
    std::deque<async_event> events;
};

struct domain : ibv_pd {
    std::size_t users = 0;
};

/// A region or a window: what a key opens.
struct region : ibv_mr {
    int access = 0;
    std::size_t windows = 0;
};

struct window : ibv_mw {
    // What it was made with: a program may try other low bytes of it only, and change the public field as it likes.
    std::uint32_t created_rkey = 0;
    std::uint32_t bound_rkey = 0;
    // Bound: which region, which part of it, and what may be done there, on which queue pair.
    region* to = nullptr;
    std::uint64_t at = 0;
    std::uint64_t size = 0;
    int access = 0;
    std::uint32_t qp_num = 0;
};

struct completion_queue;

struct completion_channel : ibv_comp_channel {
    doorbell_descriptor ready;
    std::deque<completion_queue*> events;
};

struct completion {
    ibv_wc wc{};
    // What its being polled gives back: a place in a work queue.
    bool frees_send = false;
    bool frees_receive = false;
    std::uint64_t index = 0;
    // The number of the shared queue that a receive came from; 0 for none.
    std::uint32_t shared = 0;
    bool is_solicited = false;
};

struct completion_queue : ibv_cq {
    std::deque<completion> entries;
    // Read without the lock: a poll that finds nothing takes none.
    std::atomic<std::size_t> count{0};
    std::atomic<bool> is_broken{false};
    enum class arming : std::uint8_t { none, next, solicited } armed = arming::none;
    unsigned events_given = 0;
    unsigned events_acknowledged = 0;
    unsigned async_given = 0;
    unsigned async_acknowledged = 0;
    std::size_t users = 0;
};

struct receive_work {
    std::uint64_t id = 0;
    std::vector<ibv_sge> segments;
    std::uint64_t index = 0;
};

struct shared_receive_queue : ibv_srq {
    std::deque<receive_work> posted;
    std::size_t in_use = 0;  // posted, or taken and not polled yet
    std::uint32_t depth = 0;
    std::uint32_t segments_max = 0;
    std::uint32_t limit = 0;
    unsigned async_given = 0;
    unsigned async_acknowledged = 0;
    std::size_t users = 0;
};

struct send_work {
    ibv_send_wr wr{};
    std::vector<ibv_sge> segments;
    std::vector<std::byte> inline_data;
    std::uint64_t index = 0;
    std::uint64_t size = 0;
    // Packets, once it has been sent for the first time: reads take a number for each packet of the answer.
    bool has_numbers = false;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::uint64_t answered = 0;  // packets of a read's or atomic's answer that have come
    bool is_answered = false;
    int forced_status = -1;

    bool is_read() const noexcept { return wr.opcode == IBV_WR_RDMA_READ; }
    bool is_atomic() const noexcept {
        return wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    }
    bool expects_answer() const noexcept { return is_read() || is_atomic(); }
    bool is_local() const noexcept { return wr.opcode == IBV_WR_LOCAL_INV || wr.opcode == IBV_WR_BIND_MW; }
};

struct queue_pair : ibv_qp {
    ibv_qp_cap cap{};
    bool signals_all = false;
    // A number that no other queue pair ever had, for things under way that outlive this one.
    std::uint64_t serial = 0;

    // As programmed.
    std::uint32_t remote_qp = 0;
    device* on = nullptr;
    std::uint32_t mtu = 1024;
    int access = 0;
    std::uint8_t gid_index = 0;        // of its own address
    std::uint8_t read_depth = 0;       // as initiator
    std::uint8_t resources = 0;        // as responder
    std::uint8_t timeout_code = 19;
    std::uint8_t retry_count = 7;
    std::uint8_t rnr_retry_count = 7;
    std::uint8_t rnr_timer_code = 0;

    // The send queue: work that has not completed, oldest first; and how much of the queue is taken.
    std::deque<send_work> sends;
    std::uint64_t sends_posted = 0;
    std::uint64_t sends_freed = 0;
    // The requester.
    std::size_t position = 0;       // in `sends`: the one to send next
    std::uint64_t offset = 0;       // bytes of it that have been sent
    std::uint64_t next_number = 0;  // of the next packet
    std::uint64_t high_number = 0;  // packets below it are sent again
    std::uint64_t acknowledged = 0; // packets below it have been taken
    std::uint8_t retries_left = 7;
    std::uint8_t rnr_retries_left = 7;
    nanoseconds rnr_until{0};
    nanoseconds deadline{0};
    bool has_timer = false;
    bool is_asleep = false;  // until the doorbell
    std::uint64_t recovering_below = 0;  // one gap is mended once: what was sent up to here may show it again
    nanoseconds link_free{0};  // packets do not overtake each other

    // The receive queue.
    std::deque<receive_work> receives;
    std::uint64_t receives_posted = 0;
    std::uint64_t receives_freed = 0;
    // The responder.
    std::uint64_t expected = 0;
    bool has_complained = false;  // of a gap; once is enough
    std::optional<receive_work> receiving;
    std::uint64_t received_bytes = 0;
    std::uint64_t message_bytes = 0;
    std::map<std::uint64_t, std::uint64_t> atomic_answers;
    std::size_t answers_under_way = 0;

    bool flush_is_due = false;
    std::size_t flushed_sends = 0;
    std::size_t flushed_receives = 0;
    bool has_said_last = false;  // that nothing of the shared queue will come to it any more
    unsigned async_given = 0;
    unsigned async_acknowledged = 0;
};

struct cm_event : rdma_cm_event {
    std::array<std::byte, 256> data{};
    std::uint64_t owner = 0;  // the id that is told; for a request, the one that listens
    std::uint64_t child = 0;  // a request's new id
};

struct cm_channel : rdma_event_channel {
    doorbell_descriptor ready;
    std::deque<std::unique_ptr<cm_event>> events;
};

/// A side's terms in the handshake.
struct terms {
    std::uint32_t qp_num = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t retry_count = 7;
    std::uint8_t rnr_retry_count = 7;
    std::vector<std::byte> private_data;
};

struct cm_id : rdma_cm_id {
    enum class state : std::uint8_t {
        idle,
        bound,
        listening,
        resolving_address,
        address_resolved,
        resolving_route,
        route_resolved,
        request_sent,
        request_received,
        reply_sent,
        reply_received,
        connected,
        disconnect_sent,
        disconnect_received,
        closed,
    };

    std::uint64_t number = 0;
    state at = state::idle;
    device* on = nullptr;
    address local;
    address remote;
    std::uint64_t peer = 0;  // the other side's id
    std::uint64_t listener = 0;  // whose request this is, until it was taken
    terms own;
    terms theirs;
    std::optional<std::uint8_t> ack_timeout;
    int backlog = 0;
    std::size_t waiting_requests = 0;
    bool is_abandoned = false;
    std::size_t events_given = 0;
    std::size_t events_acknowledged = 0;
};

}  // namespace rcverbs::fabric::detail
