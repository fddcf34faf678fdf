// session_core.hpp — the state shared by session handles.
//
// Everything here runs on a strand of the connection's executor; a lock guards only what the
// observers read. Each operation is a coroutine over public connection functions; the exchange
// machine decides which message is due. A session may outlive its context: context_is_going() releases the
// strand and the timers.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include <rcverbs/session.hpp>

#include "hosting/members.hpp"
#include "machines/exchange_machine.hpp"
#include "wire/hello.hpp"
#include "wire/message.hpp"

namespace rcverbs::detail {

class session_core final : public std::enable_shared_from_this<session_core>,
                           public hosting::member {
public:
    static std::shared_ptr<session_core> make(connection over, session_options options);
    session_core(connection over, session_options options);
    ~session_core();

    // The operations. They run on the executor; the caller keeps the session alive meanwhile.
    boost::asio::awaitable<error_code> connect(endpoint peer);
    boost::asio::awaitable<error_code> accept();
    boost::asio::awaitable<error_code> publish(std::vector<named_region> regions);
    boost::asio::awaitable<error_code> wait_regions();
    boost::asio::awaitable<error_code> exchange_regions(std::vector<named_region> own);
    boost::asio::awaitable<error_code> send_done();
    boost::asio::awaitable<error_code> wait_done();
    boost::asio::awaitable<error_code> disconnect();
    boost::asio::awaitable<error_code> finish();

    /// The regions received with MSG_MR. Valid after wait_regions has succeeded.
    peer_regions const& regions() const noexcept { return regions_; }

    void close() noexcept { connection_.close(); }
    boost::asio::any_io_executor const& executor() const noexcept { return executor_; }
    failure last_failure() const;

private:
    using exchange = machines::exchange_machine;

    // MSG_MR and MSG_DONE: a session sends and receives at most one of each.
    static constexpr std::size_t messages_each_way = 2;
    enum class side : std::uint8_t { unknown, active, passive };

    void context_is_going(boost::asio::execution_context const&) noexcept override;
    error_code prepare();
    mutable_slice receive_slot(std::size_t i) const;
    mutable_slice send_slot(std::size_t i) const;
    void post_receive(std::size_t i);
    void on_received(std::size_t slot, error_code ec, receive_result what);
    error_code take_message(wire::message message);
    wire::hello own_hello() const noexcept;
    error_code fail(step where, error_code ec, close_reason reason);
    error_code fail_if_peer_left(step where, error_code ec);
    boost::asio::awaitable<error_code> send(wire::message message, std::size_t slot);
    // One wait for a message of the peer's. The timer is cancelled, which resumes the wait,
    // whenever a message or an error arrives.
    struct wait {
        std::optional<boost::asio::steady_timer> timer;
        bool is_under_way = false;
    };
    template <class Condition>
    boost::asio::awaitable<error_code> wait_for(
        wait& w, Condition has_come, step where, std::chrono::milliseconds deadline
    );

    session_options const options_;
    connection connection_;
    hosting::membership membership_;
    boost::asio::any_io_executor executor_;
    registered_buffer messages_;
    side side_ = side::unknown;
    std::uint32_t peer_message_bytes_max_ = 0;
    exchange exchange_;
    peer_regions regions_;
    bool done_was_delivered_ = false;
    // Set when no further message can arrive.
    std::optional<error_code> inward_end_;
    bool has_regions_ = false;
    wait regions_wait_;
    wait done_wait_;

    mutable std::mutex mutex_;  // guards what the observers read
    failure failure_;
};

}  // namespace rcverbs::detail
