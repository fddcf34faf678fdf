// options.hpp — everything about a connection that can be chosen.
//
// Every limit and deadline is a field with its default and range beside it. A value out of range is refused with
// errc::invalid_option when the connection is made; a value beyond the device's limits is clamped to them, and what
// took effect is read back with connection::limits(). Values; no threading rule.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include <rcverbs/endpoint.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/poller.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/shared_receive_queue.hpp>

namespace rcverbs {

/// Whose thread runs a connection's completions and handlers.
enum class progress_on {
    /// A polling thread: connection_options::shared_poller, or one of the connection's own.
    poller,
    /// The caller's io_context, without any thread of the library's.
    context,
};

/// How a connection is made and what it can hold.
struct connection_options {
    // --- reliability, as the queue pair is told -----------------------------------------------------------------

    /// How often the peer tries again when it finds no receive posted here, before its send fails: the connection manager
    /// carries it over, so each side decides for the other. 0 to 7; 7 means for ever. Source: rdma_connect(3).
    std::uint8_t rnr_retry_count = 6;
    /// How often a packet without an answer is sent again. 0 to 6 (7 means for ever on some devices, so it is refused). Without effect
    /// on the accepting side: the connecting side's holds for both. Source: rdma_accept(3).
    std::uint8_t retry_count = 6;
    /// How long to wait for an answer before sending again. 4.096 us to 8800 s, rounded up to 4.096 us x 2^n.
    /// A vanished peer is noticed after about (retry_count + 1) times this.
    std::chrono::nanoseconds ack_timeout = std::chrono::milliseconds{134};
    /// How long a peer that found no receive posted here is told to wait. 10 us to 655.36 ms, rounded up to a value the
    /// specification knows.
    std::chrono::nanoseconds min_rnr_timer = std::chrono::microseconds{640};

    // --- queues ----------------------------------------------------------------------------------------------

    /// Sends, reads, writes and atomics that may be posted at a time. 1 to the device's queue_depth_max.
    std::uint32_t send_queue_depth = 64;
    /// Receives that may be posted at a time. 1 to the device's queue_depth_max.
    std::uint32_t receive_queue_depth = 32;
    /// Operations of either kind that may wait for a place in their queue; one more is refused with errc::queue_full.
    std::uint32_t waiting_operations_max = 192;
    /// Reads and atomics that this side may have outstanding. 0 to 255; negotiated with the peer.
    std::uint8_t initiator_depth = 16;
    /// Reads and atomics of the peer's that this side answers at a time. 0 to 255; negotiated with the peer.
    std::uint8_t responder_resources = 16;
    /// Slices that one send gathers, and that one work request of a read or write does: with more, a read or write takes
    /// several. 1 to the device's segments_max.
    std::uint32_t send_segments_max = 4;
    /// Slices that one receive scatters to. 1 to the device's segments_max.
    std::uint32_t receive_segments_max = 4;
    /// Sends and writes of up to so many bytes travel inside their work request, which saves the device a look at memory;
    /// longer ones do not. 0 for none, since it brings 1 to 3 % at 8 bytes (docs/benchmarks/method.md), and devices take room for
    /// it from every request. Halved until the device makes a queue pair with it.
    std::uint32_t inline_bytes_max = 0;

    // --- deadlines -------------------------------------------------------------------------------------------

    /// For finding the device and the neighbour. Above 0.
    std::chrono::milliseconds resolve_address_deadline{2000};
    /// For finding the path. Above 0.
    std::chrono::milliseconds resolve_route_deadline{2000};
    /// For the peer's answer to connect. On the accepting side: for the program's answer to a request it has taken, and then
    /// for the end of the handshake. Above 0.
    std::chrono::milliseconds connect_deadline{5000};
    /// For the peer's answer to disconnect. Above 0.
    std::chrono::milliseconds disconnect_deadline{2000};
    /// For the device to return all posted work once the queue pair is stopped. Above 0.
    std::chrono::milliseconds drain_deadline{1000};
    /// How long the oldest posted send, read, write or atomic may stay unanswered before the connection is given up, with
    /// errc::stalled; noticed about an eighth later at most. 0 for no limit. A reliable connection has none of its own for a peer
    /// that answers "receiver not ready" for ever, and receives may always wait.
    std::chrono::milliseconds stall_timeout{30'000};
    /// How long nothing may be heard of the peer before it is asked for a sign of life: by a write of no bytes, which its
    /// device answers and its program does not see. If it does not answer, the connection fails after ack_timeout and
    /// retry_count, as with any work. Noticed up to an eighth later; 0 for never, and then the end of a peer that loses its
    /// power shows only when something is sent to it. The peer's queue pair must allow writes, as the connection manager
    /// sees to by default.
    std::chrono::milliseconds keepalive_interval{0};
    /// How long the connection may go without an operation of this side's, receives included, that completes, before it is
    /// closed with errc::idle; noticed about an eighth later at most. What the peer reads and writes is not seen. 0 for no limit.
    std::chrono::milliseconds idle_timeout{0};

    // --- progress and placement ------------------------------------------------------------------------------

    /// Whose thread polls.
    progress_on progress = progress_on::poller;
    /// How it polls.
    polling_options polling;
    /// The poller to share; one of the connection's own if not open. Only with progress_on::poller.
    poller shared_poller;
    /// The receives to take from, instead of ones of the connection's own; its own if not valid. Not with private_domain.
    shared_receive_queue shared_receives;
    /// The local address to connect from; chosen by the route if empty.
    std::optional<boost::asio::ip::address> bind_address;
    /// True to give the connection a protection domain of its own instead of the one its io_context shares per device: a key
    /// of another connection's memory opens nothing here. Costs what registering memory for each connection costs.
    bool private_domain = false;
    /// The protection domain to use, instead of either; neither if not open. Not with private_domain. The connection fails with errc::foreign_domain
    /// if it is of another device than the address leads to.
    protection_domain domain;

    /// True to give the connection up as soon as its port is down, with errc::port_down. False to leave that to ack_timeout and
    /// retry_count: then it may outlive a short interruption.
    bool ends_on_port_down = true;

    /// Called when a step has succeeded (resolve_address, resolve_route, connect, accept), on the connection's
    /// executor, before the handler of the operation that the step belongs to. Must not throw.
    std::function<void(step)> on_step;
};

/// What took effect of the options, after clamping to the device and negotiation with the peer.
struct connection_limits {
    /// See connection_options.
    std::uint32_t send_queue_depth = 0;
    /// See connection_options.
    std::uint32_t receive_queue_depth = 0;
    /// Negotiated; known once established. 0 means that reads and atomics are refused.
    std::uint32_t initiator_depth = 0;
    /// Negotiated; known once established.
    std::uint32_t responder_resources = 0;
    /// See connection_options.
    std::uint32_t send_segments_max = 0;
    /// See connection_options.
    std::uint32_t receive_segments_max = 0;
    /// See connection_options.
    std::uint32_t inline_bytes_max = 0;
    /// Bytes in one send. A read or write may be longer: it is cut.
    std::uint64_t message_bytes_max = 0;
};

/// How long it takes at worst until a connection with certain options has noticed that its peer or the path to it is gone,
/// though nothing tells so: no power, a pulled cable. A peer whose process ends is noticed at once.
struct detection_time {
    /// While work is outstanding.
    std::chrono::nanoseconds busy;
    /// While none is. nanoseconds::max(): never, for want of keepalive_interval and idle_timeout.
    std::chrono::nanoseconds idle;
};

/// By the specification: a queue pair waits for an answer for up to four times the ack timeout, retry_count + 1 times; devices
/// of which anything is known to us take a quarter of that. Takes into account the rounding of ack_timeout. Of an acceptor's
/// options it holds if the clients have the same retry_count.
RCVERBS_EXPORT detection_time worst_case_detection(connection_options const& options) noexcept;

/// The shortest and the longest time that detect_within() takes.
inline constexpr std::chrono::milliseconds detect_within_min{10};
/// As above.
inline constexpr std::chrono::milliseconds detect_within_max{std::chrono::hours{1}};

/// Sets ack_timeout and keepalive_interval so that worst_case_detection() is at most `within`, busy or idle. retry_count stays
/// as it is: more retries make each wait shorter. What is much shorter than the time that the path takes to answer, at its
/// worst, fails connections that are well.
///
/// @throws boost::system::system_error: errc::invalid_option if `within` is not in the range above.
RCVERBS_EXPORT void detect_within(connection_options& options, std::chrono::milliseconds within);

}  // namespace rcverbs
