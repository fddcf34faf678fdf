// pool_fixture.hpp — a pool that peers allocate from.
#pragma once

#include <rcverbs/experimental/remote_allocator.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "device/region_fixture.hpp"

namespace test {

/// Memory at a multiple of 64 KiB.
class pages {
public:
    explicit pages(std::size_t size)
        : size_{size},
          all_{mmap(
              nullptr, size + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0
          )} {
        REQUIRE(all_ != MAP_FAILED);
    }
    ~pages() { munmap(all_, size_ + alignment); }
    pages(pages const&) = delete;
    pages& operator=(pages const&) = delete;

    std::span<std::byte> bytes() const {
        auto* const begin = static_cast<std::byte*>(all_);
        auto const over = reinterpret_cast<std::uintptr_t>(begin) % alignment;
        return {begin + (alignment - over) % alignment, size_};
    }

private:
    static constexpr std::size_t alignment = 65536;
    std::size_t size_;
    void* all_;
};

/// A server with a pool of 256 KiB, and a client.
struct pool_ends : region_ends {
    explicit pool_ends(
        asio::io_context& io, remote_pool_options const& options = {.peer_bytes_max = 128 * 1024}
    )
        : region_ends{io},
          pool{offers, memory.bytes(), options} {}

    static constexpr std::size_t size = std::size_t{256} * 1024;
    pages memory{size};
    remote_pool pool;
};

inline bool is_zero(std::span<std::byte const> bytes) { return all_are(bytes, std::byte{0}); }

/// Waits until nobody has anything of the pool; then all of it is one block again.
inline asio::awaitable<void> until_whole(asio::io_context& io, pool_ends& e) {
    co_await until(io, [&] { return e.pool.statistics().allocations == 0; });
    CHECK(e.pool.statistics().free_bytes == pool_ends::size);
    CHECK(e.pool.statistics().largest_free_bytes == pool_ends::size);
    CHECK(is_zero(e.memory.bytes()));
}

/// Eight peers allocate and free at random. Each writes a number at both ends of its memory, finds it
/// there when it frees the memory, and finds zero when it gets some.
///
/// @param rounds   Allocations of a peer.
/// @param domain   Of the server's connections and the pool; of each its own if it is not open.
inline void allocate_at_random(int rounds, protection_domain const& domain = {}) {
    constexpr std::size_t peers = 8;
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io, {.peer_bytes_max = 64 * 1024, .domain = domain}};
        e.domain = domain;
        co_await meet_regions(io, e);
        std::vector<region_channel> clients(peers);
        std::vector<region_channel> servers(peers);
        for (std::size_t i = 0; i < peers; ++i)
            co_await join_regions(io, e, clients[i], servers[i]);
        int refused = 0;
        int wrong = 0;
        auto const peer = [&](std::size_t which) -> asio::awaitable<void> {
            std::mt19937_64 random{which + 1};
            remote_allocator const heap{clients[which]};
            registered_buffer const local{
                clients[which].next_layer().next_layer().domain(), 16, access_flags::local_write};
            auto* const words = reinterpret_cast<std::uint64_t*>(local.bytes().data());
            struct owned {
                remote_memory memory;
                std::uint64_t value;
            };
            std::vector<owned> all;
            std::uint64_t value = which << 32;
            auto const free_one = [&]() -> asio::awaitable<void> {
                std::size_t const some = random() % all.size();
                owned const gone = all[some];
                all[some] = all.back();
                all.pop_back();
                co_await gone.memory.async_read(0, local.slice(0, 8), asio::use_awaitable);
                co_await gone.memory.async_read(
                    gone.memory.size() - 8, local.slice(8, 8), asio::use_awaitable
                );
                wrong += words[0] != gone.value || words[1] != gone.value ? 1 : 0;
                co_await heap.async_free(gone.memory, asio::use_awaitable);
            };
            for (int i = 0; i < rounds; ++i) {
                auto const [ec, a] = co_await heap.async_allocate(16 + random() % 20'000, awaiting);
                if (ec) {
                    ++refused;
                    wrong +=
                        ec == channel_errc::quota_exceeded || ec == channel_errc::pool_exhausted
                            ? 0
                            : 1;
                } else {
                    // Zero between two owners.
                    co_await a.memory.async_read(0, local.slice(0, 8), asio::use_awaitable);
                    wrong += words[0] != 0 ? 1 : 0;
                    words[0] = ++value;
                    co_await a.memory.async_write(0, local.slice(0, 8), asio::use_awaitable);
                    co_await a.memory.async_write(
                        a.memory.size() - 8, local.slice(0, 8), asio::use_awaitable
                    );
                    all.push_back({a.memory, value});
                }
                while (!all.empty() && (ec || random() % 2 == 0)) {
                    co_await free_one();
                    if (ec) break;
                }
            }
            while (!all.empty()) co_await free_one();
        };
        co_await (
            (peer(0) && peer(1) && peer(2) && peer(3)) && (peer(4) && peer(5) && peer(6) && peer(7))
        );
        CHECK(wrong == 0);
        CHECK(refused > 0);
        co_await until_whole(io, e);
        for (auto& c : clients) c.close();
        co_await part_regions(e);
    });
}

// --- messages of a peer that is not rcverbs

inline std::vector<std::byte> number_message(std::uint64_t number) {
    std::vector<std::byte> b;
    put(b, number, 8);
    return b;
}

inline std::vector<std::byte> allocate_message(
    std::uint64_t bytes,
    std::uint64_t alignment = 8,
    std::uint16_t flags = 0,
    std::uint16_t version = 1,
    std::uint32_t padding = 0
) {
    std::vector<std::byte> b;
    put(b, version, 2);
    put(b, flags, 2);
    put(b, padding, 4);
    put(b, bytes, 8);
    put(b, alignment, 8);
    return b;
}

inline std::vector<std::byte> share_message(std::uint64_t number, std::string const& name) {
    auto b = number_message(number);
    std::ranges::copy(bytes_of(name), std::back_inserter(b));
    return b;
}

inline std::vector<std::byte> resume_message(std::uint64_t token, std::uint16_t padding = 0) {
    std::vector<std::byte> b;
    put(b, 1, 2);
    put(b, padding, 2);
    put(b, 0, 4);
    put(b, 0, 8);
    put(b, token, 8);
    return b;
}

// Where ALLOCATED has the number, and the first address and key.
inline constexpr std::size_t number_at = 24;
inline constexpr std::size_t address_at = number_at + 32;
inline constexpr std::size_t key_at = address_at + 8;

}  // namespace test
