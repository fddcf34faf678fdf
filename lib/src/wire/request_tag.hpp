// request_tag.hpp — what the tag of a message says on a request channel, and what precedes its body.
//
// 8 bytes in network byte order:
//
//   offset  size  field
//        0     1  kind: 1 REQUEST, 2 NOTICE, 3 ANSWER, 4 DROPPED, 5 CANCEL, 6 END, 7 RELEASED
//        1     1  bits 0 to 6: bytes of the application's head, 0 to 64; bit 7: REQUEST: the answer
//                 may be written to memory of the sender's; ANSWER: it has been
//        2     2  REQUEST, NOTICE: a number below the peer's limit of requests, free at the sender;
//                 ANSWER, DROPPED, CANCEL, RELEASED: that of the request; END: zero
//        4     4  REQUEST, NOTICE: operation, the application's number; ANSWER: status, the
//                 application's number; else zero
//
// REQUEST, NOTICE and ANSWER have a body of any size, the others have none. Before the body of an
// EAGER, and behind the segments of a LARGE, there is a prefix: with bit 7 the memory (REQUEST: a
// region of 24 bytes as a segment, with the right remote_write) or the number of bytes that were
// written (ANSWER: 8 bytes, and no body); then the head.
//
// A number is free again when its ANSWER, or DROPPED, has arrived; a NOTICE gets an ANSWER with
// status 0 and without a prefix or body. CANCEL of a REQUEST with bit 7 that is not answered gets
// RELEASED: nothing will be written to its memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rcverbs/channel_error.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs::wire {

inline constexpr std::size_t request_head_bytes_max = 64;

enum class request_kind : std::uint8_t {
    request = 1,
    notice = 2,
    answer = 3,
    dropped = 4,
    cancel = 5,
    end = 6,
    released = 7,
};

struct request_tag {
    request_kind kind = request_kind::request;
    std::uint16_t id = 0;
    std::uint32_t value = 0;
    std::uint8_t head_bytes = 0;
    /// The memory of a REQUEST, or the size of what an ANSWER has written, is in the prefix.
    bool has_target = false;

    constexpr std::size_t prefix_bytes() const noexcept {
        std::size_t const target =
            kind == request_kind::answer ? sizeof(std::uint64_t) : remote_region::encoded_bytes;
        return head_bytes + (has_target ? target : 0);
    }

    friend bool operator==(request_tag const&, request_tag const&) = default;
};

/// The sizes of a message: an EAGER has `bytes` bytes, prefix and body; a LARGE has a body of
/// `bytes` bytes, and `behind_segments` more behind its segments.
struct request_sizes {
    std::uint64_t bytes = 0;
    bool is_large = false;
    std::size_t behind_segments = 0;
};

constexpr std::uint64_t encode(request_tag const& t) noexcept {
    std::uint64_t const parts = t.head_bytes | (t.has_target ? 0x80U : 0U);
    return std::uint64_t{static_cast<std::uint8_t>(t.kind)} << 56 | parts << 48 |
           std::uint64_t{t.id} << 32 | t.value;
}

/// Decodes a tag, and checks it against the size of its message. channel_errc::malformed_message.
request_tag decode_request_tag(std::uint64_t tag, request_sizes const& of, error_code& ec) noexcept;

/// The same without checks, of a tag of this side's.
request_tag decode_request_tag(std::uint64_t tag) noexcept;

/// What precedes a body.
struct request_prefix {
    std::array<std::byte, remote_region::encoded_bytes + request_head_bytes_max> all{};
    std::size_t size_bytes = 0;

    std::span<std::byte const> bytes() const noexcept { return std::span{all}.first(size_bytes); }
    /// REQUIRES: all of it fits.
    void append(std::span<std::byte const> more) noexcept;
    void append(std::uint64_t number) noexcept;
};

/// The memory in the prefix of a REQUEST with has_target. channel_errc::malformed_message if it may
/// not be written.
remote_region decode_target(std::span<std::byte const> prefix, error_code& ec) noexcept;

/// The number in the prefix of an ANSWER with has_target.
std::uint64_t decode_written(std::span<std::byte const> prefix) noexcept;

}  // namespace rcverbs::wire
