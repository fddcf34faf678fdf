#include "rdma-bench/result.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "common/json_number.hpp"

namespace rdma_bench {

using demo::member;

void side_result::add(rcverbs::connection_statistics const& s, int sign) noexcept {
    auto const n = static_cast<std::uint64_t>(static_cast<std::int64_t>(sign)
    );  // modulo 2^64, taking away is adding
    sends_posted += n * s.sends_posted;
    doorbells += n * s.doorbells;
    completions += n * s.completions;
    polls += n * s.polls;
    empty_polls += n * s.empty_polls;
    sleeps += n * s.sleeps;
}

void to_json(nlohmann::json& out, side_result const& r) {
    out = {
        {"operations", r.operations},
        {"seconds", r.seconds},
        {"cpu_seconds", r.cpu_seconds},
        {"damaged", r.damaged},
        {"sends_posted", r.sends_posted},
        {"doorbells", r.doorbells},
        {"completions", r.completions},
        {"polls", r.polls},
        {"empty_polls", r.empty_polls},
        {"sleeps", r.sleeps},
    };
}

void from_json(nlohmann::json const& in, side_result& r) {
    r.operations = member<std::uint64_t>(in, "operations");
    in.at("seconds").get_to(r.seconds);
    in.at("cpu_seconds").get_to(r.cpu_seconds);
    r.damaged = member<std::uint64_t>(in, "damaged");
    r.sends_posted = member<std::uint64_t>(in, "sends_posted");
    r.doorbells = member<std::uint64_t>(in, "doorbells");
    r.completions = member<std::uint64_t>(in, "completions");
    r.polls = member<std::uint64_t>(in, "polls");
    r.empty_polls = member<std::uint64_t>(in, "empty_polls");
    r.sleeps = member<std::uint64_t>(in, "sleeps");
}

std::uint64_t result::operations() const noexcept {
    return client.operations + (is_bidirectional ? server.operations : 0);
}

double result::seconds() const noexcept {
    return is_bidirectional ? std::max(client.seconds, server.seconds) : client.seconds;
}

double result::operations_per_second() const noexcept {
    return seconds() > 0 ? static_cast<double>(operations()) / seconds() : 0;
}

// perftest's unit: its MB has 2^20 bytes.
double result::megabytes_per_second() const noexcept {
    return operations_per_second() * static_cast<double>(size_bytes) / (1 << 20);
}

double result::gigabits_per_second() const noexcept {
    return operations_per_second() * static_cast<double>(size_bytes) * 8 / 1e9;
}

double result::cpu_us() const noexcept {
    return operations() > 0 ? client.cpu_seconds * 1e6 / static_cast<double>(operations()) : 0;
}

std::optional<double> result::server_cpu_us() const noexcept {
    if (is_one_process) return std::nullopt;
    return operations() > 0 ? server.cpu_seconds * 1e6 / static_cast<double>(operations()) : 0;
}

}  // namespace rdma_bench
