// protocol.hpp — the messages between client and server; checks all data from the peer.
//
// Texts are JSON objects that alternate on the control connection: the client's hello and the
// server's answer, then orders and their answers. Greetings are private data of the measured
// connections. A peer that breaks the protocol causes a protocol_error.
#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <rcverbs/remote_region.hpp>

#include "rdma-bench/layout.hpp"
#include "rdma-bench/machine.hpp"
#include "rdma-bench/plan.hpp"
#include "rdma-bench/result.hpp"

namespace rdma_bench {

/// Client and server must have the same version.
inline constexpr int protocol_version = 3;

/// The peer sent data that violates the protocol.
class protocol_error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Reads one text. Throws protocol_error unless it is a JSON object.
nlohmann::json parse_text(std::string_view text);

// --- the client's hello --------------------------------------------------------------------------

nlohmann::json make_hello(plan const& p);
/// The plan. Throws protocol_error, with a text for the client, if the hello has no plan or the
/// plan is invalid.
plan parse_hello(nlohmann::json const& hello);

// --- the server's answer -------------------------------------------------------------------------

struct readiness {
    /// The port for the measured connections.
    std::uint16_t port = 0;
    /// A client that sends nothing for this long is disconnected.
    std::chrono::milliseconds patience{0};
    /// The server's machine.
    side_facts machine = {};
    /// A random number that measured connections must name: only those of this client do.
    std::uint64_t token = 0;
};

nlohmann::json make_ready(readiness const& r);
readiness parse_ready(nlohmann::json const& answer);

/// Private data of a rejected control connection: the server is busy with another client.
std::vector<std::byte> busy_mark();
bool is_busy_mark(std::span<std::byte const> private_data) noexcept;

// --- orders --------------------------------------------------------------------------------------

/// One round of a plan: one size.
struct round {
    std::uint64_t size_bytes;
    /// The contents' seed; a different one each round.
    std::uint64_t seed;
};

enum class order_kind : std::uint8_t { pin, begin, measure, run, end, bye };

struct order {
    order_kind kind = order_kind::bye;
    /// Of `begin`: one of the plan's sizes.
    round next{};
    /// Of `end`: the client's operation count of each connection.
    std::vector<std::uint64_t> operations;
};

/// The text by which the client keeps the control connection alive during a measurement. It has no
/// answer.
inline constexpr std::string_view alive_text = R"({"order":"alive"})";

nlohmann::json make_order(order const& o);
order parse_order(nlohmann::json const& text, plan const& p);

/// Which order is due: pin, when all connections are there; then begin, measure, run (of a plan for both
/// directions) and end for each size. The test "connect" has no sizes: measure and end. bye at any time.
class order_of_orders {
public:
    explicit order_of_orders(plan const& p);

    /// Throws protocol_error if the order is not due. `connections` are there.
    void check(order_kind next, std::size_t connections);

private:
    bool const has_rounds_;
    bool const is_bidirectional_;
    std::size_t const connections_;
    bool is_pinned_ = false;
    bool has_begun_ = false;
    bool has_run_ = false;
};

/// The server's measurement, from its answer to `end`.
side_result parse_result(nlohmann::json const& answer);
/// The server's operation count of each connection, from its answer to `end`.
std::vector<std::uint64_t> parse_operations(nlohmann::json const& answer, plan const& p);

// --- greetings -----------------------------------------------------------------------------------

/// A greeting is connection manager private data: each end of a measured connection sends the
/// region that its peer may use, and the token of the benchmark.
inline constexpr std::size_t greeting_bytes = 40;
std::array<std::byte, greeting_bytes> encode_greeting(
    rcverbs::remote_region const& exposed, std::uint64_t token
) noexcept;
/// The peer's region. Throws protocol_error if it is no valid greeting, names another token, or if
/// the region does not fit the plan.
rcverbs::remote_region decode_greeting(
    std::span<std::byte const> private_data, plan const& p, std::uint64_t token
);

}  // namespace rdma_bench
