#include "rdma-copy/link.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <memory>
#include <utility>

#include <rcverbs/channel_error.hpp>
#include <rcverbs/poller.hpp>

namespace copy {

namespace {

constexpr std::size_t slot_bytes_most = std::size_t{1} << 20;
constexpr std::size_t slot_bytes_least = 4096;
constexpr std::size_t slots_wanted = 8;

}  // namespace

rcverbs::message_channel_options link::channel_options() {
    rcverbs::message_channel_options o;
    o.mode = channel_mode;
    o.receives = 16;
    o.sends = 16;
    constexpr std::size_t overhead = 16;  // of the channel
    o.slot_bytes = message_bytes_max + overhead;
    return o;
}

void link::size_slots(std::size_t memory_bytes) {
    slot_bytes_ = std::clamp(
        memory_bytes / slots_wanted / slot_bytes_least * slot_bytes_least,
        slot_bytes_least,
        slot_bytes_most
    );
    slots_ = std::clamp<std::size_t>(memory_bytes / slot_bytes_, 1, 1024);
}

link::link(asio::io_context& io, link_options const& options)
    : io_{io},
      timeout_{options.timeout},
      channel_{rcverbs::poller::on(io), channel_options()} {
    size_slots(options.memory_bytes);
}

link::link(asio::io_context& io, rcverbs::connection_request request, link_options const& options)
    : io_{io},
      timeout_{options.timeout},
      channel_{rcverbs::poller::on(io), std::move(request), channel_options()} {
    size_slots(options.memory_bytes);
}

link::~link() { stop_watch(); }

asio::awaitable<void> link::connect(rcverbs::endpoint peer) {
    co_await channel_.async_connect(peer, asio::use_awaitable);
    start_watch();
}

asio::awaitable<void> link::accept() {
    co_await channel_.async_accept(asio::use_awaitable);
    start_watch();
}

asio::awaitable<void> link::finish() {
    stop_watch();  // the channel's own limit is enough from here on
    co_await channel_.async_finish(asio::use_awaitable);
}

asio::awaitable<copy_message> link::receive() {
    for (;;) {
        auto const [ec, got] = co_await channel_.async_receive(asio::as_tuple(asio::use_awaitable));
        if (ec) {
            stop_watch();
            throw boost::system::system_error{ec};
        }
        heard_ = std::chrono::steady_clock::now();
        auto m = got.is_large() ? std::nullopt : decode(got.tag(), got.bytes());
        if (!m) {
            close_violated();
            throw boost::system::system_error{rcverbs::channel_errc::malformed_message};
        }
        if (!std::holds_alternative<alive>(*m)) co_return std::move(*m);
    }
}

void link::send(copy_message const& m) {
    auto const bytes = std::make_shared<std::vector<std::byte> const>(encode(m));
    channel_.async_send(std::span{*bytes}, m.index(), [bytes](rcverbs::error_code const&) {});
}

void link::close_violated() {
    is_violated_ = true;
    close();
}

void link::close() {
    stop_watch();
    channel_.close();
}

std::string link::failure_text() const {
    if (is_silent_)
        return "the peer has said nothing for " + std::to_string(timeout_.count() / 1000) + " s";
    if (is_violated_) return "the peer does not keep to the protocol of rdma-copy";
    return channel_.last_failure().message();
}

void link::start_watch() {
    heard_ = std::chrono::steady_clock::now();
    watcher_ = std::make_shared<watcher>(watcher{asio::steady_timer{io_}});
    asio::co_spawn(io_, watch(), asio::detached);
}

void link::stop_watch() {
    if (watcher_ == nullptr) return;
    watcher_->is_over = true;
    watcher_->timer.cancel();
}

asio::awaitable<void> link::watch() {
    auto const w = watcher_;
    for (;;) {
        w->timer.expires_after(timeout_ / 4);
        boost::system::error_code stopped;
        co_await w->timer.async_wait(asio::redirect_error(asio::use_awaitable, stopped));
        if (w->is_over || !channel_.is_open()) co_return;
        if (std::chrono::steady_clock::now() - heard_ > timeout_) {
            is_silent_ = true;
            channel_.close();
            co_return;
        }
        send(alive{});
    }
}

}  // namespace copy
