#include "wire/ring_message.hpp"

#include "wire/bytes.hpp"

namespace rcverbs::wire {

namespace {

constexpr std::uint32_t magic = 0x52494e47;  // "RING"
constexpr std::uint32_t finished_flag = 1;

}  // namespace

std::array<std::byte, ring_hello_bytes> encode(ring_hello const& h) noexcept {
    std::array<std::byte, ring_hello_bytes> out{};
    writer w{out};
    w.put(magic);
    w.put(h.version);
    w.put(static_cast<std::uint8_t>(h.role));
    w.put(std::uint8_t{0});
    w.put(h.ring_bytes);
    w.put(h.receives);
    w.put(h.address);
    w.put(h.key.value);
    w.put(std::uint32_t{0});
    return out;
}

std::array<std::byte, ring_header_bytes> encode(ring_header const& h) noexcept {
    std::array<std::byte, ring_header_bytes> out{};
    writer w{out};
    w.put(h.bytes);
    w.put(h.sequence);
    return out;
}

std::array<std::byte, ring_counts_bytes> encode(ring_counts_message const& c) noexcept {
    std::array<std::byte, ring_counts_bytes> out{};
    writer w{out};
    w.put(c.consumed);
    w.put(c.posted);
    w.put(c.waits);
    w.put(c.is_finished ? finished_flag : std::uint32_t{0});
    return out;
}

ring_hello decode_ring_hello(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    ring_hello h;
    bool const is_ours = r.get<std::uint32_t>() == magic;
    h.version = r.get<std::uint16_t>();
    auto const role = r.get<std::uint8_t>();
    bool is_padded = r.get<std::uint8_t>() == 0;
    h.role = static_cast<ring_role>(role);
    h.ring_bytes = r.get<std::uint32_t>();
    h.receives = r.get<std::uint32_t>();
    h.address = r.get<std::uint64_t>();
    h.key.value = r.get<std::uint32_t>();
    is_padded = r.get<std::uint32_t>() == 0 && is_padded;
    bool const is_known = h.version == ring_version;
    bool const is_role = h.role == ring_role::writer || h.role == ring_role::reader;
    bool const is_right = !r.too_short() && is_ours && (!is_known || (is_role && is_padded));
    ec = is_right ? error_code{} : make_error_code(channel_errc::foreign_peer);
    return h;
}

ring_header decode_ring_header(std::span<std::byte const> in) noexcept {
    reader r{in};
    ring_header h;
    h.bytes = r.get<std::uint32_t>();
    h.sequence = r.get<std::uint32_t>();
    return h;
}

ring_counts_message decode_ring_counts(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    ring_counts_message c;
    c.consumed = r.get<std::uint64_t>();
    c.posted = r.get<std::uint64_t>();
    c.waits = r.get<std::uint32_t>();
    auto const flags = r.get<std::uint32_t>();
    c.is_finished = flags == finished_flag;
    bool const is_right = !r.too_short() && r.left() == 0 && flags <= finished_flag;
    ec = is_right ? error_code{} : make_error_code(channel_errc::malformed_message);
    return c;
}

}  // namespace rcverbs::wire
