// session_core.hpp — the session protocol, on the kit of rcverbs/experimental/protocol.hpp.
//
// Everything here runs inside the driver. The exchange machine decides which message is due.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/session.hpp>

#include "machines/exchange_machine.hpp"
#include "wire/hello.hpp"
#include "wire/message.hpp"

namespace rcverbs::detail {

class session_core final : public protocol::handshake {
public:
    /// Called once with the result of an operation.
    using done = std::function<void(error_code)>;

    session_core(connection over, session_options options);

    using actor::deliver;
    using actor::enter;

    // Inside.
    void connect(endpoint const& peer, protocol::waiter<error_code> who);
    void accept(protocol::waiter<error_code> who);
    void publish(std::vector<named_region> regions, done const& then);
    void wait_regions(done then);
    void exchange_regions(std::vector<named_region> own, done const& then);
    void send_done(done const& then);
    void wait_done(done then);
    void disconnect(done then);
    void finish(done then);

    /// The regions received with MSG_MR. Valid after wait_regions has succeeded.
    peer_regions const& regions() const noexcept { return regions_; }

private:
    using exchange = machines::exchange_machine;

    // MSG_MR and MSG_DONE: a session sends and receives at most one of each.
    static constexpr std::size_t messages_each_way = 2;

    // One wait for a message of the peer's.
    struct wait {
        explicit wait(session_core& owner) : limit{owner} {}

        protocol::deadline limit;
        done waiting;
    };

    void on_end(failure const& why) override;
    void on_abandoned() noexcept override;
    error_code prepare() override;
    std::vector<std::byte> hello(error_code refused) const override;
    error_code judge(std::span<std::byte const> theirs) override;
    error_code reason(std::span<std::byte const> theirs) const override;
    void on_result(error_code ec, bool is_of_connection) override;
    wire::verdict verdict_on(std::span<std::byte const> theirs, error_code& foreign) const noexcept;
    void on_received(error_code ec, receive_result const& what, std::span<std::byte> bytes);
    void on_inward_end(error_code ec);
    error_code take_message(wire::message message);
    wire::hello own_hello() const noexcept;
    error_code fail_if_peer_left(step where, error_code ec);
    void send(wire::message const& message, std::size_t slot, done then);
    void start_wait(wait& w, step where, std::chrono::milliseconds timeout, done then);
    void look(wait& w);
    static void end_wait(wait& w, error_code result);
    bool has_come(wait const& w) const noexcept;
    void on_done_sent(error_code ec, done const& then);
    void on_disconnected(error_code ec, done const& then);
    session_options const options_;
    protocol::slots slots_{*this};
    bool is_answer_wrong_ = false;
    std::uint32_t peer_message_bytes_max_ = 0;
    exchange exchange_;
    peer_regions regions_;
    bool done_was_delivered_ = false;
    // Set when no further message can arrive.
    std::optional<error_code> inward_end_;
    bool has_regions_ = false;
    wait regions_wait_{*this};
    wait done_wait_{*this};
    protocol::deadline disconnect_limit_{*this};
};

}  // namespace rcverbs::detail
