// plan.hpp — the parameters of a measurement, which the client sends to the server.
//
// A value. Travels as JSON on the control connection, so the receiver checks it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <rcverbs/device.hpp>
#include <rcverbs/options.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rdma_bench {

/// The operation to measure.
enum class operation : std::uint8_t {
    write,
    read,
    send,
    write_imm,
    fetch_add,
    compare_swap,
    connect
};
/// Bandwidth: `depth` operations in flight. Latency: one operation at a time. Paced: operations start at
/// a fixed rate, each timed.
enum class measure : std::uint8_t { bandwidth, latency, paced };
/// The page size of the memory.
enum class page_kind : std::uint8_t { small, huge };
/// Memory registered once, or before each operation.
enum class registration : std::uint8_t { once, per_operation };

char const* name(operation o) noexcept;
char const* name(measure m) noexcept;
char const* name(page_kind p) noexcept;
char const* name(registration r) noexcept;
char const* name(rcverbs::poll_mode m) noexcept;

/// True if each operation consumes a receive of the peer.
constexpr bool is_received(operation o) noexcept {
    return o == operation::send || o == operation::write_imm;
}
constexpr bool is_atomic(operation o) noexcept {
    return o == operation::fetch_add || o == operation::compare_swap;
}

/// Limits on a client's plan.
inline constexpr std::uint64_t size_bytes_max = std::uint64_t{1} << 30;
inline constexpr std::uint32_t depth_max = 16'384;
inline constexpr std::uint32_t connections_max = 16'384;
inline constexpr std::uint32_t threads_max = 1024;
inline constexpr std::uint32_t inline_bytes_max = 65'536;
inline constexpr std::uint64_t rate_max = 100'000'000;

struct plan {
    operation what = operation::write;
    measure how = measure::bandwidth;
    /// Bytes of each operation, one size per round; 8 for atomics.
    std::vector<std::uint64_t> sizes_bytes{65'536};
    /// Operations in flight on each connection. 1 to depth_max.
    std::uint32_t depth = 128;
    /// Operations that each connection starts per second, if `how` is paced. 1 to rate_max.
    std::uint64_t rate = 0;
    /// Operations in one list, posted with one doorbell and one completion. 1 to depth.
    std::uint32_t batch = 1;
    /// Receives kept posted. 1 to depth_max.
    std::uint32_t receives = 512;
    /// queue_pair_options::inline_bytes_max.
    std::uint32_t inline_bytes = 0;
    rcverbs::polling_options polling;
    /// 1 to connections_max.
    std::uint32_t connections = 1;
    /// Polling threads that the connections share, up to threads_max; one per connection if
    /// `own_threads`; 0: no polling threads.
    std::uint32_t threads = 0;
    bool own_threads = true;
    /// Operations of each connection before and during the measurement. `iterations` 0: for as long
    /// as `duration`.
    std::uint64_t warm_up = 100;
    std::uint64_t iterations = 0;
    std::chrono::milliseconds duration{2000};
    bool is_bidirectional = false;
    bool verifies = false;
    /// Damages one byte of the outgoing data, to test the verification.
    bool corrupts = false;
    page_kind pages = page_kind::small;
    /// The memory's address is a multiple of this, but not of twice this. 1 to 1 GiB.
    std::uint64_t alignment_bytes = 4096;
    registration registers = registration::once;

    bool is_timed() const noexcept { return how != measure::bandwidth; }
    /// The largest of sizes_bytes.
    std::uint64_t size_bytes() const noexcept;
    /// True if the server's program works for each operation.
    bool server_works() const noexcept {
        return is_received(what) || is_bidirectional ||
               (what == operation::write && how == measure::latency);
    }
    /// The send queue's depth that the plan needs.
    std::uint32_t send_queue_depth() const noexcept;
    /// Why the plan is invalid; empty if it is valid.
    std::string problem() const;
    /// What the plan needs and a device with these limits lacks; empty if nothing.
    std::string lacks_on(rcverbs::device_limits const& device) const;
};

void to_json(nlohmann::json& out, plan const& p);
/// Throws nlohmann::json::exception or std::invalid_argument if `in` is no plan, or a number is no
/// integer of its member's type. Does not check the values: see problem().
void from_json(nlohmann::json const& in, plan& p);

}  // namespace rdma_bench
