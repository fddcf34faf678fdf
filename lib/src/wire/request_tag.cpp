#include "wire/request_tag.hpp"

namespace rcverbs::wire {

request_tag decode_request_tag(
    std::uint64_t tag, std::uint64_t body_bytes, error_code& ec
) noexcept {
    request_tag const t{
        static_cast<request_kind>(tag >> 56),
        static_cast<std::uint16_t>(tag >> 32),
        static_cast<std::uint32_t>(tag)};
    bool is_right = (tag >> 48 & 0xff) == 0;
    switch (t.kind) {
    case request_kind::request:
    case request_kind::notice:
    case request_kind::answer: break;
    case request_kind::dropped:
    case request_kind::cancel: is_right = is_right && t.value == 0 && body_bytes == 0; break;
    case request_kind::end:
        is_right = is_right && t.value == 0 && t.id == 0 && body_bytes == 0;
        break;
    default: is_right = false;
    }
    ec = is_right ? error_code{} : make_error_code(channel_errc::malformed_message);
    return t;
}

}  // namespace rcverbs::wire
