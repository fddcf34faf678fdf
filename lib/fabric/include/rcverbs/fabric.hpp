// fabric.hpp — RDMA devices in memory, for tests that need no device, no kernel module and no root.
//
// A program that is linked with rcverbs::fabric gets its libibverbs and librdmacm from here: the same calls, answered by
// a model of reliable connections in which bytes really move, queues really fill and peers really die. The program under
// test is unchanged and knows nothing of it. The model is stricter than SoftRoCE where SoftRoCE is lax.
//
// A `world` is one such network, with its devices, its clock and its faults. One exists at a time in a process; without
// one there are no RDMA devices. Make it first and destroy it last: every io_context, connection and buffer must be gone
// before it.
//
//     rcverbs::fabric::world world;            // two devices: 10.0.0.1 and 10.0.1.1
//     boost::asio::io_context io;
//     ...                                      // acceptor, connection, coroutines, all on io
//     world.run(io);                           // until io has nothing left to do
//
// Time. In a `stepped` world one thread does everything, time stands still while nothing happens, and whatever could
// race is ordered by the seed: the same seed gives the same run. CLOCK_MONOTONIC, which std::chrono::steady_clock and
// Asio's timers read, is the world's clock then, so deadlines of seconds pass in microseconds. What is under test must
// run on the io_context that run() is given (connection_options::progress = progress_on::context), with no threads of
// its own. In a `real` world the clock is the machine's and a thread carries the packets: for programs with threads.
//
// Threads. A `real` world's functions may be called from any thread; a `stepped` world's from its one thread.
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
}

/// How time passes and who moves the packets.
enum class scheduling : std::uint8_t {
    /// One thread, a clock that only events move, an order that the seed decides.
    stepped,
    /// The machine's clock, and a thread of the world's own.
    real,
};

/// What a device is and can do. The defaults are those of a plain adapter.
struct device_options {
    std::string name;
    /// IPv4 and IPv6 addresses, in text. Networks are /24 and /64.
    std::vector<std::string> addresses;

    std::uint32_t queue_depth_max = 16384;
    std::uint32_t completion_queue_depth_max = 65535;
    std::uint32_t segments_max = 16;
    std::uint32_t inline_bytes_max = 256;
    /// Reads and atomics in flight, as initiator and as responder.
    std::uint32_t read_depth_max = 16;
    /// The longest message. The device enforces it.
    std::uint32_t message_bytes_max = 1U << 30;
    /// How many bytes a packet carries: 256, 512, 1024, 2048 or 4096.
    std::uint32_t path_mtu_bytes = 1024;
    bool has_atomics = true;
    /// Whether it sends with invalidate: the base memory management extensions.
    bool has_send_with_invalidate = true;
    /// Whether it gives itself out as SoftRoCE.
    bool is_softroce = false;
};

/// What the world is made of.
struct world_options {
    scheduling mode = scheduling::stepped;
    /// Decides the order of everything that may race. None: drawn at random, or taken from the environment variable
    /// RCVERBS_FABRIC_SEED, so that a failing run can be repeated.
    std::optional<std::uint64_t> seed;
    /// None: fab0 with 10.0.0.1 and fd00::1, fab1 with 10.0.1.1 and fd00:1::1. A client without a source address leaves
    /// through another device than the one it goes to, if there is one: packets cross the network.
    std::vector<device_options> devices;
    /// How long a packet travels: between these, as the seed decides. In a `real` world, 0.
    std::chrono::nanoseconds latency_min{500};
    std::chrono::nanoseconds latency_max{5000};
};

/// A packet on its way, for on_packet.
struct packet_info {
    enum class kind : std::uint8_t { send, write, read_request, atomic, acknowledge, negative, read_response, atomic_response };

    kind what;
    std::uint32_t source_qp;
    std::uint32_t target_qp;
    /// Packet sequence number; packets that are sent again have it again.
    std::uint64_t sequence;
    std::size_t payload_bytes;
};

/// What becomes of a packet.
struct packet_fate {
    enum class kind : std::uint8_t { deliver, drop, duplicate, delay };

    kind what = kind::deliver;
    /// For `delay`: how much longer it takes. Later packets overtake it.
    std::chrono::nanoseconds by{0};
};

/// An event of the connection manager on its way to a program, for on_cm_event. The connecting side's ESTABLISHED is
/// still a CONNECT_RESPONSE here: librdmacm makes the one of the other when the program takes it.
struct cm_event_info {
    /// enum rdma_cm_event_type.
    int type;
    /// 0, a negative errno, or a reason for a rejection.
    int status;
    /// The device it concerns; empty before an address is resolved.
    std::string_view device;
};

/// What becomes of it.
struct cm_event_fate {
    enum class kind : std::uint8_t { deliver, lose, delay };

    kind what = kind::deliver;
    std::chrono::nanoseconds by{0};
};

/// How queue pairs give back what was posted when they break.
struct flush_policy {
    /// How long they take before the first.
    std::chrono::nanoseconds delay{0};
    /// How many at most, on each queue; the rest never comes. None: all.
    std::optional<std::size_t> completions_max;
};

/// How many of each there are: what a program has not given back.
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

/// What a device has seen, since the world was made.
struct device_counters {
    std::uint64_t packets_sent = 0;
    std::uint64_t packets_sent_again = 0;
    std::uint64_t receiver_not_ready_sent = 0;
    std::uint64_t doorbells = 0;
    std::uint64_t send_requests = 0;
    std::uint64_t inline_requests = 0;
    /// Calls to post that were refused, in whole or in part: a program that keeps account has none.
    std::uint64_t posts_refused = 0;
    std::uint64_t overruns = 0;
    std::uint64_t completions = 0;
};

/// A network of RDMA devices in memory: with its devices, its clock and its faults. Threads: see the head of this file.
class world {
public:
    /// Throws std::logic_error if there is one already, std::invalid_argument for an address that is none.
    explicit world(world_options options = {});
    /// Says the seed on stderr if the program is leaving by an exception, as a failing test does.
    ~world();
    world(world const&) = delete;
    world& operator=(world const&) = delete;

    /// The seed that repeats this run.
    std::uint64_t seed() const noexcept;

    // --- time --------------------------------------------------------------------------------------------------

    /// The time since the world was made.
    std::chrono::nanoseconds now() const;

    /// Runs the program's handlers and the network's events, in the order that the seed decides, until `io` has no work
    /// left. Returns false if it has work left, but nothing will happen in a month. A real world runs `io`, on this thread.
    bool run(boost::asio::io_context& io);

    /// The same, until `done()`; false if it never came true.
    bool run_until(boost::asio::io_context& io, std::function<bool()> const& done);

    /// The same, for a time.
    void run_for(boost::asio::io_context& io, std::chrono::nanoseconds duration);

    /// For programs without an io_context: lets the next thing happen; false if there is none. REQUIRES: stepped.
    bool step();

    // --- looking -----------------------------------------------------------------------------------------------

    object_counts live() const;
    device_counters counters(std::string_view device) const;
    /// The names of the C functions called so far, in order, but for ibv_poll_cq, which is called all the time.
    std::vector<std::string> calls() const;
    /// How often a function was called; ibv_poll_cq, too.
    std::size_t call_count(std::string_view function) const;

    /// True while this thread is inside the fabric: a program that counts what it allocates leaves that out.
    static bool is_inside() noexcept;

    // --- faults ------------------------------------------------------------------------------------------------

    /// The n-th call of a C function from now on (1: the next) fails with `error`, an errno. Functions that cannot fail
    /// do what they always do. The result is what the function's manual page says: null, -1 or the code.
    void fail_call(std::string_view function, std::size_t nth, int error);
    /// True if a failure that was ordered has happened.
    bool has_failed_call() const;

    /// The n-th request posted to any send queue from now on (1: the next) completes with `status`, an ibv_wc_status, and
    /// without doing its work.
    void fail_work(std::size_t nth, int status);

    /// Asked about every packet; null: all are delivered. It must not call the program or the world.
    void on_packet(std::function<packet_fate(packet_info const&)> decide);

    /// Asked about every event of the connection manager; null: all are delivered. As above.
    void on_cm_event(std::function<cm_event_fate(cm_event_info const&)> decide);

    /// The next connection request that reaches a device is rejected with `reason`, without reaching a program.
    void reject_next_request(int reason);

    void set_flush(flush_policy policy);

    /// The process that used this device was killed: its kernel tells its peers. For the program under test its queue
    /// pairs break and its ids hear nothing any more, so that what it had can be taken apart.
    void kill_program(std::string_view device);
    /// The machine of this device is gone: nothing is sent or received any more, nobody is told.
    void power_off(std::string_view device);
    /// The device is pulled out: its users get the connection manager's and the device's removal events.
    void remove_device(std::string_view device);
    /// The link is down: nothing passes, the device's users get an event; and up again.
    void port_down(std::string_view device);
    void port_up(std::string_view device);
    /// The addresses of the device's port are taken away; its users get an event. What is connected by them goes on.
    void lose_addresses(std::string_view device);
    /// The device finds its queue pairs broken, without a completion that says so; their users get an event.
    void fail_queue_pairs(std::string_view device);
    /// The send queues of the device go to sleep, as SoftRoCE's may: nothing more of what is posted is sent and no timer runs,
    /// until the program posts to that queue again; something that is refused will do.
    void stop_send_queues(std::string_view device);
    /// All completion queues of the device behave as after an overrun.
    void overrun(std::string_view device);

private:
    std::unique_ptr<detail::network> impl_;
    int exceptions_before_;
};

}  // namespace rcverbs::fabric
