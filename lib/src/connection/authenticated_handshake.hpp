// authenticated_handshake.hpp — the part of a handshake in which both sides prove that they have a key: what is
// sent and received, and for how long. What is said is the business of authentication/exchange.hpp.
//
// Until the peer has proved it, it has no right to memory; the handshake's memory and receives are made
// afterwards; and this side sends no keepalives, which the peer would refuse as it has the same rule.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <rcverbs/authentication.hpp>
#include <rcverbs/experimental/protocol/deadline.hpp>
#include <rcverbs/experimental/protocol/handshake.hpp>
#include <rcverbs/experimental/protocol/slots.hpp>

#include "authentication/exchange.hpp"
#include "authentication/message_cipher.hpp"

namespace rcverbs::protocol {

class handshake::authentication {
public:
    authentication(handshake& owner, authentication_options const& options);

    /// The address is resolved.
    void connect(waiter<error_code> who);
    void accept(waiter<error_code> who);
    /// The peer's proof and hello are right; `refused` if it is refused all the same.
    void answer(error_code refused, waiter<error_code> who);
    void abandon() noexcept { who_ = {}; }

    // Any thread.
    // Behind the store in take_result() or take_proof(): the peer's hello is there, and does not change.
    bool has_peer_hello() const noexcept { return is_proved_.load(std::memory_order_acquire); }
    detail::authentication_side const& side() const noexcept {
        return owner_.is_active() ? static_cast<detail::authentication_side const&>(*connecting_)
                                  : *accepting_;
    }

    std::optional<detail::message_cipher> cipher;

private:
    error_code begin();
    error_code begin_connecting();
    error_code begin_accepting();
    detail::authenticated_addresses addresses() const;
    void on_established();
    void on_message(error_code ec, bool is_message, std::span<std::byte const> bytes);
    void look();
    error_code take_acceptance();
    error_code take_result();
    error_code take_proof();
    error_code open_to_peer();
    void send(std::vector<std::byte> const& message, bool is_last, error_code refused);
    void finish(error_code ec);
    void free_if_over();
    void violated(error_code why);
    error_code cause_of(error_code ec) const;
    template <class Function>
    error_code guarded(Function function);

    handshake& owner_;
    authentication_options const options_;
    // Until both messages are over.
    std::optional<slots> places_;
    bool is_sending_ = false;
    bool is_over_ = false;
    deadline limit_;
    std::optional<detail::connecting_authentication> connecting_;
    std::optional<detail::accepting_authentication> accepting_;
    waiter<error_code> who_;
    std::optional<std::chrono::milliseconds> keepalive_interval_;
    bool is_established_ = false;
    std::optional<std::vector<std::byte>> message_;  // the peer's
    error_code receive_failed_;
    std::atomic<bool> is_proved_{false};
};

}  // namespace rcverbs::protocol
