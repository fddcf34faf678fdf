// remote_loops.hpp — the loops of loops.hpp on memory that a region channel has found: each write goes through
// remote_memory, or directly to the connection below.
#pragma once

#include <rcverbs/experimental/region_channel.hpp>

#include "bench/loops.hpp"

namespace bench {

/// Two region channels on the fabric, of which one has found the other's region; its device is a null device.
class remote_scene {
public:
    remote_scene() : client_{busy(), options()}, offers_{io_}, thread_{[this] { io_.run(); }} {
        offers_.offer("table", std::span{table_}, rcverbs::access_flags::remote_write);
        rcverbs::acceptor door{io_, {"10.0.0.1", 0}};
        auto asked = door.async_get_request(asio::use_future);
        auto connected = client_.async_connect(door.local_endpoint(), asio::use_future);
        auto own = options();
        own.offers = offers_;
        server_ = rcverbs::region_channel{io_, asked.get(), own};
        server_.async_accept(asio::use_future).get();
        connected.get();
        memory_ = client_.async_find("table", asio::use_future).get();
        ours_ =
            rcverbs::registered_buffer{client_.domain(), 4096, rcverbs::access_flags::local_write};
        source_ = ours_.slice(0, 8);
        // Behind what the channels have sent.
        memory_.async_write(0, source_, asio::use_future).get();
        on_poller([this] { device_.emplace(below().native_handle()); });
    }
    ~remote_scene() {
        on_poller([this] { device_.reset(); });
        client_.close();
        server_.close();
        work_.reset();
        thread_.join();
    }

    template <class Function>
    void on_poller(Function f) {
        run_on(client_.get_executor(), std::move(f));
    }

    void callback(std::uint64_t count, std::uint64_t depth) {
        chain(client_.get_executor(), count, depth, [this](auto& handler) {
            memory_.async_write(0, source_, handler);
        });
    }
    /// The same writes on the connection below.
    void plain(std::uint64_t count, std::uint64_t depth) {
        chain(client_.get_executor(), count, depth, [this](auto& handler) {
            below().async_write(source_, target_, handler);
        });
    }

private:
    static rcverbs::region_channel_options options() {
        rcverbs::region_channel_options o;
        o.channel.messages.connection.liveness.stall_timeout = std::nullopt;
        return o;
    }
    rcverbs::connection& below() { return client_.next_layer().next_layer(); }

    rcverbs::fabric::world world_{
        {.mode = rcverbs::fabric::scheduling::real, .seed = 1, .devices = {}}};
    asio::io_context io_;
    asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
    std::array<std::byte, 4096> table_{};
    rcverbs::region_channel client_;
    rcverbs::region_channel server_;
    rcverbs::region_offers offers_;
    rcverbs::remote_memory memory_;
    rcverbs::registered_buffer ours_;
    rcverbs::mutable_slice source_;
    // The null device checks nothing.
    rcverbs::remote_region const target_{
        0x1000, 8, rcverbs::remote_key{1}, rcverbs::access_flags::remote_write};
    std::optional<null_device> device_;
    std::thread thread_;
};

}  // namespace bench
