// control.hpp — the control connection between client and server: alternating JSON texts, as sends.
//
// Runs on the io_context's thread, without a polling thread, so that it does not disturb a
// measurement.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <nlohmann/json.hpp>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include <rcverbs/rcverbs.hpp>

#include "rdma-bench/protocol.hpp"

namespace rdma_bench {

/// The server's default port.
inline constexpr std::uint16_t port_default = 7472;
/// Options of control connections and of their acceptor.
rcverbs::connection_options control_options();
/// Polls for control connections.
rcverbs::poller control_poller(boost::asio::io_context& io);

class control {
public:
    /// Takes a connection that is not connected yet.
    control(boost::asio::io_context& io, rcverbs::connection c, std::chrono::milliseconds patience);
    ~control();

    // These throw boost::system::system_error; receive() also protocol_error.
    boost::asio::awaitable<void> connect(rcverbs::endpoint server);
    boost::asio::awaitable<void> accept();
    /// Sends a text of up to 256 KiB. Closes the connection if the peer has not received it within
    /// `patience`.
    boost::asio::awaitable<void> send(nlohmann::json const& what);
    /// The peer's first text. Throws errc::timed_out if it does not arrive within `patience`.
    boost::asio::awaitable<nlohmann::json> receive_hello();
    /// The peer's next text. Throws errc::timed_out if nothing arrives within `patience`, not even
    /// the keepalive text.
    boost::asio::awaitable<nlohmann::json> receive();
    /// Sends the keepalive text. Does nothing if it is not connected.
    void send_alive();
    /// Disconnects in order.
    boost::asio::awaitable<void> disconnect();
    /// Waits for the peer to disconnect, and closes if it does not.
    boost::asio::awaitable<void> await_end();
    void close() noexcept { state_->connection.close(); }

    rcverbs::connection& connection() noexcept { return state_->connection; }

private:
    static constexpr std::size_t text_bytes_max = std::size_t{256} << 10;
    static constexpr std::size_t receives = 4;
    // Client and server alternate, so more unread texts break the protocol.
    static constexpr std::size_t texts_max = 4;

    // Shared with the handlers, which may outlive this object.
    struct state {
        state(boost::asio::io_context& io, rcverbs::connection c)
            : connection{std::move(c)},
              arrived{io} {}
        rcverbs::registered_buffer outgoing;
        rcverbs::registered_buffer incoming;
        rcverbs::registered_buffer alive;
        rcverbs::connection connection;
        boost::asio::steady_timer arrived;
        std::deque<std::string> texts;
        std::chrono::steady_clock::time_point last_heard = std::chrono::steady_clock::now();
        // Whether the keepalive text counts as heard: a peer that has no plan must not stay.
        bool is_kept_alive = false;
        rcverbs::error_code failed;
    };

    void prepare();
    // Closes the connection unless the timer is destroyed within `patience`.
    boost::asio::steady_timer close_after_patience();
    static void post_receive(std::shared_ptr<state> const& s, std::size_t index);

    std::shared_ptr<state> state_;
    std::chrono::milliseconds patience_;
};

}  // namespace rdma_bench
