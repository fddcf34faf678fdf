// Where the memory of an operation comes from: what each way costs, on a device. Run it in the
// virtual machine, or with RCVERBS_TEST_ADDRESS on a machine with an RDMA device.
#include <benchmark/benchmark.h>

#include <boost/asio/io_context.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <rcverbs/rcverbs.hpp>
#include <rcverbs/experimental/window.hpp>

#include "support/device_address.hpp"
#include "bench/optimised.hpp"
#include "examples/registration_cache.hpp"

using namespace rcverbs;
namespace asio = boost::asio;

namespace {

protection_domain const& domain() {
    static asio::io_context io;
    static protection_domain const opened = open_domain(io, {test::device_address(), 0});
    return opened;
}

constexpr access_flags rights = access_flags::local_write | access_flags::remote_write;

void with_new(benchmark::State& state) {
    auto const size = static_cast<std::size_t>(state.range(0));
    for (auto _ : state) {
        std::unique_ptr<std::byte[]> block{new std::byte[size]};
        benchmark::DoNotOptimize(block.get());
    }
}

void with_memory_pool(benchmark::State& state) {
    auto const size = static_cast<std::size_t>(state.range(0));
    memory_pool pool{domain(), {.reserve_bytes = std::size_t{16} << 20, .rights = rights}};
    for (auto _ : state) {
        void* const block = pool.allocate(size, 64);
        benchmark::DoNotOptimize(pool.slice_of(block, size));
        pool.deallocate(block, size, 64);
    }
}

void with_slot_pool(benchmark::State& state) {
    asio::io_context io;
    slot_pool pool{
        io,
        domain(),
        {.slots = 16, .slot_bytes = static_cast<std::size_t>(state.range(0)), .rights = rights}};
    for (auto _ : state) {
        slot_lease const lease = pool.try_acquire();
        benchmark::DoNotOptimize(lease.slice());
    }
}

void with_cache(benchmark::State& state) {
    std::vector<std::byte> memory(static_cast<std::size_t>(state.range(0)));
    example::registration_cache cache{domain(), {.rights = rights}};
    for (auto _ : state) {
        example::region_lease const lease = cache.get(memory);
        benchmark::DoNotOptimize(lease.slice());
    }
}

void with_registration(benchmark::State& state) {
    std::vector<std::byte> memory(static_cast<std::size_t>(state.range(0)));
    for (auto _ : state) {
        memory_region const region{domain(), std::span<std::byte>{memory}, rights};
        benchmark::DoNotOptimize(region.slice());
    }
}

// Binds a window and invalidates it, polling all the while: what a key that lives as long as one
// request costs, beside registering for it.
void with_window(benchmark::State& state) {
    asio::io_context io;
    poller const busy = poller::on(io, {.polling = {.mode = poll_mode::busy}});
    acceptor a{busy, {test::device_address(), 0}};
    connection client{busy};
    connection server{io};
    int connected = 0;
    a.async_accept([&](error_code ec, connection c) {
        if (ec) throw boost::system::system_error{ec};
        server = std::move(c);
        ++connected;
    });
    client.async_connect(a.local_endpoint(), [&](error_code ec) {
        if (ec) throw boost::system::system_error{ec};
        ++connected;
    });
    while (connected < 2) io.run_one();
    registered_buffer pages{
        server.domain(),
        static_cast<std::size_t>(state.range(0)),
        access_flags::local_write | access_flags::bind_windows};
    {
        window w{server};
        bool is_done = false;
        auto const wait = [&] {
            while (!is_done) io.run_one();
            is_done = false;
        };
        for (auto _ : state) {
            w.async_bind(pages.slice(), access_flags::remote_write, [&](error_code ec, auto&&) {
                if (ec) throw boost::system::system_error{ec};
                is_done = true;
            });
            wait();
            w.async_invalidate([&](error_code ec) {
                if (ec) throw boost::system::system_error{ec};
                is_done = true;
            });
            wait();
        }
    }
    client.close();
    server.close();
    a.close();
    io.run();
}

void sizes(benchmark::internal::Benchmark* b) {
    for (std::int64_t const size : {64, 4096, 65536, 1048576}) b->Arg(size);
}

BENCHMARK(with_new)->Apply(sizes);
BENCHMARK(with_slot_pool)->Apply(sizes);
BENCHMARK(with_memory_pool)->Apply(sizes);
BENCHMARK(with_memory_pool)->Arg(4096)->Threads(2);
BENCHMARK(with_cache)->Apply(sizes);
BENCHMARK(with_window)->Apply(sizes);
BENCHMARK(with_registration)->Apply(sizes);

}  // namespace

int main(int argc, char** argv) {
    if (!bench::may_run(argc, argv)) return 2;
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
}
