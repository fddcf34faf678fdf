// session_core.hpp — what a session handle shares.
//
// Everything here runs on the connection's executor, which serves one function at a time; only the observers have a
// lock. Each operation is a coroutine over public connection calls; the exchange machine says what is due.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include <rcverbs/session.hpp>

#include "machines/exchange_machine.hpp"
#include "wire/hello.hpp"
#include "wire/message.hpp"

namespace rcverbs::detail {

class session_core : public std::enable_shared_from_this<session_core> {
public:
    session_core(connection over, session_options options);

    // The operations. Run on the executor; `self` keeps them alive.
    boost::asio::awaitable<error_code> connect(endpoint peer);
    boost::asio::awaitable<error_code> accept();
    boost::asio::awaitable<error_code> publish(std::vector<named_region> regions);
    boost::asio::awaitable<error_code> wait_regions();
    boost::asio::awaitable<error_code> exchange_regions(std::vector<named_region> own);
    boost::asio::awaitable<error_code> send_done();
    boost::asio::awaitable<error_code> wait_done();
    boost::asio::awaitable<error_code> disconnect();
    boost::asio::awaitable<error_code> finish();

    /// The regions that MSG_MR brought, once wait_regions has completed without error.
    peer_regions const& regions() const noexcept { return regions_; }

    connection& over() noexcept { return connection_; }
    close_reason reason() const;
    failure last_failure() const;

private:
    using exchange = machines::exchange_machine;

    // MSG_MR and MSG_DONE: a session sends and receives at most one of each.
    static constexpr std::size_t messages_each_way = 2;
    enum class side : std::uint8_t { unknown, active, passive };

    error_code prepare();
    local_slice receive_slot(std::size_t i) const;
    local_slice send_slot(std::size_t i) const;
    void post_receive(std::size_t i);
    void on_received(std::size_t slot, error_code ec, received what);
    error_code take_message(wire::message message);
    wire::hello own_hello() const noexcept;
    error_code fail(step where, error_code ec, close_reason reason);
    boost::asio::awaitable<error_code> send(wire::message message, std::size_t slot, step where);
    // One wait for something of the peer's. Its timer is woken, by cancelling it, whenever something has come in.
    struct wait {
        boost::asio::steady_timer timer;
        bool is_under_way = false;
    };
    template <class Condition>
    boost::asio::awaitable<error_code> wait_for(
        wait& w, Condition has_come, step where, std::chrono::milliseconds deadline
    );

    session_options const options_;
    connection connection_;
    buffer messages_;
    side side_ = side::unknown;
    exchange exchange_;
    peer_regions regions_;
    bool done_was_delivered_ = false;
    // Set when no message can come any more.
    std::optional<error_code> inward_end_;
    bool has_regions_ = false;
    wait regions_wait_;
    wait done_wait_;

    mutable std::mutex mutex_;  // guards what the observers read
    failure failure_;
    close_reason reason_ = close_reason::open;
};

}  // namespace rcverbs::detail
