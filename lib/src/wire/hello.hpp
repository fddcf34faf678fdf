// hello.hpp — the first bytes of a session, carried in the connection manager's private data.
//
// 24 bytes in network byte order, the same in a request, an acceptance and a refusal:
//
//   offset  size  field
//        0     4  magic, "RCVS"
//        4     2  version of the session protocol, 1
//        6     2  verdict: 0 in a request and an acceptance, else why the session is refused
//        8     4  mode, the application's own number; both sides must have the same
//       12     4  message_bytes_max: the longest message that the sender of the hello receives
//       16     2  receives: how many receives the sender of the hello keeps posted
//       18     6  zero
//
// The connection manager pads private data with zeros to the length of its field, so a longer field
// is no error. A later version may use the bytes that are zero here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rcverbs/session_error.hpp>

namespace rcverbs::wire {

inline constexpr std::size_t hello_bytes = 24;
inline constexpr std::uint16_t protocol_version = 1;

/// The reason why a session is refused. The numbers go on the wire.
enum class verdict : std::uint16_t {
    welcome = 0,
    version_mismatch = 1,
    mode_mismatch = 2,
    busy = 3,
    malformed = 4,
};

struct hello {
    std::uint16_t version = protocol_version;
    verdict answer = verdict::welcome;
    std::uint32_t mode = 0;
    std::uint32_t message_bytes_max = 0;
    std::uint16_t receives = 0;
    /// False if bytes are set that this version leaves zero.
    bool is_padded = true;

    friend bool operator==(hello const&, hello const&) = default;
};

std::array<std::byte, hello_bytes> encode(hello const& h) noexcept;

/// The minimum that each side has to offer: one receive each for MSG_MR and MSG_DONE, and the size
/// of a message without regions.
inline constexpr std::uint16_t receives_min = 2;
inline constexpr std::uint32_t message_bytes_min = 16;

/// Decodes a hello. session_errc::foreign_peer if the magic or the size is wrong. Checks nothing else,
/// because a hello of another version has other rules.
hello decode_hello(std::span<std::byte const> in, error_code& ec) noexcept;

/// The error code of a verdict, of a protocol's enumeration; none for `welcome`.
template <class Errc>
error_code to_error(verdict v) noexcept {
    switch (v) {
    case verdict::welcome: return {};
    case verdict::version_mismatch: return Errc::version_mismatch;
    case verdict::mode_mismatch: return Errc::mode_mismatch;
    case verdict::busy: return Errc::peer_busy;
    case verdict::malformed: return Errc::foreign_peer;
    }
    return Errc::foreign_peer;
}

/// The error of this side's verdict on a peer's hello: as to_error(), but malformed_message for
/// `malformed`.
template <class Errc>
error_code judgement(verdict v) noexcept {
    return v == verdict::malformed ? make_error_code(Errc::malformed_message) : to_error<Errc>(v);
}

/// The error of a peer's refusal. Never success: a refusal with the verdict `welcome` breaks the
/// format.
template <class Errc>
error_code refusal(verdict v) noexcept {
    return v == verdict::welcome ? make_error_code(Errc::malformed_message) : to_error<Errc>(v);
}

/// The verdict on a peer's request: whether it is well-formed and compatible with `ours`.
verdict judge_request(hello const& ours, hello const& theirs) noexcept;

/// Checks a peer's acceptance. Fails if its verdict is a refusal, if it breaks the format, or if it
/// is not compatible with `ours`.
error_code check_acceptance(hello const& ours, hello const& theirs) noexcept;

/// The same of a whole hello.
error_code check_refusal(hello const& theirs) noexcept;

}  // namespace rcverbs::wire
