// options.hpp — the options of a connection.
//
//     connection_options o;
//     o.queue_pair.send_queue_depth = 128;
//     o.timeouts.connect = 2s;
//     o.liveness.keepalive_interval = 10s;
//     return connection{io, o};
//
// Each field has its default and range beside it. A value out of range is rejected with
// errc::invalid_option when the connection is made. A value beyond the device's limits is reduced
// to them; connection::limits() has the result. Values; no threading rule.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <variant>

#include <rcverbs/endpoint.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/shared_receive_queue.hpp>

namespace rcverbs {

/// Which connections share a protection domain: a memory key works on every connection of its
/// domain.
enum class domain_sharing {
    /// `isolated` for a connection that an acceptor makes without shared_receives, so that no
    /// client can use another's keys; else `shared`.
    automatic,
    /// One domain for all such connections of the execution context on a device: memory is
    /// registered once for all of them.
    shared,
    /// A domain of the connection's own: keys of other connections' memory are invalid on it.
    /// Memory is registered for each connection. Not with shared_receives.
    isolated,
};

/// Sizes and retry parameters of the queue pair.
struct queue_pair_options {
    /// Sends, reads, writes and atomics that may be posted at a time. 1 to the device's
    /// queue_depth_max.
    std::uint32_t send_queue_depth = 64;
    /// Receives that may be posted at a time. 1 to the device's queue_depth_max.
    std::uint32_t receive_queue_depth = 32;
    /// Operations of either kind that may wait for a free slot in their queue; one more fails with
    /// errc::queue_full. 0 or more.
    std::uint32_t waiting_operations_max = 192;
    /// Slices per send, and per work request of a read or write; a read or write with more slices
    /// is split into several work requests. 1 to the device's segments_max.
    std::uint32_t send_segments_max = 4;
    /// Slices per receive. 1 to the device's segments_max.
    std::uint32_t receive_segments_max = 4;
    /// Sends and writes of at most this many bytes are inline: the work request contains the data,
    /// so that the device need not read memory. 0 or more; halved until the device accepts it. The
    /// default is 0 because the gain is 1 to 3 % at 8 bytes (docs/benchmarks/method.md), and devices
    /// reserve the room in every request.
    std::uint32_t inline_bytes_max = 0;
    /// Reads and atomics that this side may have outstanding. 0 to 255; negotiated with the peer.
    std::uint8_t initiator_depth = 16;
    /// Reads and atomics of the peer that this side serves at a time. 0 to 255; negotiated with
    /// the peer.
    std::uint8_t responder_resources = 16;
    /// How often the peer retries a send that finds no receive posted on this side (RNR), before it
    /// fails. The connection manager transmits it, so each side chooses for the other. 0 to 7; 7
    /// means forever. Source: rdma_connect(3).
    std::uint8_t rnr_retry_count = 6;
    /// The RNR NAK delay that this side advertises: a peer that finds no receive posted here waits
    /// this long before it retries. 10 us to 655.36 ms, rounded up to a value of the specification.
    std::chrono::nanoseconds min_rnr_timer = std::chrono::microseconds{640};
    /// How often an unacknowledged packet is retransmitted. 0 to 6 (7 means forever on some
    /// devices, and is rejected). Without effect on the accepting side: the connecting side's value
    /// holds for both. Source: rdma_accept(3).
    std::uint8_t retry_count = 6;
    /// The time without an acknowledgement before a retransmission. 4.096 us to 8800 s, rounded up
    /// to 4.096 us x 2^n. A failed peer is detected after one to four times (retry_count + 1) x this:
    /// see worst_case_detection().
    std::chrono::nanoseconds ack_timeout = std::chrono::milliseconds{134};
};

/// The time that each step may take, from its beginning, before the connection fails.
struct timeout_options {
    /// For resolving the address to a device. Above 0.
    std::chrono::milliseconds resolve_address{2000};
    /// For resolving the route. Above 0.
    std::chrono::milliseconds resolve_route{2000};
    /// For the peer's answer to a connect. On the accepting side: for the program's answer to a
    /// request that it has taken, and then for the end of the handshake. Above 0.
    std::chrono::milliseconds connect{5000};
    /// For the peer's answer to disconnect. Above 0.
    std::chrono::milliseconds disconnect{2000};
    /// For the device to flush all posted work after the queue pair was stopped. Above 0.
    std::chrono::milliseconds drain{1000};
};

/// When a connection without answers, or without use, is closed.
struct liveness_options {
    /// The time that the oldest posted send, read, write or atomic may stay unanswered; then the
    /// connection fails with errc::stalled, at most about an eighth later. Above 0; empty for no
    /// limit. A queue pair itself has no limit for a peer that answers RNR forever. Receives may
    /// wait without limit.
    std::optional<std::chrono::milliseconds> stall_timeout = std::chrono::milliseconds{30'000};
    /// The time without any answer from the peer after which a keepalive is sent, at most about an
    /// eighth later: a write of no bytes, which the peer's device answers without its program.
    /// Without an answer the connection fails after ack_timeout and retry_count, as with any work.
    /// Above 0; empty for never: then a peer that loses power is detected only when something is
    /// sent to it. The peer's queue pair must allow writes, which is the connection manager's
    /// default.
    std::optional<std::chrono::milliseconds> keepalive_interval = {};
    /// The time without a completed operation of this side, receives included, after which the
    /// connection is closed with errc::idle, at most about an eighth later. Reads and writes of the
    /// peer do not count. Above 0; empty for no limit.
    std::optional<std::chrono::milliseconds> idle_timeout = {};
    /// True: the connection fails with errc::port_down as soon as its port is down. False: it fails
    /// only by ack_timeout and retry_count, and may survive a short interruption.
    bool ends_on_port_down = true;
};

/// Address, protection domain, shared receives, and how packets and events are marked.
struct placement_options {
    /// The local address to connect from; chosen by the route if empty. Without the connection manager
    /// it names the address (GID) of the device.
    std::optional<boost::asio::ip::address> bind_address = {};
    /// The protection domain to use: one that the program has opened, or how the library chooses
    /// one. The connection fails with errc::foreign_domain if a given domain belongs to another
    /// device than the address.
    std::variant<domain_sharing, protection_domain> domain = domain_sharing::automatic;
    /// The queue to take receives from; if not valid, the connection has receives of its own. Not
    /// with domain_sharing::isolated.
    shared_receive_queue shared_receives = {};
    /// The traffic class of the connection's packets, which switches and hosts map to a priority:
    /// the DSCP value times 4. 0 to 255; empty for the system's default. On RoCE v2 it is the type
    /// of service of the IP header; on InfiniBand the traffic class of the global route header, and
    /// the subnet manager may derive the service level from it; on iWARP the type of service of the
    /// TCP connection. The connecting side's value holds for both directions, except on iWARP.
    /// Source: rdma_set_option(3), RDMA_OPTION_ID_TOS.
    std::optional<std::uint8_t> traffic_class = {};
    /// The flow label of the connection's packets, 0 to 0xFFFFF, from which devices derive the UDP
    /// source port on RoCE v2, and so the path through a network with several. Only for connections
    /// without the connection manager: see basic_connection::prepare(). The manager chooses labels
    /// itself, so connecting with a label fails with errc::invalid_option. Empty: 0 without the
    /// manager. SoftRoCE ignores it.
    std::optional<std::uint32_t> flow_label = {};
    /// The service level of the connection's packets, 0 to 15: on InfiniBand the lane, on RoCE the priority in
    /// the VLAN tag. Only without the connection manager, as the flow label: the manager derives it from
    /// the route and the traffic class. Empty: 0 without the manager.
    std::optional<std::uint8_t> service_level = {};
    /// The routers that the connection's packets may pass, 1 to 255. Only without the connection manager,
    /// as the flow label. Empty: 64 without the manager.
    std::optional<std::uint8_t> hop_limit = {};
    /// The most bytes of data in a packet: 256, 512, 1024, 2048 or 4096. Only without the connection
    /// manager, as the flow label. Empty: what both ports have. A smaller value on either side holds
    /// for both: prepare() puts it into the address for the peer.
    std::optional<std::uint32_t> path_mtu_bytes = {};
};

/// All options of a connection.
struct connection_options {
    /// Sizes and retry parameters of the queue pair.
    queue_pair_options queue_pair = {};
    /// Timeouts of the steps.
    timeout_options timeouts = {};
    /// When a connection without answers, or without use, is closed.
    liveness_options liveness = {};
    /// Address, protection domain, shared receives, traffic class.
    placement_options placement = {};
    /// Called when a step has succeeded (resolve_address, resolve_route, connect, accept), on the
    /// connection's executor, before the handler of the operation that the step belongs to. Must
    /// not throw.
    std::function<void(step)> on_step = {};
};

/// The options in effect, after limits of the device and negotiation with the peer.
struct connection_limits {
    /// See queue_pair_options.
    std::uint32_t send_queue_depth = 0;
    /// See queue_pair_options.
    std::uint32_t receive_queue_depth = 0;
    /// Negotiated; known once established. With 0, reads and atomics fail.
    std::uint32_t initiator_depth = 0;
    /// Negotiated; known once established.
    std::uint32_t responder_resources = 0;
    /// See queue_pair_options.
    std::uint32_t send_segments_max = 0;
    /// See queue_pair_options.
    std::uint32_t receive_segments_max = 0;
    /// See queue_pair_options.
    std::uint32_t inline_bytes_max = 0;
    /// Bytes in one send. A longer read or write is split.
    std::uint64_t message_bytes_max = 0;
    /// See poller_options.
    std::uint32_t completion_vector = 0;
};

/// The longest time until a connection detects that its peer or the path to it has failed without
/// any message: no power, a pulled cable. The end of a peer's process is detected at once.
struct detection_time {
    /// While work is outstanding.
    std::chrono::nanoseconds busy;
    /// While no work is outstanding. nanoseconds::max() for never: without keepalive_interval and
    /// idle_timeout.
    std::chrono::nanoseconds idle;
};

/// Computes the detection time of these options. By the specification a queue pair waits up to four
/// times the ack timeout, retry_count + 1 times; the devices that were measured take a quarter of
/// that. Includes the rounding of ack_timeout. For an acceptor's options the result holds if the
/// clients have the same retry_count.
RCVERBS_EXPORT detection_time worst_case_detection(connection_options const& options) noexcept;

/// The shortest and the longest time that detect_within() takes.
inline constexpr std::chrono::milliseconds detect_within_min{10};
/// As above.
inline constexpr std::chrono::milliseconds detect_within_max{std::chrono::hours{1}};

/// Sets ack_timeout and keepalive_interval so that worst_case_detection() is at most `within`, busy
/// or idle. retry_count is unchanged: more retries make each wait shorter. A time much shorter than
/// the worst round trip of the path ends connections that work.
///
/// @throws boost::system::system_error: errc::invalid_option if `within` is not in the range above.
RCVERBS_EXPORT void detect_within(connection_options& options, std::chrono::milliseconds within);

}  // namespace rcverbs
