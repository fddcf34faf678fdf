#include "wire/channel_message.hpp"

#include <algorithm>

#include "wire/bytes.hpp"

namespace rcverbs::wire {

namespace {

bool is_consistent(channel_head const& h, std::size_t bytes_behind) noexcept {
    switch (h.type) {
    case channel_type::eager: return h.count == bytes_behind;
    case channel_type::large:
        return h.count >= 1 && h.count <= channel_segments_max && bytes_behind >= segments_bytes(h);
    case channel_type::large_done: return bytes_behind == 0 && h.count <= 1;
    case channel_type::withdraw: return bytes_behind == 0 && h.count == 0;
    case channel_type::credit:
    case channel_type::close: return bytes_behind == 0 && h.count == 0 && h.tag == 0;
    }
    return false;
}

}  // namespace

void encode(channel_head const& h, std::span<std::byte> out) noexcept {
    writer w{out};
    w.put(static_cast<std::uint8_t>(h.type));
    w.put(h.credits_taken);
    w.put(h.given_back);
    w.put(h.count);
    w.put(h.tag);
}

channel_head decode_channel_head(std::span<std::byte const> in, error_code& ec) noexcept {
    channel_head h;
    bool is_right = in.size() >= channel_head_bytes;
    if (is_right) {
        std::byte const* const at = in.data();
        h.type = static_cast<channel_type>(at[0]);
        h.credits_taken = std::to_integer<std::uint8_t>(at[1]);
        h.given_back = number_at<std::uint16_t>(at + 2);
        h.count = number_at<std::uint32_t>(at + 4);
        h.tag = number_at<std::uint64_t>(at + 8);
        is_right = is_consistent(h, in.size() - channel_head_bytes);
    }
    if (is_right) ec.clear();
    else ec = channel_errc::malformed_message;
    return h;
}

void encode_segments(std::span<remote_region const> segments, std::span<std::byte> out) noexcept {
    writer w{out.subspan(channel_head_bytes)};
    for (remote_region const& s : segments) w.put(std::span<std::byte const>{s.encode()});
}

channel_segments decode_segments(std::span<std::byte const> in, error_code& ec) noexcept {
    channel_segments s;
    reader r{in.subspan(channel_head_bytes)};
    ec.clear();
    while (r.left() > 0 && s.count < channel_segments_max && !ec) {
        remote_region const one = remote_region::decode(r.take(remote_region::encoded_bytes), ec);
        std::uint64_t const sum = s.size_bytes + one.size();
        bool const is_readable = allows(one.rights(), access_flags::remote_read);
        bool const is_right = !ec && one.size() > 0 && is_readable && sum >= s.size_bytes;
        if (!is_right) ec = channel_errc::malformed_message;
        s.list[s.count++] = one;
        s.size_bytes = sum;
    }
    return s;
}

}  // namespace rcverbs::wire
