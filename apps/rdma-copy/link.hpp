// link.hpp — the connection of a copy: messages in both directions, slots, and a limit for silence.
//
// One thread, which runs the io_context.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <rcverbs/message_channel.hpp>

#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/disk.hpp"

namespace copy {

namespace asio = boost::asio;

/// Half of what this process may still lock, or less where messages need more than the other half, for the
/// slots of one side. At most 8 MiB.
std::size_t usual_memory();

struct link_options {
    /// Bytes of this side's slots, in all; 0 for usual_memory().
    std::size_t memory_bytes = 0;
    /// A peer that says nothing for this long has gone.
    std::chrono::milliseconds timeout{30000};
    /// Who may connect.
    rcverbs::authentication_options authentication{};
};

class link {
public:
    link(asio::io_context& io, link_options const& options);
    link(asio::io_context& io, rcverbs::connection_request request, link_options const& options);
    link(link const&) = delete;
    link& operator=(link const&) = delete;
    ~link();

    asio::awaitable<void> connect(rcverbs::endpoint peer);
    asio::awaitable<void> accept();
    /// The client's name, if it has proved it.
    std::string peer_identity() const { return channel_.peer_identity(); }
    /// The next message must come within the timeout; ALIVE is none.
    void require_message() { says_by_ = std::chrono::steady_clock::now() + timeout_; }
    /// This side waits for nothing but messages of the peer, or it does not. A peer that only says ALIVE
    /// while it waits, for idle_timeouts_max times the timeout and `more`, is left.
    void set_idle(bool is_idle, std::chrono::seconds more = {}) noexcept {
        if (is_idle && !is_idle_) said_ = std::chrono::steady_clock::now();
        is_idle_ = is_idle;
        idle_more_ = more;
    }
    static constexpr int idle_timeouts_max = 10;
    /// Says that no more messages follow, and waits for the same from the peer. How that ends is no matter: both sides
    /// have had the last message of the copy.
    asio::awaitable<void> finish();

    /// The next message that is not ALIVE. Throws boost::system::system_error: those of
    /// message_channel::async_receive, rcverbs::channel_errc::malformed_message (and closes).
    asio::awaitable<copy_message> receive();
    /// Sends it, together with what is sent before the event loop turns, or while the frames before are on their way.
    /// If that fails receive() fails, too.
    void send(copy_message const& m);
    /// Until few messages wait for a peer that does not take them. Throws if it has ended.
    asio::awaitable<void> wait_for_room();
    /// Ends because the peer has broken the rules; receive() fails.
    void close_violated();
    /// Ends at once; receive() fails.
    void close();
    /// Tells the peer that this side was stopped, for a second at most, and ends; receive() fails.
    void stop();
    /// The peer was stopped by its user; no error of either side.
    bool has_peer_stopped() const noexcept { return has_peer_stopped_; }

    rcverbs::message_channel_statistics statistics() const { return channel_.statistics(); }
    rcverbs::connection& connection() { return channel_.next_layer(); }
    asio::io_context& io() noexcept { return io_; }
    std::size_t slot_bytes() const noexcept { return slot_bytes_; }
    std::size_t slots() const noexcept { return slots_; }
    /// Why it has ended, in words; with what was thrown.
    std::string failure_text(std::exception const& thrown) const;

private:
    void size_slots(std::size_t memory_bytes);
    void send_frames(std::size_t on_their_way_max);
    void start_watch();
    asio::awaitable<void> watch();
    void stop_watch();

    asio::io_context& io_;
    std::chrono::milliseconds const timeout_;
    std::size_t slot_bytes_ = 0;
    std::size_t slots_ = 0;
    rcverbs::message_channel channel_;
    std::chrono::steady_clock::time_point heard_;
    std::chrono::steady_clock::time_point said_;  // the last message that is not ALIVE
    std::optional<std::chrono::steady_clock::time_point> says_by_;
    // Lives as long as its coroutine, which may be longer than the link.
    struct watcher {
        asio::steady_timer timer;
        bool is_over = false;
    };
    // As long as the handlers of sends.
    struct outgoing {
        bool is_idle() const noexcept { return frames.empty() && on_their_way == 0; }

        link* owner = nullptr;  // while there is one
        std::deque<std::vector<std::byte>> frames;  // the last one takes more messages
        std::size_t on_their_way = 0;
        bool is_due = false;
        bool closes_when_idle = false;  // and takes no more
        // Of the last change, or the beginning.
        std::chrono::steady_clock::time_point since;
        change changes;
    };
    std::shared_ptr<outgoing> const outgoing_;
    std::shared_ptr<watcher> watcher_;
    rcverbs::message frame_;  // that messages are taken from
    std::span<std::byte const> rest_;
    bool is_receiving_ = false;
    bool is_idle_ = false;
    std::chrono::seconds idle_more_{0};
    std::chrono::milliseconds silent_for_{0};
    bool is_violated_ = false;
    bool has_peer_stopped_ = false;
    asio::steady_timer stop_limit_;
};

}  // namespace copy
