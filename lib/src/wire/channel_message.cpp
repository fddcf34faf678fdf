#include "wire/channel_message.hpp"

#include <algorithm>

#include "wire/bytes.hpp"

namespace rcverbs::wire {

void encode(channel_head const& h, std::span<std::byte> out) noexcept {
    writer w{out};
    w.put(static_cast<std::uint8_t>(h.type));
    w.put(h.credits_taken);
    w.put(h.given_back);
    w.put(h.count);
    w.put(h.tag);
}

channel_head decode_channel_head(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    channel_head h;
    h.type = static_cast<channel_type>(r.get<std::uint8_t>());
    h.credits_taken = r.get<std::uint8_t>();
    h.given_back = r.get<std::uint16_t>();
    h.count = r.get<std::uint32_t>();
    h.tag = r.get<std::uint64_t>();
    bool is_right = !r.too_short();
    switch (h.type) {
    case channel_type::eager: is_right = is_right && h.count == r.left(); break;
    case channel_type::large:
        is_right = is_right && h.count >= 1 && h.count <= channel_segments_max &&
                   r.left() >= segments_bytes(h);
        break;
    case channel_type::large_done: is_right = is_right && r.left() == 0 && h.count <= 1; break;
    case channel_type::withdraw: is_right = is_right && r.left() == 0 && h.count == 0; break;
    case channel_type::credit:
    case channel_type::close:
        is_right = is_right && r.left() == 0 && h.count == 0 && h.tag == 0;
        break;
    default: is_right = false;
    }
    ec = is_right ? error_code{} : make_error_code(channel_errc::malformed_message);
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
