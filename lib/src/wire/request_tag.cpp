#include "wire/request_tag.hpp"

#include <algorithm>

#include "wire/bytes.hpp"

namespace rcverbs::wire {

namespace {

constexpr std::uint8_t target_bit = 0x80;

bool has_right_parts(request_tag const& t, std::uint64_t body_bytes) noexcept {
    bool const is_empty = body_bytes == 0 && t.prefix_bytes() == 0 && t.value == 0;
    switch (t.kind) {
    case request_kind::request: return true;
    case request_kind::notice: return !t.has_target;
    case request_kind::answer: return !t.has_target || body_bytes == 0;
    case request_kind::dropped:
    case request_kind::cancel:
    case request_kind::released: return is_empty;
    case request_kind::end: return is_empty && t.id == 0;
    }
    return false;
}

}  // namespace

request_tag decode_request_tag(std::uint64_t tag) noexcept {
    request_tag t;
    t.kind = static_cast<request_kind>(tag >> 56);
    auto const parts = static_cast<std::uint8_t>(tag >> 48);
    t.head_bytes = parts & (target_bit - 1);
    t.has_target = (parts & target_bit) != 0;
    t.id = static_cast<std::uint16_t>(tag >> 32);
    t.value = static_cast<std::uint32_t>(tag);
    return t;
}

request_tag decode_request_tag(
    std::uint64_t tag, request_sizes const& of, error_code& ec
) noexcept {
    request_tag const t = decode_request_tag(tag);
    std::size_t const prefix = t.prefix_bytes();
    bool const fits = of.is_large ? of.behind_segments == prefix : of.bytes >= prefix;
    std::uint64_t const body_bytes = of.is_large || !fits ? of.bytes : of.bytes - prefix;
    bool const is_right =
        fits && t.head_bytes <= request_head_bytes_max && has_right_parts(t, body_bytes);
    ec = is_right ? error_code{} : make_error_code(channel_errc::malformed_message);
    return t;
}

void request_prefix::append(std::span<std::byte const> more) noexcept {
    std::copy(more.begin(), more.end(), all.begin() + static_cast<std::ptrdiff_t>(size_bytes));
    size_bytes += more.size();
}

void request_prefix::append(std::uint64_t number) noexcept {
    writer{std::span{all}.subspan(size_bytes)}.put(number);
    size_bytes += sizeof number;
}

remote_region decode_target(std::span<std::byte const> prefix, error_code& ec) noexcept {
    remote_region const target = remote_region::decode(prefix, ec);
    bool const is_right =
        !ec && target.size() > 0 && allows(target.rights(), access_flags::remote_write);
    ec = is_right ? error_code{} : make_error_code(channel_errc::malformed_message);
    return target;
}

std::uint64_t decode_written(std::span<std::byte const> prefix) noexcept {
    return reader{prefix}.get<std::uint64_t>();
}

}  // namespace rcverbs::wire
