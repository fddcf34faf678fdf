// Times the loops of loops.hpp with Google Benchmark. As `operations_bench count LOOP N DEPTH`,
// runs one loop for a tool that counts instructions, and fails if it allocates.
#include <unistd.h>

#include <benchmark/benchmark.h>
#include <valgrind/callgrind.h>

#include <cstdlib>
#include <iostream>
#include <new>
#include <string_view>
#include <utility>

#include "bench/loops.hpp"
#include "bench/optimised.hpp"
#include "bench/remote_loops.hpp"

namespace {

// Set on the thread that runs the loop: the library's other threads may allocate meanwhile.
thread_local bool counts_allocations = false;
std::uint64_t allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
    if (counts_allocations) ++allocations;
    if (void* const p = std::malloc(size)) return p;
    throw std::bad_alloc{};
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

template <class Scene>
using loop = void (Scene::*)(std::uint64_t, std::uint64_t);

template <class Scene>
loop<Scene> loop_named(std::string_view name) {
    if (name == "callback") return &Scene::callback;
    if constexpr (requires { &Scene::plain; }) {
        if (name == "plain") return &Scene::plain;
    } else {
        if (name == "raw") return &Scene::raw;
        if (name == "deferred") return &Scene::deferred;
        if (name == "coroutine") return &Scene::coroutine;
        if (name == "awaited") return &Scene::awaited;
    }
    throw std::invalid_argument{"no such loop"};
}

// The same loops with a type-erased and with a concrete executor.
using erased = bench::scene<>;
using concrete = bench::scene<boost::asio::io_context::executor_type>;
constexpr std::string_view on_concrete = "concrete_";
// Through memory that a region channel has found.
constexpr std::string_view on_remote = "remote_";

template <class Scene>
void time_loop(benchmark::State& state, char const* name) {
    auto const depth = static_cast<std::uint64_t>(state.range(0));
    Scene scene;
    constexpr std::uint64_t batch = 16'000;
    loop<Scene> const run = loop_named<Scene>(name);
    (scene.*run)(batch, depth);
    while (state.KeepRunningBatch(batch)) (scene.*run)(batch, depth);
    state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()));
}

template <class Scene>
int count_loop(std::string_view name, std::uint64_t count, std::uint64_t depth) {
    Scene scene;
    loop<Scene> const run = loop_named<Scene>(name);
    // Operations are allocated when as many are in use, or called, for the first time.
    (scene.*run)(320, 2 * depth);
    // Measures the allocations of starting a loop, which are not the operations'.
    scene.on_poller([] { counts_allocations = true; });
    (scene.*run)(16, depth);
    std::uint64_t const to_begin = std::exchange(allocations, 0);
    // Discards the instructions counted so far. No effect without valgrind.
    CALLGRIND_ZERO_STATS;
    static_cast<void>(::getppid());  // marks the loop's start and end in a trace of system calls
    (scene.*run)(count, depth);
    static_cast<void>(::getppid());
    CALLGRIND_DUMP_STATS;
    scene.on_poller([] { counts_allocations = false; });
    std::uint64_t const in_loop = allocations - std::min<std::uint64_t>(allocations, to_begin);
    if (in_loop > 0)
        std::cerr << name << ": " << in_loop << " allocations in " << count << " operations\n";
    return in_loop > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (!bench::may_run(argc, argv)) return 2;
    if (argc == 5 && std::string_view{argv[1]} == "count") {
        std::string_view name{argv[2]};
        auto const count = std::strtoull(argv[3], nullptr, 10);
        auto const depth = std::strtoull(argv[4], nullptr, 10);
        if (name.starts_with(on_remote))
            return count_loop<bench::remote_scene>(name.substr(on_remote.size()), count, depth);
        if (!name.starts_with(on_concrete)) return count_loop<erased>(name, count, depth);
        return count_loop<concrete>(name.substr(on_concrete.size()), count, depth);
    }
    auto const add = [](std::string const& name, auto function, char const* loop) {
        benchmark::RegisterBenchmark(name.c_str(), function, loop)
            ->ArgName("depth")
            ->Arg(1)
            ->Arg(16)
            ->UseRealTime();
    };
    for (char const* const name : {"raw", "callback", "deferred", "coroutine", "awaited"})
        add(name, time_loop<erased>, name);
    for (char const* const name : {"callback", "coroutine", "awaited"})
        add(std::string{on_concrete} + name, time_loop<concrete>, name);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
