// fabric.hpp — in-memory RDMA devices, for tests that need no device, no kernel module and no root.
//
// A program that is linked with rcverbs::fabric calls the libibverbs and librdmacm functions of
// this library instead of the real ones. A model of reliable connections implements them: bytes are
// really copied, queues fill up, and peers fail. The program under test needs no change. The model
// is stricter than SoftRoCE where SoftRoCE is lax.
//
// A `world` is one such network, with its devices, its clock and its faults. A process has at most
// one at a time; without one there are no RDMA devices. Create it first and destroy it last: every
// io_context, connection and buffer must be destroyed before it.
//
//     rcverbs::fabric::world world;            // two devices: 10.0.0.1 and 10.0.1.1
//     boost::asio::io_context io;
//     ...                                      // acceptor, connection, coroutines, all on io
//     world.run(io);                           // until io has nothing left to do
//
// Time. In a `stepped` world one thread does everything, and the clock advances only when something
// happens. The seed decides the order of all events that could race: the same seed gives the same
// run. The world's clock replaces CLOCK_MONOTONIC, which std::chrono::steady_clock and Asio's
// timers read, so deadlines of seconds pass in microseconds. The code under test must run on the
// io_context that is passed to run(), with no threads of its own. A `real` world uses the machine's
// clock, and a thread delivers the packets: for programs with threads.
//
// Threads. Any thread may call the functions of a `real` world; only its one thread may call those
// of a `stepped` world.
#pragma once

#include <boost/asio/io_context.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rcverbs::fabric {

namespace detail {
class network;
}  // namespace detail

/// How time advances, and which thread delivers the packets.
enum class scheduling : std::uint8_t {
    /// One thread. Only events advance the clock, and the seed decides their order.
    stepped,
    /// The machine's clock, and a thread of the world that delivers the packets. For programs with
    /// threads, which run their io_contexts themselves. Runs are not repeatable.
    real,
};

/// The properties and limits of a device. The defaults are those of a plain adapter.
struct device_options {
    std::string name;
    /// IPv4 and IPv6 addresses, in text. Networks are /24 and /64.
    std::vector<std::string> addresses;

    std::uint32_t queue_depth_max = 16384;
    std::uint32_t completion_queue_depth_max = 65535;
    std::uint32_t segments_max = 16;
    std::uint32_t inline_bytes_max = 256;
    /// The limit on reads and atomics in flight, as initiator and as responder.
    std::uint32_t read_depth_max = 16;
    /// The longest message. The device enforces it.
    std::uint32_t message_bytes_max = 1U << 30;
    /// Bytes in one memory region, and regions of the device. It enforces both.
    std::uint64_t region_bytes_max = ~std::uint64_t{0};
    std::uint32_t regions_max = 1U << 24;
    /// The payload bytes of a packet: 256, 512, 1024, 2048 or 4096.
    std::uint32_t path_mtu_bytes = 1024;
    bool has_atomics = true;
    /// Whether it supports send with invalidate: the base memory management extensions.
    bool has_send_with_invalidate = true;
    /// Whether it says that it is an iWARP device, which has no immediate data, and reads into one
    /// segment only.
    bool is_iwarp = false;
    /// Whether it is Soft iWARP. That completes what follows a read before it, unless it has a fence, and
    /// takes no send with invalidate inline: the fabric refuses both with EINVAL. And it reports the depths
    /// of reads the other way round.
    bool is_soft_iwarp = false;
    /// Whether it has memory windows of type 2.
    bool has_memory_windows = true;
    /// Whether it checks the range of a memory window. SoftRoCE does not: a window's key opens the
    /// whole region.
    bool checks_window_ranges = true;
    /// Whether it registers memory without pinning it.
    bool has_on_demand_paging = false;
    /// Whether it registers the memory of a file descriptor: a dmabuf, or a memfd in its place.
    bool has_dmabuf = true;
    /// Vectors for the events of completion queues.
    int completion_vectors = 1;
    /// What it offers beyond the specification (ibv_query_ece()), of the vendor 0x77; 0 for nothing.
    std::uint32_t ece_options = 0;
    /// Whether it reports the vendor id of SoftRoCE.
    bool is_softroce = false;
};

/// The configuration of a world.
struct world_options {
    scheduling mode = scheduling::stepped;
    /// Decides the order of all events that may race. None: the value of the environment variable
    /// RCVERBS_FABRIC_SEED, so that a failing run can be repeated, or a random one if that is not
    /// set.
    std::optional<std::uint64_t> seed;
    /// Empty: fab0 with 10.0.0.1 and fd00::1, fab1 with 10.0.1.1 and fd00:1::1. A client without a
    /// source address uses another device than that of its target, if there is one, so that packets
    /// cross the network.
    std::vector<device_options> devices;
    /// The latency of a packet, drawn from this range by the seed. In a `real` world, 0.
    std::chrono::nanoseconds latency_min{500};
    std::chrono::nanoseconds latency_max{5000};
};

/// A packet in flight, as passed to on_packet.
struct packet_info {
    enum class kind : std::uint8_t {
        send,
        write,
        read_request,
        atomic,
        acknowledge,
        negative,
        read_response,
        atomic_response
    };

    kind what;
    std::uint32_t source_qp;
    std::uint32_t target_qp;
    /// Packet sequence number; a retransmitted packet keeps it.
    std::uint64_t sequence;
    std::size_t payload_bytes;
};

/// The fate of a packet.
struct packet_fate {
    enum class kind : std::uint8_t { deliver, drop, duplicate, delay };

    kind what = kind::deliver;
    /// For `delay`: the additional latency. Later packets overtake it.
    std::chrono::nanoseconds by{0};
};

/// A connection manager event on its way to a program, as passed to on_cm_event. The connecting
/// side's ESTABLISHED is still a CONNECT_RESPONSE here: librdmacm converts it when the program
/// takes the event.
struct cm_event_info {
    /// enum rdma_cm_event_type.
    int type;
    /// 0, a negative errno, or the reason of a rejection.
    int status;
    /// The device that the event concerns; empty before an address is resolved.
    std::string_view device;
};

/// The fate of a connection manager event.
struct cm_event_fate {
    enum class kind : std::uint8_t { deliver, lose, delay };

    kind what = kind::deliver;
    std::chrono::nanoseconds by{0};
};

/// How queue pairs flush their work requests in the error state.
struct flush_policy {
    /// The delay before the first completion.
    std::chrono::nanoseconds delay{0};
    /// The maximum number of completions on each queue; the rest never arrives. None: no maximum.
    std::optional<std::size_t> completions_max;
};

/// A work completion on its way to its completion queue, as passed to on_completion.
struct completion_info {
    /// The number of the queue pair.
    std::uint32_t queue_pair;
    bool is_receive;
    /// False for an error, or a flush.
    bool is_success;
};

/// The fate of a work completion.
struct completion_fate {
    enum class kind : std::uint8_t { deliver, lose, delay };

    kind what = kind::deliver;
    /// For `delay`: how much later it is in the queue. Those behind it in the same queue wait for it.
    std::chrono::nanoseconds by{0};
};

/// What a device does when a queue pair is destroyed.
struct destroy_policy {
    /// Whether completions that were not polled are removed from the completion queue. Drivers of
    /// adapters do that; SoftRoCE does not.
    bool removes_completions = false;
    /// Whether the next queue pair gets the same number.
    bool reuses_numbers = false;
};

/// The number of objects of each kind that the program has not destroyed.
struct object_counts {
    std::size_t protection_domains = 0;
    std::size_t memory_regions = 0;
    std::size_t memory_windows = 0;
    std::size_t completion_channels = 0;
    std::size_t completion_queues = 0;
    std::size_t shared_receive_queues = 0;
    std::size_t queue_pairs = 0;
    std::size_t event_channels = 0;
    std::size_t cm_ids = 0;

    std::size_t total() const noexcept;
    bool operator==(object_counts const&) const = default;
};

/// The counters of a device, since the world was created.
struct device_counters {
    std::uint64_t packets_sent = 0;
    std::uint64_t packets_sent_again = 0;
    std::uint64_t receiver_not_ready_sent = 0;
    std::uint64_t doorbells = 0;
    std::uint64_t send_requests = 0;
    std::uint64_t inline_requests = 0;
    /// Post calls that failed, in whole or in part. A program that accounts for its queue slots has
    /// none.
    std::uint64_t posts_refused = 0;
    std::uint64_t overruns = 0;
    std::uint64_t completions = 0;
};

/// An in-memory network of RDMA devices, with its clock and its faults. Threads: see the head of
/// this file.
class world {
public:
    /// Throws std::logic_error if there already is a world, std::invalid_argument for an invalid
    /// address.
    explicit world(world_options options = {});
    /// A real world first waits until the polling threads of destroyed connections have destroyed
    /// their objects, at most 10 s. Prints the seed on stderr if an exception is unwinding the
    /// stack, as in a failing test.
    ~world();
    world(world const&) = delete;
    world& operator=(world const&) = delete;

    /// The seed that repeats this run.
    std::uint64_t seed() const noexcept;

    // --- time ------------------------------------------------------------------------------------

    /// The time since the world was created.
    std::chrono::nanoseconds now() const;

    /// Runs the program's handlers and the network's events, in the order that the seed decides,
    /// until `io` has no work left. Returns false if `io` has work left, but nothing happens for 30
    /// days. A real world runs `io` on this thread.
    bool run(boost::asio::io_context& io);

    /// The same, until `done()`; false if it did not become true.
    bool run_until(boost::asio::io_context& io, std::function<bool()> const& done);

    /// The same, for a duration.
    void run_for(boost::asio::io_context& io, std::chrono::nanoseconds duration);

    /// For programs without an io_context: runs the next event or timer; false if there is none.
    /// REQUIRES: stepped.
    bool step();

    // --- inspection ------------------------------------------------------------------------------

    object_counts live() const;
    device_counters counters(std::string_view device) const;
    /// True while librdmacm has the device open: from its first use, for ever, or until it was
    /// removed, rdma_get_devices() has noticed that, and no id and no device list uses it.
    bool is_device_open(std::string_view device) const;
    /// The names of the C functions called so far, in order, except ibv_poll_cq, which is called
    /// continuously.
    std::vector<std::string> calls() const;
    /// The number of calls of a function, also of ibv_poll_cq.
    std::size_t call_count(std::string_view function) const;

    /// True while this thread runs code of the fabric, so that a program that counts its
    /// allocations can exclude those of the fabric.
    static bool is_inside() noexcept;

    // --- faults ----------------------------------------------------------------------------------

    /// Makes the n-th call of a C function from now on (1: the next) fail with `error`, an errno.
    /// Functions that cannot fail work as usual. The call reports the failure as the function's
    /// manual page says: null, -1 or the code.
    void fail_call(std::string_view function, std::size_t nth, int error);
    /// Called at the beginning of each call of a C function, except ibv_poll_cq, on the thread that
    /// makes it, with the function's name; null: not called. It may call the program: a program that
    /// makes the call under a lock of its own hangs, or sees itself in the middle of something. Set
    /// it while no other thread runs code of the world.
    void on_call(std::function<void(std::string_view function)> watch);
    /// True if an ordered failure has happened.
    bool has_failed_call() const;

    /// Makes the n-th request posted to any send queue from now on (1: the next) complete with
    /// `status`, an ibv_wc_status, without being executed.
    void fail_work(std::size_t nth, int status);

    /// Moves a queue pair to the error state just before the n-th call of ibv_modify_qp from now on
    /// (1: the next), as a device does that rejects a request of the peer's at that moment.
    void break_queue_pair(std::size_t nth);

    /// Called for every packet; null: all are delivered. It must not call the program or the world.
    void on_packet(std::function<packet_fate(packet_info const&)> decide);

    /// Called for every connection manager event; null: all are delivered. The same restriction
    /// applies.
    void on_cm_event(std::function<cm_event_fate(cm_event_info const&)> decide);

    /// Rejects the next connection request that reaches a device with `reason`, before it reaches a
    /// program.
    void reject_next_request(int reason);

    void set_flush(flush_policy policy);

    /// Called for every work completion; null: all are delivered. It must not call the program or the
    /// world.
    void on_completion(std::function<completion_fate(completion_info const&)> decide);

    void set_destroy(destroy_policy policy);

    /// Kills the process that uses this device: its kernel disconnects its peers. For the program
    /// under test, the queue pairs of the device move to the error state and its ids receive no
    /// more events, so that the objects can be destroyed.
    void kill_program(std::string_view device);
    /// Switches off the machine of this device: it sends and receives nothing any more, and no peer
    /// is notified.
    void power_off(std::string_view device);
    /// Removes the device: its users receive the removal events of the connection manager and of
    /// the device.
    void remove_device(std::string_view device);
    /// Takes the link down, and up again. While it is down, no packet passes. The users of the
    /// device receive an event.
    void port_down(std::string_view device);
    void port_up(std::string_view device);
    /// Removes the addresses of the device's port; its users receive an event. Existing connections
    /// continue.
    void lose_addresses(std::string_view device);
    /// Moves the queue pairs of the device to the error state, as a fault of the device. No
    /// completion reports the cause; their users receive an event.
    void fail_queue_pairs(std::string_view device);
    /// Stalls the send queues of the device, as SoftRoCE may do: posted work requests are not sent
    /// and no timer runs, until the program posts to that queue again. A post that fails is
    /// sufficient.
    void stop_send_queues(std::string_view device);
    /// Puts all completion queues of the device into the state after an overrun.
    void overrun(std::string_view device);

private:
    std::unique_ptr<detail::network> impl_;
    int exceptions_before_;
};

}  // namespace rcverbs::fabric
