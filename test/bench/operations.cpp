// Times the loops of loops.hpp with Google Benchmark; or, as `operations_bench count LOOP N DEPTH`, runs one loop for a tool that counts
// instructions, and fails if it allocates.
#include <benchmark/benchmark.h>
#include <valgrind/callgrind.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string_view>

#include "bench/loops.hpp"

namespace {

std::atomic<bool> counts_allocations{false};
std::atomic<std::uint64_t> allocations{0};

}  // namespace

void* operator new(std::size_t size) {
    if (counts_allocations.load(std::memory_order_relaxed)) ++allocations;
    if (void* const p = std::malloc(size)) return p;
    throw std::bad_alloc{};
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using loop = void (bench::scene::*)(std::uint64_t, std::uint64_t);

loop loop_named(std::string_view name) {
    if (name == "raw") return &bench::scene::raw;
    if (name == "callback") return &bench::scene::callback;
    if (name == "deferred") return &bench::scene::deferred;
    if (name == "coroutine") return &bench::scene::coroutine;
    throw std::invalid_argument{"no such loop"};
}

void time_loop(benchmark::State& state, char const* name) {
    auto const depth = static_cast<std::uint64_t>(state.range(0));
    bench::scene scene;
    constexpr std::uint64_t batch = 16'000;
    loop const run = loop_named(name);
    (scene.*run)(batch, depth);
    while (state.KeepRunningBatch(batch)) (scene.*run)(batch, depth);
    state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()));
}

int count_loop(std::string_view name, std::uint64_t count, std::uint64_t depth) {
    bench::scene scene;
    loop const run = loop_named(name);
    (scene.*run)(160, depth);
    // The loop's own frame and what starts it on the thread are not the operations'.
    allocations = 0;
    counts_allocations = true;
    (scene.*run)(16, depth);
    std::uint64_t const to_begin = allocations.exchange(0);
    // What it took to get here is not the operations'. Nothing where no valgrind counts.
    CALLGRIND_ZERO_STATS;
    (scene.*run)(count, depth);
    CALLGRIND_DUMP_STATS;
    counts_allocations = false;
    std::uint64_t const in_loop = allocations - std::min<std::uint64_t>(allocations, to_begin);
    // One that some other thread of the program makes now and then is none of an operation's.
    bool const is_too_many = in_loop * 10'000 > count;
    if (is_too_many) std::cerr << name << ": " << in_loop << " allocations in " << count << " operations\n";
    return is_too_many ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 5 && std::string_view{argv[1]} == "count") {
        return count_loop(argv[2], std::strtoull(argv[3], nullptr, 10), std::strtoull(argv[4], nullptr, 10));
    }
    for (char const* const name : {"raw", "callback", "deferred", "coroutine"}) {
        benchmark::RegisterBenchmark(name, time_loop, name)->ArgName("depth")->Arg(1)->Arg(16)->UseRealTime();
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
