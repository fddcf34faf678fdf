// exchange.hpp — the two sides of an authentication, without I/O: what they say, and what they make of
// what they hear.
//
//     connecting side                      accepting side
//     request() ──────── request ────────▶ take_request(), acceptance()
//     take_acceptance() ◀── acceptance ───
//     proof(hello) ──────── PROOF ───────▶ take_proof()
//     take_result() ◀────── RESULT ─────── result(verdict, hello)
//
// Each proof covers everything that was said before it; docs/reference/authentication-format.md has the
// computation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rcverbs/error.hpp>

#include "authentication/digests.hpp"
#include "authentication/secret.hpp"
#include "wire/authentication_message.hpp"

namespace rcverbs::detail {

/// An IP address as IPv6, or a GID, and the port.
using authenticated_address = std::array<std::byte, 18>;

/// Of the two sides of a connection.
struct authenticated_addresses {
    authenticated_address connecting{};
    authenticated_address accepting{};
};

/// Of messages that are encrypted, one for each direction.
struct message_keys {
    secret connecting;
    secret accepting;
};

/// What both sides do.
class authentication_side {
public:
    /// Who the connecting side is.
    std::string const& identity() const noexcept { return request_.identity; }
    /// The peer's hello, once its proof was right.
    std::span<std::byte const> peer_hello() const noexcept { return peer_hello_; }
    /// Once the result is known.
    message_keys keys() const;

protected:
    explicit authentication_side(bool encrypts) { request_.encrypts = encrypts; }

    void begin_transcript(authenticated_addresses const& who);
    secret accepting_key(secret const& shared) const;
    secret connecting_key(secret const& shared) const;
    std::vector<std::byte> salt() const;

    wire::authentication_request request_;
    wire::authentication_nonce accepting_nonce_{};
    digest transcript_{};  // of all that was said
    secret shared_;  // the key that both have
    std::vector<std::byte> peer_hello_;
};

class connecting_authentication : public authentication_side {
public:
    /// @param keys   At least one.
    /// @param nonce  Random.
    connecting_authentication(
        std::string identity,
        std::vector<secret> keys,
        bool encrypts,
        wire::authentication_nonce const& nonce
    );

    /// The private data of the request.
    std::vector<std::byte> request() const { return wire::encode(request_); }
    error_code take_acceptance(
        std::span<std::byte const> private_data, authenticated_addresses const& who
    );
    /// PROOF, with this side's hello. REQUIRES: take_acceptance() has succeeded.
    std::vector<std::byte> proof(std::span<std::byte const> hello);
    /// Empty also if the peer has refused: then verdict() says so. REQUIRES: proof() was called.
    error_code take_result(std::span<std::byte const> message);
    wire::authentication_verdict verdict() const noexcept { return verdict_; }

private:
    std::vector<secret> keys_;
    wire::authentication_verdict verdict_ = wire::authentication_verdict::accepted;
};

class accepting_authentication : public authentication_side {
public:
    using key_source = std::function<std::vector<secret>(std::string_view identity)>;

    explicit accepting_authentication(bool encrypts) : authentication_side{encrypts} {}

    /// Why the peer is rejected; none if it may go on to prove who it is.
    wire::authentication_refusal take_request(
        std::span<std::byte const> private_data, key_source const& keys
    );
    /// The private data of the acceptance. REQUIRES: take_request() has succeeded.
    ///
    /// @param nonce   Random.
    /// @param filler  Random: stands in place of a second proof.
    std::vector<std::byte> acceptance(
        authenticated_addresses const& who,
        wire::authentication_nonce const& nonce,
        wire::authentication_proof const& filler
    );
    /// REQUIRES: acceptance() was called.
    error_code take_proof(std::span<std::byte const> message);
    /// RESULT. REQUIRES: take_proof() has succeeded.
    std::vector<std::byte> result(
        wire::authentication_verdict verdict, std::span<std::byte const> hello
    );

private:
    std::vector<secret> keys_;
};

}  // namespace rcverbs::detail
