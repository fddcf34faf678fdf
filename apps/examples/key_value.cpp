// key_value: a cache. A client puts values by requests, and gets them by RDMA reads of the server's table, which cost the server no
// processor time.
//
// The table has one entry for each hash of a key. A read may meet a write of the server's, and then has bytes of two entries, in any
// order. Therefore each entry has a version and a checksum over the version, the key and the value: a reader whose checksum is wrong
// reads again, and one that has put a value waits until it reads that version or a later one.
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/crc.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>

#include "examples/both_ends.hpp"

using namespace example;

namespace {

// The operations of the requests.
constexpr std::uint32_t find_table = 1;  // answer: the table's region
constexpr std::uint32_t put = 2;  // body: an entry; answer: the version that it got

constexpr std::size_t entries = 1024;

struct entry {
    std::uint32_t checksum;
    std::uint32_t version;  // 0: nothing was put
    char key[56];
    char value[128];
};

std::uint32_t checksum_of(entry const& e) {
    boost::crc_32_type crc;
    crc.process_bytes(&e.version, sizeof e - offsetof(entry, version));
    return crc.checksum();
}

std::size_t place_of(std::string const& key) { return std::hash<std::string>{}(key) % entries; }

entry entry_of(std::string const& key, std::string const& value) {
    entry e{};
    expect(key.size() < sizeof e.key && value.size() < sizeof e.value, "key and value fit");
    std::memcpy(e.key, key.data(), key.size());
    std::memcpy(e.value, value.data(), value.size());
    return e;
}

class server {
public:
    server(asio::io_context& io, rcverbs::connection_request asked)
        : channel_{io, std::move(asked)},
          memory_{channel_.domain(), entries * sizeof(entry), rcverbs::access_flags::remote_read} {}

    asio::awaitable<void> run() {
        co_await channel_.async_accept(use_awaitable);
        for (;;) {
            auto [ec, asked] = co_await channel_.async_next(asio::as_tuple(use_awaitable));
            if (ec) break;
            if (asked.operation() == find_table) {
                auto const table = memory_.remote().encode();
                co_await asked.async_answer(0, table, use_awaitable);
            } else if (asked.operation() == put && asked.bytes().size() == sizeof(entry)) {
                entry e{};
                std::memcpy(&e, asked.bytes().data(), sizeof e);
                e.key[sizeof e.key - 1] = 0;
                co_await asked.async_answer(write(e), std::span<std::byte const>{}, use_awaitable);
            }
            // Any other request is dropped here, and the client gets an error.
        }
        co_await channel_.async_finish(use_awaitable);
    }

private:
    std::uint32_t write(entry e) {
        auto const to = memory_.bytes().subspan(place_of(e.key) * sizeof(entry), sizeof(entry));
        entry before{};
        std::memcpy(&before, to.data(), sizeof before);
        e.version = before.version + 1;
        e.checksum = checksum_of(e);
        std::memcpy(to.data(), &e, sizeof e);
        return e.version;
    }

    rcverbs::request_channel channel_;
    rcverbs::registered_buffer memory_;
};

class cache {
public:
    explicit cache(asio::io_context& io) : channel_{io} {}

    asio::awaitable<void> connect(rcverbs::endpoint to) {
        co_await channel_.async_connect(to, use_awaitable);
        mine_ = rcverbs::registered_buffer{channel_.domain(), sizeof(entry), rcverbs::access_flags::local_write};
        rcverbs::reply const r = co_await channel_.async_request(find_table, std::span<std::byte const>{}, use_awaitable);
        table_ = rcverbs::remote_region::decode(r.bytes());
    }

    asio::awaitable<void> set(std::string key, std::string value) {
        entry const e = entry_of(key, value);
        rcverbs::reply const r = co_await channel_.async_request(put, std::span{&e, 1}, use_awaitable);
        versions_[place_of(key)] = r.status();
    }

    asio::awaitable<std::optional<std::string>> get(std::string key) {
        rcverbs::remote_region const there = table_.slice(place_of(key) * sizeof(entry), sizeof(entry));
        for (;;) {
            co_await channel_.next_layer().async_read(there, mine_.slice(), use_awaitable);
            entry e{};
            std::memcpy(&e, mine_.bytes().data(), sizeof e);
            if (e.version == 0) co_return std::nullopt;
            if (e.checksum != checksum_of(e) || e.version < versions_[place_of(key)]) continue;
            if (e.key != key) co_return std::nullopt;
            co_return std::string{e.value};
        }
    }

    asio::awaitable<void> finish() { co_await channel_.async_finish(use_awaitable); }

private:
    rcverbs::request_channel channel_;
    rcverbs::registered_buffer mine_;
    rcverbs::remote_region table_;
    std::array<std::uint32_t, entries> versions_{};  // of the own puts
};

asio::awaitable<void> serve(asio::io_context& io, rcverbs::acceptor& door) {
    server s{io, co_await door.async_get_request(use_awaitable)};
    co_await s.run();
}

asio::awaitable<void> visit(asio::io_context& io, rcverbs::endpoint to) {
    cache c{io};
    co_await c.connect(to);
    for (int i = 0; i < 100; ++i) co_await c.set("key " + std::to_string(i), "value " + std::to_string(i * i));
    int hits = 0;
    for (int i = 0; i < 110; ++i) {
        // Keys with the same hash replace each other.
        auto const value = co_await c.get("key " + std::to_string(i));
        if (!value) continue;
        ++hits;
        expect(*value == "value " + std::to_string(i * i), "a value is the one that was put");
    }
    co_await c.set("key 5", "another");
    auto const changed = co_await c.get("key 5");
    expect(changed == "another", "a value can be replaced");
    expect(hits > 80 && hits <= 100, "most keys are there");
    co_await c.finish();
    std::cout << "101 puts by request, 111 gets by RDMA read\n";
}

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    using namespace asio::experimental::awaitable_operators;
    rcverbs::acceptor door{io, {address, 0}};
    co_await (serve(io, door) && visit(io, door.local_endpoint()));
}

}  // namespace

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
