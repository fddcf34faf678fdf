// plan.hpp — what is to be measured: everything that both sides have to know, as the client tells it to the server.
//
// A value. Travels as JSON on the control connection, so what comes from the peer is checked.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <rcverbs/options.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rdma_bench {

/// What the connections do.
enum class operation : std::uint8_t { write, read, send, write_imm, fetch_add, compare_swap, connect };
/// As many operations at a time as `depth` says, or one after another.
enum class measure : std::uint8_t { bandwidth, latency };
/// The pages that memory is made of.
enum class page_kind : std::uint8_t { small, huge };
/// Memory registered once, or anew for each operation.
enum class registration : std::uint8_t { once, per_operation };

char const* name(operation o) noexcept;
char const* name(measure m) noexcept;
char const* name(page_kind p) noexcept;
char const* name(registration r) noexcept;
char const* name(rcverbs::poll_mode m) noexcept;

/// True if the peer's program takes part in each operation, by a receive.
constexpr bool is_received(operation o) noexcept { return o == operation::send || o == operation::write_imm; }
constexpr bool is_atomic(operation o) noexcept { return o == operation::fetch_add || o == operation::compare_swap; }

/// Limits of what a client may ask a server for.
inline constexpr std::uint64_t size_bytes_max = std::uint64_t{1} << 30;
inline constexpr std::uint32_t depth_max = 16'384;
inline constexpr std::uint32_t connections_max = 16'384;

struct plan {
    operation what = operation::write;
    measure how = measure::bandwidth;
    /// Bytes of each operation, round by round; 8 for atomics.
    std::vector<std::uint64_t> sizes_bytes{65'536};
    /// Operations in flight on each connection. 1 to depth_max.
    std::uint32_t depth = 128;
    /// Operations in one list, with one doorbell and one completion. 1 to depth.
    std::uint32_t batch = 1;
    /// Receives that are kept posted. 1 to depth_max.
    std::uint32_t receives = 512;
    /// connection_options::inline_bytes_max.
    std::uint32_t inline_bytes = 0;
    rcverbs::polling_options polling;
    /// 1 to connections_max.
    std::uint32_t connections = 1;
    /// Polling threads that the connections share; one of its own for each if `own_threads`; 0 for none.
    std::uint32_t threads = 0;
    bool own_threads = true;
    /// Operations of each connection: how many before it is measured, and how many are. 0: for as long as `duration`.
    std::uint64_t warm_up = 100;
    std::uint64_t iterations = 0;
    std::chrono::milliseconds duration{2000};
    bool is_bidirectional = false;
    bool verifies = false;
    /// Damages a byte of what goes out, to try out the check.
    bool corrupts = false;
    page_kind pages = page_kind::small;
    /// The memory's address is a multiple of this, and of no greater power of two. 1 to 1 GiB.
    std::uint64_t alignment_bytes = 4096;
    registration registers = registration::once;

    /// The greatest of sizes_bytes.
    std::uint64_t size_bytes() const noexcept;
    /// True if the server's program has work to do in each operation.
    bool server_works() const noexcept {
        return is_received(what) || is_bidirectional || (what == operation::write && how == measure::latency);
    }
    /// Why it cannot be carried out; empty if it can.
    std::string problem() const;
};

void to_json(nlohmann::json& out, plan const& p);
/// Throws nlohmann::json::exception on what is no plan. Not checked: problem().
void from_json(nlohmann::json const& in, plan& p);

}  // namespace rdma_bench
