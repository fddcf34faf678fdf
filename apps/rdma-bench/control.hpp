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
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/rcverbs.hpp>

#include "rdma-bench/connection_group.hpp"
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
    control(boost::asio::io_context& io, rcverbs::connection c, limits const& l);
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
    void close() noexcept { state_->link->close(); }
    rcverbs::failure last_failure() const { return state_->link->last_failure(); }
    /// Who the client is, if it has proved that.
    std::string peer_identity() const { return state_->link->peer_identity(); }

    rcverbs::connection& connection() noexcept { return state_->link->lower(); }

private:
    static constexpr std::size_t text_bytes_max = std::size_t{256} << 10;
    static constexpr std::size_t receives = 4;
    // Client and server alternate, so more unread texts break the protocol.
    static constexpr std::size_t texts_max = 4;

    // Lets only those in who have a key, if there are keys; has no hello of its own.
    class authenticated final : public rcverbs::protocol::handshake {
    public:
        authenticated(rcverbs::connection c, rcverbs::authentication_options const& how)
            : handshake{std::move(c)} {
            authenticate(how);
        }
        using driver::lower;
        // Called before the peer can send.
        std::function<void()> on_prepare;

    private:
        rcverbs::error_code prepare() override;
        std::vector<std::byte> hello(rcverbs::error_code) const override { return {}; }
        rcverbs::error_code judge(std::span<std::byte const>) override { return {}; }
        rcverbs::error_code reason(std::span<std::byte const>) const override { return {}; }
        void on_end(rcverbs::failure const&) override {}
    };
    // Shared with the handlers, which may outlive this object.
    struct state {
        state(
            boost::asio::io_context& io,
            rcverbs::connection c,
            rcverbs::authentication_options const& how
        )
            : link{rcverbs::protocol::make<authenticated>(std::move(c), how)},
              arrived{io} {}
        rcverbs::registered_buffer outgoing;
        rcverbs::registered_buffer incoming;
        rcverbs::registered_buffer alive;
        std::shared_ptr<authenticated> link;
        boost::asio::steady_timer arrived;
        std::deque<std::string> texts;
        std::chrono::steady_clock::time_point last_heard = std::chrono::steady_clock::now();
        // Whether the keepalive text counts as heard: a peer that has no plan must not stay.
        bool is_kept_alive = false;
        rcverbs::error_code failed;
    };

    static void prepare(std::shared_ptr<state> const& s);
    // Closes the connection unless the timer is destroyed within `patience`.
    boost::asio::steady_timer close_after_patience();
    static void post_receive(std::shared_ptr<state> const& s, std::size_t index);

    std::shared_ptr<state> state_;
    std::chrono::milliseconds patience_;
};

}  // namespace rdma_bench
