#include "rdma-copy/link.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <memory>
#include <utility>

#include <rcverbs/channel_error.hpp>
#include <rcverbs/poller.hpp>

#include "common/lockable.hpp"

namespace copy {

namespace {

constexpr std::size_t slot_bytes_most = std::size_t{512} << 10;
constexpr std::size_t slot_bytes_least = 4096;
constexpr std::size_t slots_wanted = 8;
constexpr std::size_t slots_most = 256;
constexpr std::chrono::milliseconds alive_interval{500};
// Frames that may wait for the peer to take them, and those that are given to the channel at a time: what is sent
// meanwhile goes together.
constexpr std::size_t frames_most = 64;
constexpr std::size_t on_their_way_most = 2;
// All frames of a copy have one tag.
constexpr std::uint64_t frame_tag = 0;

// Bytes of a frame and what a channel puts before it.
constexpr std::size_t message_slot_bytes = frame_bytes_max + 16;

std::size_t bytes_of_messages(std::uint16_t messages) {
    constexpr std::size_t of_the_channel = 4;  // messages that it sends for itself
    return (std::size_t{2} * messages + of_the_channel) * message_slot_bytes;
}

// Messages in each direction: fewer where little can be locked.
std::uint16_t messages_for(std::size_t lockable_bytes) {
    constexpr std::uint16_t usual = 16;
    constexpr std::uint16_t least = 6;  // of a channel
    return lockable_bytes / 4 < bytes_of_messages(usual) ? least : usual;
}

rcverbs::message_channel_options channel_options(
    std::uint16_t messages, link_options const& options
) {
    rcverbs::message_channel_options o;
    o.authentication = options.authentication;
    o.authentication.timeout = options.timeout;
    o.mode = channel_mode;
    o.receives = messages;
    o.sends = messages;
    o.slot_bytes = message_slot_bytes;
    return o;
}

// With room for a write of each slot beside the messages.
rcverbs::connection_options options_of_connection(
    rcverbs::message_channel_options const& channel, std::size_t slots
) {
    rcverbs::connection_options o = rcverbs::message_channel::needed(channel);
    o.queue_pair.send_queue_depth += static_cast<std::uint32_t>(slots);
    return o;
}

// A copy waits for the disk and for large blocks most of the time: polling would take the processor from them.
rcverbs::poller sleeping_poller(asio::io_context& io) {
    rcverbs::poller_options o;
    o.polling.mode = rcverbs::poll_mode::event;
    return rcverbs::poller::on(io, o);
}

}  // namespace

std::size_t usual_memory() {
    constexpr std::size_t most = std::size_t{8} << 20;
    std::size_t const left = demo::lockable_bytes_left();
    std::size_t const of_messages = bytes_of_messages(messages_for(left));
    return std::min({most, left / 2, left - std::min(left, of_messages)});
}

void link::size_slots(std::size_t memory_bytes) {
    if (memory_bytes == 0) memory_bytes = usual_memory();
    slot_bytes_ = std::clamp(
        memory_bytes / slots_wanted / slot_bytes_least * slot_bytes_least,
        slot_bytes_least,
        slot_bytes_most
    );
    slots_ = std::clamp<std::size_t>(memory_bytes / slot_bytes_, 1, slots_most);
}

link::link(asio::io_context& io, link_options const& options)
    : io_{io},
      timeout_{options.timeout},
      outgoing_{std::make_shared<outgoing>(outgoing{this, {}, 0, false, false, {}, change{io}})},
      stop_limit_{io} {
    auto const messages = channel_options(messages_for(demo::lockable_bytes_left()), options);
    size_slots(options.memory_bytes);
    rcverbs::connection c{sleeping_poller(io), options_of_connection(messages, slots_)};
    channel_ = rcverbs::message_channel{std::move(c), messages};
}

link::link(asio::io_context& io, rcverbs::connection_request request, link_options const& options)
    : io_{io},
      timeout_{options.timeout},
      outgoing_{std::make_shared<outgoing>(outgoing{this, {}, 0, false, false, {}, change{io}})},
      stop_limit_{io} {
    auto const messages = channel_options(messages_for(demo::lockable_bytes_left()), options);
    size_slots(options.memory_bytes);
    rcverbs::connection c{
        sleeping_poller(io), std::move(request), options_of_connection(messages, slots_)};
    channel_ = rcverbs::message_channel{std::move(c), messages};
}

link::~link() {
    stop_watch();
    outgoing_->owner = nullptr;
}

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
    send_frames(SIZE_MAX);
    // All is acknowledged. On a wire that loses packets, the answer to a disconnect can be lost, and nothing repeats it
    // within the timeout.
    boost::system::error_code ignored;
    co_await channel_.async_finish(asio::redirect_error(asio::use_awaitable, ignored));
}

asio::awaitable<copy_message> link::receive() {
    for (;;) {
        // While nothing is received, nothing can be heard.
        if (!std::exchange(is_receiving_, true)) heard_ = said_ = std::chrono::steady_clock::now();
        if (rest_.empty()) {
            frame_ = {};
            auto [ec, got] = co_await channel_.async_receive(asio::as_tuple(asio::use_awaitable));
            if (ec) {
                stop_watch();
                throw boost::system::system_error{ec};
            }
            heard_ = std::chrono::steady_clock::now();
            if (!got.is_large() && got.tag() == frame_tag) rest_ = got.bytes();
            frame_ = std::move(got);
        }
        auto m = take_first(rest_);
        if (!m) {
            close_violated();
            throw boost::system::system_error{rcverbs::channel_errc::malformed_message};
        }
        if (std::holds_alternative<alive>(*m)) continue;
        is_receiving_ = false;
        says_by_.reset();
        if (std::holds_alternative<stopped>(*m)) {
            has_peer_stopped_ = true;
            close();
            throw boost::system::system_error{rcverbs::channel_errc::peer_closed_early};
        }
        co_return std::move(*m);
    }
}

void link::send(copy_message const& m) {
    outgoing& out = *outgoing_;
    if (out.closes_when_idle) return;
    if (out.is_idle()) out.since = std::chrono::steady_clock::now();
    std::vector<std::byte> bytes;
    append(bytes, m);
    if (out.frames.empty() || out.frames.back().size() + bytes.size() > frame_bytes_max)
        out.frames.push_back(std::move(bytes));
    else out.frames.back().insert(out.frames.back().end(), bytes.begin(), bytes.end());
    if (std::exchange(out.is_due, true)) return;
    asio::post(io_, [held = outgoing_] {
        held->is_due = false;
        if (held->owner != nullptr) held->owner->send_frames(on_their_way_most);
    });
}

void link::send_frames(std::size_t on_their_way_max) {
    while (!outgoing_->frames.empty() && outgoing_->on_their_way < on_their_way_max) {
        auto const bytes =
            std::make_shared<std::vector<std::byte> const>(std::move(outgoing_->frames.front()));
        outgoing_->frames.pop_front();
        ++outgoing_->on_their_way;
        channel_.async_send(
            std::span{*bytes},
            frame_tag,
            [bytes, out = outgoing_](rcverbs::error_code const&) {
                --out->on_their_way;
                out->since = std::chrono::steady_clock::now();
                if (out->owner != nullptr) out->owner->send_frames(on_their_way_most);
                if (out->owner != nullptr && out->closes_when_idle && out->is_idle())
                    out->owner->close();
                out->changes.notify();
            }
        );
    }
}

asio::awaitable<void> link::wait_for_room() {
    while (outgoing_->frames.size() > frames_most) {
        if (!channel_.is_open()) throw boost::system::system_error{channel_.last_failure().code};
        co_await outgoing_->changes.wait();
    }
}

void link::close_violated() {
    is_violated_ = true;
    close();
}

void link::stop() {
    if (!channel_.is_open() || outgoing_->closes_when_idle) return close();
    // What waits is of a copy that ends.
    outgoing_->frames.clear();
    send(stopped{});
    outgoing_->closes_when_idle = true;
    constexpr std::chrono::seconds longest{1};
    stop_limit_.expires_after(longest);
    stop_limit_.async_wait([out = outgoing_](boost::system::error_code cancelled) {
        if (!cancelled && out->owner != nullptr) out->owner->close();
    });
}

void link::close() {
    stop_watch();
    stop_limit_.cancel();
    channel_.close();
}

std::string link::failure_text(std::exception const& thrown) const {
    if (silent_for_.count() > 0)
        return "the peer has not responded for " + std::to_string(silent_for_.count() / 1000) +
               " s";
    if (has_peer_stopped_) return "the other side was stopped";
    auto const* const error = dynamic_cast<boost::system::system_error const*>(&thrown);
    if (error != nullptr && error->code() == boost::system::errc::bad_message)
        return "the data has changed on its way";
    if (is_violated_) return "the peer does not keep to the protocol of rdma-copy";
    // What has ended the copy may be something else, such as memory that cannot be registered.
    auto const& failure = channel_.last_failure();
    if (failure.code == rcverbs::cm_errc::rejected_by_peer)
        return "rejected: the server has no room for another client (--max-clients, "
               "--max-per-address, ulimit -l), or does not allow this address (--allow; its log "
               "says which), or the program that listens there is not rdma-copy";
    return failure.code ? failure.message() : thrown.what();
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
        // Often enough for a peer with a shorter limit.
        w->timer.expires_after(std::min<std::chrono::milliseconds>(timeout_ / 4, alive_interval));
        boost::system::error_code stopped;
        co_await w->timer.async_wait(asio::redirect_error(asio::use_awaitable, stopped));
        if (w->is_over || !channel_.is_open()) co_return;
        auto const now = std::chrono::steady_clock::now();
        auto const idle_limit = idle_timeouts_max * timeout_ + idle_more_;
        // The peer may be busy with its disk, and take nothing meanwhile.
        bool const is_taking = outgoing_->is_idle() || now - outgoing_->since <= idle_limit;
        bool const is_idle = is_idle_ && now - said_ > idle_limit;
        bool const is_silent = now - heard_ > timeout_ || (says_by_ && now > *says_by_);
        if (is_receiving_ && is_silent) silent_for_ = timeout_;
        else if (!is_taking || (is_receiving_ && is_idle))
            silent_for_ = idle_timeouts_max * timeout_;
        if (silent_for_.count() > 0) {
            channel_.close();
            co_return;
        }
        if (outgoing_->is_idle()) send(alive{});
    }
}

}  // namespace copy
