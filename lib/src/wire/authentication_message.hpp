// authentication_message.hpp — what two sides say to each other to prove that they have a key.
//
// In network byte order. In the private data of the connection manager:
//
//   offset  size  field
//        0     2  magic, 0xCA5E
//        2     1  version, 1
//        3     1  request and acceptance: 1 if messages are encrypted, else 0; rejection: why
//        4    16  a random number; this and the rest are missing in a rejection
//       20     1  request: bytes of the identity, 1 to 32, and then the identity
//       20    64  acceptance: two proofs of 32 bytes, one for each key; random bytes if there is one key
//
// and, as the first message of each side, PROOF of the connecting one and RESULT of the accepting one:
//
//   offset  size  PROOF                           RESULT
//        0    32  the proof                       the proof
//       32     2  bytes of the hello              0 accepted, 1 refused as the hello says,
//                                                 2 identity refused
//       34     2  the hello from here on          bytes of the hello, which is behind them
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <rcverbs/error.hpp>

namespace rcverbs::wire {

inline constexpr std::uint8_t authentication_version = 1;
inline constexpr std::size_t authentication_nonce_bytes = 16;
inline constexpr std::size_t authentication_proof_bytes = 32;
inline constexpr std::size_t authentication_identity_bytes_max = 32;
/// As private data of a connection, the longest hello that there is.
inline constexpr std::size_t authentication_hello_bytes_max = 196;
/// The longest message.
inline constexpr std::size_t authentication_message_bytes_max =
    authentication_proof_bytes + 4 + authentication_hello_bytes_max;

using authentication_nonce = std::array<std::byte, authentication_nonce_bytes>;
using authentication_proof = std::array<std::byte, authentication_proof_bytes>;

/// Why the accepting side refuses a request. The numbers go on the wire.
enum class authentication_refusal : std::uint8_t {
    none = 0,
    other_version = 1,
    /// One side authenticates, or encrypts, and the other does not.
    mismatch = 2,
    unknown_identity = 3,
    malformed = 4,
};

enum class authentication_verdict : std::uint16_t {
    accepted = 0,
    refused = 1,
    identity_refused = 2,
};

struct authentication_request {
    std::uint8_t version = authentication_version;
    bool encrypts = false;
    authentication_nonce nonce{};
    std::string identity;
};

struct authentication_acceptance {
    bool encrypts = false;
    authentication_nonce nonce{};
    std::array<authentication_proof, 2> proofs{};
};

struct authentication_proof_message {
    authentication_proof proof{};
    std::span<std::byte const> hello;
};

struct authentication_result_message {
    authentication_proof proof{};
    authentication_verdict verdict = authentication_verdict::accepted;
    std::span<std::byte const> hello;
};

/// True if private data is of this protocol, of any version.
bool is_authentication(std::span<std::byte const> in) noexcept;

std::vector<std::byte> encode(authentication_request const& r);
std::vector<std::byte> encode(authentication_acceptance const& a);
std::vector<std::byte> encode(authentication_refusal why);
std::vector<std::byte> encode(authentication_proof_message const& m);
std::vector<std::byte> encode(authentication_result_message const& m);

/// REQUIRES: is_authentication(in).
authentication_refusal decode(std::span<std::byte const> in, authentication_request& r);
/// Empty if it is malformed.
std::optional<authentication_acceptance> decode_authentication_acceptance(
    std::span<std::byte const> in
) noexcept;
/// The reason of a rejection; `malformed` for numbers that this version does not know.
/// REQUIRES: is_authentication(in).
authentication_refusal decode_authentication_refusal(std::span<std::byte const> in) noexcept;
/// Empty if it is malformed. The hello refers to `in`.
std::optional<authentication_proof_message> decode_authentication_proof(
    std::span<std::byte const> in
) noexcept;
/// As above.
std::optional<authentication_result_message> decode_authentication_result(
    std::span<std::byte const> in
) noexcept;

/// The error of a refusal, for both sides; none for `none`.
error_code to_error(authentication_refusal why) noexcept;

}  // namespace rcverbs::wire
