// authentication.hpp — DH-HMAC-CHAP for one queue: the controller's side of the exchange, as bytes.
//
//     host: negotiate → challenge: us;  host: reply → success1 or failure1: us;  host: success2
//
// The host proves that it has its secret. If it sends a challenge in its reply, the controller
// proves that it has one, too. Source: NVM Express Base Specification 2.0, 8.13.5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <rcverbs/nvme/target.hpp>

namespace rcverbs::nvme::detail {

/// A secret in the form "DHHC-1:NN:BASE64:", decoded.
struct dhchap_key {
    std::uint8_t hash = 0;  // with which it is transformed: 0 for not at all, 1 to 3
    std::vector<std::byte> value;

    /// Empty `value` if the text is malformed or its checksum is wrong.
    static dhchap_key decode(std::string const& text);
};

class authenticator {
public:
    /// @param secrets    Of the host.
    /// @param subsystem  The NQN that the host connects to.
    authenticator(host_secrets const& secrets, std::string subsystem);
    authenticator(authenticator const&) = delete;
    authenticator& operator=(authenticator const&) = delete;
    ~authenticator();

    /// The host has proved itself, and the controller itself if the host asked for that. While it
    /// does so again, it may go on.
    bool is_done() const noexcept { return is_proven_ && state_ != state::failed; }
    /// The host has failed, and has been told.
    bool has_failed() const noexcept { return state_ == state::failed; }

    /// Takes a message of the host. False if it is out of order: the command is refused.
    bool on_message(std::span<std::byte const> in);
    /// Writes the message for the host. False if there is none, or no room for it.
    bool next_message(std::span<std::byte> out);

private:
    enum class state {
        expects_negotiate,
        owes_challenge,
        expects_reply,
        owes_success,
        owes_failure,
        expects_success,
        done,
        failed
    };
    class dh_exchange;

    bool on_negotiate(std::span<std::byte const> in);
    bool on_reply(std::span<std::byte const> in);
    bool fail(std::uint8_t reason);
    std::vector<std::byte> write_challenge();
    std::vector<std::byte> write_success() const;
    std::vector<std::byte> write_failure() const;
    std::vector<std::byte> respond(
        dhchap_key const& key,
        std::vector<std::byte> nonce,
        std::uint32_t sequence,
        std::string const& role,
        std::string const& whose,
        std::string const& other
    ) const;

    std::string const host_;
    std::string const subsystem_;
    dhchap_key const host_key_;
    dhchap_key const own_key_;
    state state_ = state::expects_negotiate;
    bool is_proven_ = false;
    unsigned negotiations_ = 0;
    std::uint16_t transaction_ = 0;
    std::uint8_t hash_ = 0;
    std::uint8_t group_ = 0;
    std::uint8_t failure_ = 0;
    std::uint32_t sequence_ = 0;
    std::vector<std::byte> challenge_;
    std::vector<std::byte> shared_;  // the shared secret of Diffie and Hellman; empty for none
    std::vector<std::byte> proof_;  // the controller's response; empty if the host wants none
    std::unique_ptr<dh_exchange> dh_;
};

}  // namespace rcverbs::nvme::detail
