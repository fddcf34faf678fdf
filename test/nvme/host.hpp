// host.hpp — a host of NVMe over Fabrics in a few calls: queues that send any bytes as commands.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/steady_timer.hpp>

#include <rcverbs/nvme/target.hpp>

#include "device/fixture.hpp"

namespace test {

constexpr char const* disk_nqn = "nqn.test:disk";
constexpr char const* host_nqn = "nqn.test:host";

template <class Integer>
void put(std::span<std::byte> to, std::size_t at, Integer value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
        to[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <class Integer>
Integer get(std::span<std::byte const> from, std::size_t at) {
    Integer value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i)
        value |= static_cast<Integer>(static_cast<Integer>(from[at + i]) << (8 * i));
    return value;
}

/// The 64 bytes of a command, and data in the capsule behind them.
struct capsule {
    std::vector<std::byte> bytes = std::vector<std::byte>(64);

    explicit capsule(std::uint8_t code, std::uint32_t id = 0) {
        bytes[0] = static_cast<std::byte>(code);
        bytes[1] = std::byte{0x40};  // the data pointer is an SGL
        put(std::span{bytes}, 4, id);
        keyed({});
    }
    capsule& dword(std::size_t n, std::uint32_t value) {
        put(std::span{bytes}, 4 * n, value);
        return *this;
    }
    /// The data is in memory that the host exposes.
    capsule& keyed(rcverbs::remote_region r) {
        return keyed(r.address(), static_cast<std::uint32_t>(r.size()), r.key().value);
    }
    capsule& keyed(std::uint64_t address, std::uint32_t size, std::uint32_t key) {
        put(std::span{bytes}, 24, address);
        put(std::span{bytes}, 32, size);
        put(std::span{bytes}, 35, key);
        bytes[39] = std::byte{0x40};
        return *this;
    }
    /// The data follows the command; `size` and `offset` are what the command claims.
    capsule& in_capsule(
        std::span<std::byte const> data, std::uint32_t size, std::uint64_t offset = 0
    ) {
        put(std::span{bytes}, 24, offset);
        put(std::span{bytes}, 32, size);
        put(std::span{bytes}, 36, std::uint32_t{0});
        bytes[39] = std::byte{0x01};
        bytes.insert(bytes.end(), data.begin(), data.end());
        return *this;
    }
    capsule& blocks(std::uint64_t first, std::uint32_t count) {
        return dword(10, static_cast<std::uint32_t>(first))
            .dword(11, static_cast<std::uint32_t>(first >> 32))
            .dword(12, count - 1);
    }
};

/// The answer to a command; `is_alive` is false if the connection ended instead.
struct response {
    bool is_alive = false;
    std::uint64_t result = 0;
    std::uint16_t status = 0;  // type << 8 | code
    bool is_final = false;  // the host is told not to try again
};

/// With RCVERBS_TEST_IO_POLLER set, a target's I/O queues run on a thread of their own.
inline rcverbs::nvme::target_options with_io_poller(rcverbs::nvme::target_options o) {
    if (std::getenv("RCVERBS_TEST_IO_POLLER") != nullptr && o.io_pollers.empty())
        o.io_pollers.push_back(rcverbs::poller::start());
    return o;
}

/// One queue.
class host_queue {
public:
    explicit host_queue(asio::io_context& io) : connection_{io, options()} {}

    rcverbs::connection& connection() noexcept { return connection_; }

    /// Connects the queue pair. `data` is the private data.
    asio::awaitable<error_code> open(rcverbs::endpoint to, std::span<std::byte const> data) {
        auto [failed] = co_await connection_.async_resolve(to, awaiting);
        if (failed) co_return failed;
        sent_ = rcverbs::registered_buffer{
            connection_.domain(), 65536, rcverbs::access_flags::local_write};
        received_ = rcverbs::registered_buffer{
            connection_.domain(), 4096, rcverbs::access_flags::local_write};
        auto [ec] = co_await connection_.async_establish(data, awaiting);
        co_return ec;
    }
    asio::awaitable<error_code> open(
        rcverbs::endpoint to, std::uint16_t queue, std::uint16_t depth = 32
    ) {
        std::array<std::byte, 32> data{};
        put(std::span{data}, 2, queue);
        put(std::span{data}, 4, depth);
        put(std::span{data}, 6, static_cast<std::uint16_t>(depth - 1));
        return open_copy(to, data);
    }

    /// Sends a command, and waits for its completion.
    asio::awaitable<response> run(capsule const& c) {
        std::ranges::copy(c.bytes, sent_.bytes().begin());
        auto [arrived, gone] = co_await (
            connection_.async_receive(received_.slice(0, 16), awaiting) &&
            connection_.async_send(sent_.slice(0, c.bytes.size()), awaiting)
        );
        auto const [ec, got] = arrived;
        if (ec) co_return response{};
        auto const in = received_.bytes();
        co_return response{
            true,
            get<std::uint64_t>(in, 0),
            static_cast<std::uint16_t>(get<std::uint16_t>(in, 14) >> 1 & 0x7ff),
            (get<std::uint16_t>(in, 14) >> 15) != 0};
    }

    /// Sends a command several times at once, and returns the statuses of the completions.
    asio::awaitable<std::vector<int>> run_together(capsule const& c, std::size_t count) {
        return run_all(std::vector<capsule>(count, c));
    }
    /// Sends commands at once, and returns the statuses of the completions in their order of arrival.
    asio::awaitable<std::vector<int>> run_all(std::vector<capsule> all) {
        std::size_t left = all.size();
        for (std::size_t i = 0; i < all.size(); ++i) {
            auto const on_end = [&left](error_code const&, auto const&) { --left; };
            connection_.async_receive(received_.slice(16 * i, 16), on_end);
        }
        send_only(all);
        while (left > 0) co_await asio::post(connection_.get_executor(), asio::use_awaitable);
        std::vector<int> statuses;
        for (std::size_t i = 0; i < all.size(); ++i)
            statuses.push_back(get<std::uint16_t>(received_.bytes(), 16 * i + 14) >> 1 & 0x7ff);
        co_return statuses;
    }
    /// The heads of the submission queue in the last `count` completions of run_all().
    std::vector<int> heads(std::size_t count) {
        std::vector<int> all;
        for (std::size_t i = 0; i < count; ++i)
            all.push_back(get<std::uint16_t>(received_.bytes(), 16 * i + 8));
        return all;
    }
    /// Sends commands, and posts no receive for the completions.
    void send_only(std::vector<capsule> const& all) {
        std::size_t at = 0;
        for (capsule const& c : all) {
            std::ranges::copy(c.bytes, sent_.bytes().begin() + static_cast<std::ptrdiff_t>(at));
            connection_.async_send(
                sent_.slice(at, c.bytes.size()), [](error_code const&, std::size_t) {}
            );
            at += c.bytes.size();
        }
    }

    /// The Connect command.
    capsule connect_command(
        std::uint16_t queue,
        std::uint16_t controller,
        std::string const& nqn = disk_nqn,
        std::string const& host = host_nqn,
        std::uint32_t keep_alive_ms = 0
    ) {
        if (data_.size() == 0)
            data_ = rcverbs::registered_buffer{
                connection_.domain(),
                1024,
                rcverbs::access_flags::remote_read | rcverbs::access_flags::local_write};
        auto const bytes = data_.bytes();
        std::ranges::fill(bytes, std::byte{0});
        // Hosts whose names end alike have one identifier.
        if (!host.empty()) bytes[15] = static_cast<std::byte>(host.back());
        put(bytes, 16, controller);
        std::memcpy(bytes.data() + 256, nqn.data(), nqn.size());
        std::memcpy(bytes.data() + 512, host.data(), host.size());
        capsule c{0x7f, 1};
        c.dword(10, std::uint32_t{queue} << 16).dword(11, 31).dword(12, keep_alive_ms);
        return c.keyed(data_.remote());
    }

private:
    static rcverbs::connection_options options() {
        rcverbs::connection_options o;
        o.timeouts.disconnect = 200ms;
        o.queue_pair.rnr_retry_count = 7;  // the target's device waits for ever for a receive
        return o;
    }
    asio::awaitable<error_code> open_copy(rcverbs::endpoint to, std::array<std::byte, 32> data) {
        co_return co_await open(std::move(to), std::span<std::byte const>{data});
    }

    rcverbs::connection connection_;
    rcverbs::registered_buffer sent_;
    rcverbs::registered_buffer received_;
    rcverbs::registered_buffer data_;
};

// Catch's macros may evaluate a co_await twice: these evaluate it outside.
inline asio::awaitable<void> must_open(host_queue& q, rcverbs::endpoint to, std::uint16_t id) {
    error_code const ec = co_await q.open(to, id);
    REQUIRE_FALSE(ec);
}
inline asio::awaitable<void> must(host_queue& q, capsule c, int status) {
    response const r = co_await q.run(c);
    REQUIRE(r.is_alive);
    CHECK(r.status == status);
}

/// Sets CC.EN, or clears it.
inline capsule enable(bool is_on = true) {
    return capsule{0x7f, 0}.dword(11, 0x14).dword(12, is_on ? 0x00460001 : 0x00460000);
}

inline asio::awaitable<void> wait_until(asio::io_context& io, std::function<bool()> holds) {
    asio::steady_timer timer{io};
    for (int i = 0; i < 1000 && !holds(); ++i) {
        timer.expires_after(10ms);
        co_await timer.async_wait(asio::use_awaitable);
    }
    CHECK(holds());
}

/// Closes the target, and waits for its last queue.
inline asio::awaitable<void> end(asio::io_context& io, rcverbs::nvme::target& t) {
    t.close();
    co_await wait_until(io, [&] { return t.statistics().queues == 0; });
}

/// Sends one command again and again, each when the completion of the one before has arrived.
struct repeater {
    rcverbs::connection& on;
    rcverbs::mutable_slice command;
    rcverbs::mutable_slice answer;
    int left;
    int failed = 0;

    void start() {
        on.async_receive(answer, [this](error_code const& ec, rcverbs::receive_result const&) {
            // Assertions allocate.
            if (ec || get<std::uint16_t>(answer.bytes(), 14) != 0) ++failed;
            if (--left > 0) start();
        });
        on.async_send(command, [](error_code const&, std::size_t) {});
    }
};

}  // namespace test
