// objects.hpp — the objects behind a program's pointers: C structures and the device's state.
//
// Plain data; the files that use it implement the rules. The lock of the network guards all of it,
// unless noted otherwise.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/fabric.hpp>

#include "packet.hpp"
#include "scheduler.hpp"

namespace rcverbs::fabric::detail {

/// A descriptor that is readable while events are pending: an eventfd with one unit per event.
class doorbell_descriptor {
public:
    doorbell_descriptor();
    doorbell_descriptor(doorbell_descriptor const&) = delete;
    doorbell_descriptor& operator=(doorbell_descriptor const&) = delete;
    ~doorbell_descriptor();

    int get() const noexcept { return descriptor_; }
    void ring() noexcept;
    /// Takes one unit; waits for it if the descriptor blocks. Returns 0, or -1 with errno.
    int take() noexcept;
    /// Removes units that were rung and not taken; never waits.
    void drop(std::size_t count) noexcept;
    /// True if the descriptor still is in blocking mode, as created.
    bool blocks() const noexcept;
    bool is_rung() const noexcept;

private:
    int descriptor_;
};

struct address {
    sockaddr_storage raw{};

    sa_family_t family() const noexcept { return raw.ss_family; }
};

/// The GID of an address; an IPv4 address is mapped.
inline ibv_gid gid_of(address const& a) noexcept {
    ibv_gid gid{};
    if (a.family() == AF_INET6) {
        std::memcpy(
            gid.raw, &reinterpret_cast<sockaddr_in6 const&>(a.raw).sin6_addr, sizeof gid.raw
        );
    } else {
        gid.raw[10] = gid.raw[11] = 0xff;
        std::memcpy(gid.raw + 12, &reinterpret_cast<sockaddr_in const&>(a.raw).sin_addr, 4);
    }
    return gid;
}

inline std::uint64_t packets_for(std::uint64_t bytes, std::uint32_t mtu) noexcept {
    return bytes == 0 ? 1 : (bytes + mtu - 1) / mtu;
}

inline ibv_mtu mtu_code(std::uint32_t bytes) noexcept {
    int code = 0;
    while ((128U << code) < bytes) ++code;
    return static_cast<ibv_mtu>(code);
}

struct context;
struct domain;
class network;

struct device : ibv_device {
    device_options options;
    std::vector<address> addresses;
    device_counters counters;
    std::uint64_t guid = 0;
    std::size_t regions = 0;
    bool is_up = true;
    bool is_powered = true;
    bool is_removed = false;
    bool has_lost_addresses = false;
    // Listeners with a smaller number were killed: they receive no requests that arrive at this
    // device.
    std::uint64_t killed_below = 0;
    nanoseconds link_free{0};  // keeps the connection manager's messages in order

    bool is_reachable() const noexcept { return is_up && is_powered && !is_removed; }
    // librdmacm opens each device once, for all ids of the process. It closes that of a removed device
    // after it has looked for devices again (is_forgotten), when no id and no list uses it.
    context* borrowed = nullptr;
    std::size_t borrowers = 0;
    // librdmacm's, for queue pairs without one.
    domain* default_pd = nullptr;
    std::size_t default_pd_users = 0;
    bool is_forgotten = false;
};

struct async_event {
    ibv_async_event event;
    // The queue pair or queue of the event, whose destruction drops it; null for ports and devices.
    void* object;
};

struct context {
    verbs_context verbs{};  // first: context_of() relies on it
    device* on = nullptr;
    std::uint64_t number = 0;
    doorbell_descriptor async;
    std::deque<async_event> events;
};

struct domain : ibv_pd {
    std::size_t users = 0;
};

/// A memory region, which its keys open.
struct region : ibv_mr {
    int access = 0;
    std::size_t windows = 0;
    // Its addresses in work requests begin here; those of plain memory are the memory's own.
    std::uint64_t iova = 0;
    std::byte* bytes = nullptr;
    // The memory of a file descriptor is mapped for as long as the region lives.
    void* mapping = nullptr;

    std::byte* at(std::uint64_t address) const noexcept { return bytes + (address - iova); }
};

struct window : ibv_mw {
    // The key at creation. The program may bind with other low bytes of it only, and may change the
    // public field as it likes.
    std::uint32_t created_rkey = 0;
    std::uint32_t bound_rkey = 0;
    // The binding: region, range, rights and queue pair; `to` is null if there is none.
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
    // Polling this completion frees slots of the send queue or of the receive queue.
    bool frees_send = false;
    bool frees_receive = false;
    std::uint64_t index = 0;
    // The identity of the queue pair.
    std::uint64_t owner = 0;
    // The handle of the shared queue that a receive came from; 0 for none.
    std::uint32_t shared = 0;
    bool is_solicited = false;
};

struct completion_queue : ibv_cq {
    std::deque<completion> entries;
    // Those that are delayed, in order, and when the last of them is due.
    std::deque<completion> delayed;
    nanoseconds delayed_until{0};
    std::uint64_t serial = 0;
    // Read without the lock, so that an empty poll takes no lock.
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
    std::size_t in_use = 0;  // posted, or consumed and not polled yet
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
    // Packet numbers, assigned at the first transmission. A read takes one for each packet of its
    // response.
    bool has_numbers = false;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::uint64_t answered = 0;  // received response packets of a read or atomic
    bool is_answered = false;
    int forced_status = -1;

    bool is_read() const noexcept { return wr.opcode == IBV_WR_RDMA_READ; }
    bool is_atomic() const noexcept {
        return wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    }
    bool expects_answer() const noexcept { return is_read() || is_atomic(); }
    bool is_local() const noexcept {
        return wr.opcode == IBV_WR_LOCAL_INV || wr.opcode == IBV_WR_BIND_MW;
    }
};

/// What a responder has to send: a packet, or a read request whose response is sent packet by packet
/// as there is room.
struct answer {
    packet what;
    bool is_counted = false;  // of a new request: one of answers_under_way
};

struct queue_pair : ibv_qp {
    ibv_qp_cap cap{};
    bool signals_all = false;
    // A unique number. Pending events compare it, to detect that this queue pair was reset or
    // destroyed.
    std::uint64_t serial = 0;
    // A unique number for life, other than qp_num.
    std::uint64_t identity = 0;

    // As programmed.
    std::uint32_t remote_qp = 0;
    device* on = nullptr;
    std::uint32_t mtu = 1024;
    int access = 0;
    std::uint8_t gid_index = 0;  // index of its own address
    ibv_gid remote_gid{};
    std::uint8_t traffic_class = 0;
    std::uint32_t flow_label = 0;
    std::uint8_t service_level = 0;
    std::uint8_t hop_limit = 0;
    std::uint32_t ece_options = 0;
    std::uint8_t read_depth = 0;  // as initiator
    std::uint8_t resources = 0;  // as responder
    std::uint8_t timeout_code = 19;
    std::uint8_t retry_count = 7;
    std::uint8_t rnr_retry_count = 7;
    std::uint8_t rnr_timer_code = 0;

    // The send queue: uncompleted work, oldest first, and the counters of its slots.
    std::deque<send_work> sends;
    std::uint64_t sends_posted = 0;
    std::uint64_t sends_freed = 0;
    // The requester.
    std::size_t position = 0;  // index in `sends` of the next work to send
    std::uint64_t offset = 0;  // bytes of that work that have been sent
    std::uint64_t next_number = 0;  // number of the next packet
    std::uint64_t high_number = 0;  // packets below it are retransmissions
    std::uint64_t acknowledged = 0;  // packets below it were acknowledged
    std::uint8_t retries_left = 7;
    std::uint8_t rnr_retries_left = 7;
    nanoseconds rnr_until{0};
    nanoseconds deadline{0};
    bool has_timer = false;
    bool is_asleep = false;  // stalled until the next doorbell
    // One gap is retransmitted once: packets below this number may report the same gap again.
    std::uint64_t recovering_below = 0;
    nanoseconds link_free{0};  // keeps packets in order

    // The receive queue.
    std::deque<receive_work> receives;
    std::uint64_t receives_posted = 0;
    std::uint64_t receives_freed = 0;
    // The responder.
    std::uint64_t expected = 0;
    bool has_complained = false;  // a NAK was sent for this gap; not sent again
    std::optional<receive_work> receiving;
    std::uint64_t received_bytes = 0;  // of a message that has not arrived whole
    std::map<std::uint64_t, std::uint64_t> atomic_answers;
    std::size_t answers_under_way = 0;
    std::deque<answer> answers;
    // An acknowledgement that is sent with the next flush, for all packets before it.
    std::optional<std::uint64_t> due_acknowledgement;

    bool flush_is_due = false;
    std::size_t flushed_sends = 0;
    std::size_t flushed_receives = 0;
    bool has_said_last = false;  // LAST_WQE_REACHED was raised
    unsigned async_given = 0;
    unsigned async_acknowledged = 0;
    network* net = nullptr;

    // --- queue_pair.cpp --------------------------------------------------------------------------
    shared_receive_queue* shared() const noexcept {
        return static_cast<shared_receive_queue*>(srq);
    }
    /// 0, or the errno with which the post of this request fails.
    int check_send(ibv_send_wr const& wr) const;
    /// Drops all work without completions, and invalidates the pending events of this queue pair.
    void forget_work();
    void doorbell();
    /// Moves to the error state: posted work requests are flushed.
    void move_to_error();
    /// The same, as a fault of the device: also raises IBV_EVENT_QP_FATAL.
    void fail();
    void flush_soon();
    void flush_now();

    // --- requester.cpp ---------------------------------------------------------------------------
    void transmit();
    /// Sends the responses that had to wait.
    void send_answers();
    void send_due_acknowledgement();
    /// Sends to other processes what a device would have sent already: work that was posted, and, room or
    /// not, the acknowledgement of each message that the program has. A response that is under way ends with the queue pair.
    void send_last();
    void send_packet(packet p);
    bool has_room() const;
    void arrive(packet const& p);

private:
    bool send_next();
    std::optional<ibv_wc_status> settle_locally(send_work const& work);
    packet make_request(send_work const& work) const;
    std::optional<packet_payload> bytes_of(send_work const& work) const;
    bool fits_in_flight(send_work const& work) const;
    void go_back(std::uint64_t number);
    void skip_acknowledged();
    void progress();
    nanoseconds patience() const;
    void start_timer();
    void on_timer();
    void retire_sends(std::uint64_t taken_below);
    void complete_send(ibv_wc_status status);
    void fail_oldest(ibv_wc_status status);
    void on_acknowledge(packet const& p);
    void on_negative(packet const& p);
    void on_answer(packet const& p);
    nanoseconds travel();

    // --- responder.cpp ---------------------------------------------------------------------------
    bool is_consistent(packet const& p) const;
    void on_request(packet const& p);
    void on_duplicate(packet const& p);
    void execute(packet const& p);
    void execute_send(packet const& p);
    void execute_write(packet const& p);
    void execute_read(packet const& p);
    void execute_atomic(packet const& p);
    void take(packet const& p);
    bool take_receive();
    void complete_receive(packet const& p, ibv_wc_status status);
    bool may_answer(packet const& p);
    void reply(packet p, bool is_counted = false);
    bool send_read_part(answer& next);
    void finish_answer();
    void end_answer() { --answers_under_way; }
    void acknowledge(std::uint64_t number);
    void complain(std::uint64_t number, packet::refusal why);
    void refuse(packet const& p, packet::refusal why);
};

struct cm_event : rdma_cm_event {
    std::array<std::byte, 256> data{};
    std::uint64_t owner = 0;  // the id that receives it; the listener of a request
    std::uint64_t child = 0;  // the new id of a request
};

struct cm_channel : rdma_event_channel {
    doorbell_descriptor ready;
    std::deque<std::unique_ptr<cm_event>> events;
};

/// The parameters that one side offers in the handshake.
struct terms {
    std::uint32_t qp_num = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t retry_count = 7;
    std::uint8_t rnr_retry_count = 7;
    std::uint8_t traffic_class = 0;
    std::uint32_t path_mtu_bytes = 1024;  // of the sender's device
    std::vector<std::byte> private_data;
};

/// A message between two connection managers.
struct cm_message {
    enum class kind : std::uint8_t {
        request,
        reply,
        ready,
        rejection,
        disconnect_request,
        disconnect_reply
    };

    kind what = kind::request;
    // The addresses of both sides, with their ports.
    address from;
    address to;
    // The number of the sender's id; 0 if it has none.
    std::uint64_t from_id = 0;
    // The number of the receiver's id; 0 while the sender does not know it.
    std::uint64_t to_id = 0;
    int reason = 0;  // of a rejection
    terms with;
};

/// What librdmacm's sockets read behind an id, besides its functions: its private structure up to what they need. Source:
/// librdmacm/cma.h and cma.c of rdma-core 44 to 64, struct cma_id_private.
struct insides_of_librdmacm : rdma_cm_id {
    insides_of_librdmacm() : rdma_cm_id{} {}

    void* cma_device = nullptr;  // null: they ask all devices for their limits
    void* connect_data = nullptr;
    std::size_t connect_bytes = 0;
    int events_completed = 0;
    int connect_error = 0;
    // 1 if the id has a channel of its own, and its functions wait for their events.
    int is_synchronous = 0;
};

struct cm_id : insides_of_librdmacm {
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
    device* borrowed = nullptr;  // whose context it uses
    address local;
    address remote;
    std::uint64_t peer = 0;  // the other side's id
    std::uint64_t listener = 0;  // the listener; 0 once the request was taken
    terms own;
    terms theirs;
    std::optional<std::uint8_t> ack_timeout;
    std::uint8_t type_of_service = 0;
    int backlog = 0;
    std::size_t waiting_requests = 0;
    bool is_abandoned = false;
    bool is_active = false;
    bool uses_default_pd = false;
    // What a synchronous listener's requests get.
    ibv_pd* accepted_pd = nullptr;
    std::optional<ibv_qp_init_attr> accepted_attributes;
    std::size_t events_given = 0;
    std::size_t events_acknowledged = 0;
};

}  // namespace rcverbs::fabric::detail
