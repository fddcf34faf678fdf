// request_tag.hpp — what the tag of a message says on a request channel.
//
// 8 bytes in network byte order:
//
//   offset  size  field
//        0     1  kind: 1 REQUEST, 2 NOTICE, 3 ANSWER, 4 DROPPED, 5 CANCEL, 6 END
//        1     1  zero
//        2     2  REQUEST, NOTICE: a number below the peer's limit of requests, free at the sender;
//                 ANSWER, DROPPED, CANCEL: that of the request; END: zero
//        4     4  REQUEST, NOTICE: operation, the application's number; ANSWER: status, the
//                 application's number; else zero
//
// REQUEST, NOTICE and ANSWER have a body of any size, the others have none. A number is free again
// when its ANSWER, or DROPPED, has arrived; a NOTICE gets an ANSWER with status 0 and
// without a body.
#pragma once

#include <cstdint>

#include <rcverbs/channel_error.hpp>

namespace rcverbs::wire {

enum class request_kind : std::uint8_t {
    request = 1,
    notice = 2,
    answer = 3,
    dropped = 4,
    cancel = 5,
    end = 6,
};

struct request_tag {
    request_kind kind = request_kind::request;
    std::uint16_t id = 0;
    std::uint32_t value = 0;

    friend bool operator==(request_tag const&, request_tag const&) = default;
};

constexpr std::uint64_t encode(request_tag const& t) noexcept {
    return std::uint64_t{static_cast<std::uint8_t>(t.kind)} << 56 | std::uint64_t{t.id} << 32 |
           t.value;
}

/// channel_errc::malformed_message.
///
/// @param body_bytes  The size of the message.
request_tag decode_request_tag(
    std::uint64_t tag, std::uint64_t body_bytes, error_code& ec
) noexcept;

}  // namespace rcverbs::wire
