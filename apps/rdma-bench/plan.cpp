#include "rdma-bench/plan.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "common/json_number.hpp"

namespace rdma_bench {

using demo::integer;
using demo::member;

namespace {

constexpr std::array operation_names{
    "write", "read", "send", "write-imm", "fetch-add", "compare-swap", "connect"};
constexpr std::array measure_names{"bandwidth", "latency", "paced"};
constexpr std::array page_names{"small", "huge"};
constexpr std::array registration_names{"once", "per-operation"};
constexpr std::array poll_names{"busy", "adaptive", "event"};
static_assert(static_cast<int>(rcverbs::poll_mode::event) == 2);

template <class Enum, std::size_t N>
Enum value_of(std::array<char const*, N> const& names, std::string const& name) {
    for (std::size_t i = 0; i < N; ++i) {
        if (name == names[i]) return static_cast<Enum>(i);
    }
    throw std::invalid_argument{"unknown word: " + name.substr(0, 40)};
}

}  // namespace

char const* name(operation o) noexcept { return operation_names[static_cast<std::size_t>(o)]; }
char const* name(measure m) noexcept { return measure_names[static_cast<std::size_t>(m)]; }
char const* name(page_kind p) noexcept { return page_names[static_cast<std::size_t>(p)]; }
char const* name(registration r) noexcept {
    return registration_names[static_cast<std::size_t>(r)];
}
char const* name(rcverbs::poll_mode m) noexcept { return poll_names[static_cast<std::size_t>(m)]; }

std::uint64_t plan::size_bytes() const noexcept {
    return sizes_bytes.empty() ? 0 : *std::max_element(sizes_bytes.begin(), sizes_bytes.end());
}

std::uint32_t plan::send_queue_depth() const noexcept {
    // Small queues, as in a program with many connections; there depth is the number of concurrent
    // connects.
    if (what == operation::connect) return 16;
    // A ping-pong is signaled only once every half of the queue: a longer queue makes that rare.
    if (how == measure::latency) return 128;
    // A batch longer than half of the send queue would need more than one completion.
    return std::max({depth, 2 * batch, 2U});
}

std::string plan::problem() const {
    bool const is_power = alignment_bytes != 0 && (alignment_bytes & (alignment_bytes - 1)) == 0;
    if (sizes_bytes.empty() || sizes_bytes.size() > 64) return "there must be 1 to 64 sizes";
    for (std::uint64_t const size : sizes_bytes) {
        if (size == 0 || size > size_bytes_max) return "sizes are 1 byte to 1 GiB";
        if (is_atomic(what) && size != 8) return "atomics have a size of 8 bytes";
    }
    if (depth == 0 || depth > depth_max) return "the depth is 1 to " + std::to_string(depth_max);
    if (how == measure::latency && (depth != 1 || batch != 1))
        return "latency is measured with one operation at a time";
    if (how == measure::paced && (rate == 0 || rate > rate_max))
        return "the rate is 1 to " + std::to_string(rate_max) + " operations per second";
    if (how == measure::paced && batch != 1) return "a rate is kept with operations one by one";
    if (how == measure::paced && registers == registration::per_operation)
        return "a rate is kept with memory that is registered once";
    if (batch == 0 || batch > depth) return "a batch has 1 operation up to the depth";
    if (receives == 0 || receives > depth_max)
        return "receives are 1 to " + std::to_string(depth_max);
    if (connections == 0 || connections > connections_max)
        return "connections are 1 to " + std::to_string(connections_max);
    if ((own_threads ? connections : threads) > threads_max) {
        return "at most " + std::to_string(threads_max) +
               " polling threads; with --threads, connections share them";
    }
    if (!is_power || alignment_bytes > (std::uint64_t{1} << 30))
        return "the alignment is a power of two, up to 1 GiB";
    if (is_atomic(what) && alignment_bytes < 8) return "atomics need memory that is aligned to 8";
    if (polling.spin.count() < 0 || polling.spin > std::chrono::seconds{10})
        return "the time to poll is 0 to 10 s";
    if (inline_bytes > inline_bytes_max)
        return "at most " + std::to_string(inline_bytes_max) + " bytes inline";
    if (duration.count() <= 0 || duration > std::chrono::hours{24})
        return "the duration is above 0 and up to a day";
    if (is_bidirectional && how == measure::latency) return "latency is measured in one direction";
    if (registers == registration::per_operation &&
        (what != operation::write && what != operation::read)) {
        return "memory is registered per operation with write and read";
    }
    if (registers == registration::per_operation && batch != 1)
        return "memory is registered per operation with a batch of 1";
    if (corrupts && !verifies) return "--corrupt needs --verify";
    if (what == operation::connect && (is_bidirectional || verifies || is_timed())) {
        return "connect opens connections and does nothing with them";
    }
    return {};
}

std::string plan::lacks_on(rcverbs::device_limits const& device) const {
    if (what == operation::write_imm && !device.has_immediate_data) return "immediate data";
    if (is_atomic(what) && !device.has_atomics) return "atomic operations";
    return {};
}

void to_json(nlohmann::json& out, plan const& p) {
    out = {
        {"test", name(p.what)},
        {"measure", name(p.how)},
        {"sizes_bytes", p.sizes_bytes},
        {"depth", p.depth},
        {"rate", p.rate},
        {"batch", p.batch},
        {"receives", p.receives},
        {"inline_bytes", p.inline_bytes},
        {"poll", name(p.polling.mode)},
        {"spin_us", std::chrono::duration_cast<std::chrono::microseconds>(p.polling.spin).count()},
        {"connections", p.connections},
        {"threads", p.threads},
        {"own_threads", p.own_threads},
        {"warm_up", p.warm_up},
        {"iterations", p.iterations},
        {"duration_ms", p.duration.count()},
        {"bidirectional", p.is_bidirectional},
        {"verify", p.verifies},
        {"corrupt", p.corrupts},
        {"pages", name(p.pages)},
        {"alignment_bytes", p.alignment_bytes},
        {"registration", name(p.registers)},
    };
}

void from_json(nlohmann::json const& in, plan& p) {
    p.what = value_of<operation>(operation_names, in.at("test"));
    p.how = value_of<measure>(measure_names, in.at("measure"));
    p.sizes_bytes.clear();
    for (auto const& size : in.at("sizes_bytes").get_ref<nlohmann::json::array_t const&>())
        p.sizes_bytes.push_back(integer<std::uint64_t>(size, "sizes_bytes"));
    p.depth = member<std::uint32_t>(in, "depth");
    // Clients before --rate do not send it.
    p.rate = in.contains("rate") ? member<std::uint64_t>(in, "rate") : 0;
    p.batch = member<std::uint32_t>(in, "batch");
    p.receives = member<std::uint32_t>(in, "receives");
    p.inline_bytes = member<std::uint32_t>(in, "inline_bytes");
    p.polling.mode = value_of<rcverbs::poll_mode>(poll_names, in.at("poll"));
    p.polling.spin =
        std::chrono::microseconds{member<std::int64_t>(in, "spin_us", 0, 1'000'000'000)};
    p.connections = member<std::uint32_t>(in, "connections");
    p.threads = member<std::uint32_t>(in, "threads");
    in.at("own_threads").get_to(p.own_threads);
    p.warm_up = member<std::uint64_t>(in, "warm_up");
    p.iterations = member<std::uint64_t>(in, "iterations");
    p.duration = std::chrono::milliseconds{member<std::int64_t>(in, "duration_ms")};
    in.at("bidirectional").get_to(p.is_bidirectional);
    in.at("verify").get_to(p.verifies);
    in.at("corrupt").get_to(p.corrupts);
    p.pages = value_of<page_kind>(page_names, in.at("pages"));
    p.alignment_bytes = member<std::uint64_t>(in, "alignment_bytes");
    p.registers = value_of<registration>(registration_names, in.at("registration"));
}

}  // namespace rdma_bench
