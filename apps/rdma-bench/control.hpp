// control.hpp — the connection on which client and server agree what to do: JSON texts, in turn, as sends.
//
// On the io_context's own thread, without one of its own: nothing of it runs while something is measured.
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

namespace rdma_bench {

/// Where a server listens if nothing else is said.
inline constexpr std::uint16_t port_default = 7472;
/// Both sides' programs must speak the same.
inline constexpr int protocol_version = 1;

/// Options for control connections and the acceptor of them.
rcverbs::connection_options control_options();

class control {
public:
    /// For a connection that is not connected yet.
    control(boost::asio::io_context& io, rcverbs::connection c, std::chrono::milliseconds patience);
    ~control();

    // Each throws boost::system::system_error; receive() nlohmann::json::exception, too.
    boost::asio::awaitable<void> connect(rcverbs::endpoint server);
    boost::asio::awaitable<void> accept();
    /// Sends a text of up to 256 KiB.
    boost::asio::awaitable<void> send(nlohmann::json const& what);
    /// The next text of the peer's, within the time; without end if `is_patient`.
    boost::asio::awaitable<nlohmann::json> receive(bool is_patient = false);
    /// Ends in order.
    boost::asio::awaitable<void> disconnect();
    void close() noexcept { state_->connection.close(); }

    rcverbs::connection& connection() noexcept { return state_->connection; }

private:
    static constexpr std::size_t text_bytes_max = std::size_t{256} << 10;
    static constexpr std::size_t receives = 4;

    // Shared with the handlers, which may outlive the rest.
    struct state {
        state(boost::asio::io_context& io, rcverbs::connection c) : connection{std::move(c)}, arrived{io} {}
        rcverbs::buffer outgoing;
        rcverbs::buffer incoming;
        rcverbs::connection connection;
        boost::asio::steady_timer arrived;
        std::deque<std::string> texts;
        rcverbs::error_code failed;
    };

    void prepare();
    static void post_receive(std::shared_ptr<state> const& s, std::size_t index);

    std::shared_ptr<state> state_;
    std::chrono::milliseconds patience_;
};

}  // namespace rdma_bench
