#include "wire/region_message.hpp"

#include <algorithm>
#include <bit>

#include "wire/bytes.hpp"

namespace rcverbs::wire {

namespace {

constexpr std::size_t find_head_bytes = 4;
constexpr std::uint16_t keep_flag = 1;
constexpr access_flags rights_known =
    access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;

std::span<std::byte const> bytes_of(std::string_view text) noexcept {
    return std::as_bytes(std::span{text});
}

void put(writer& w, std::span<piece_key const> keys) noexcept {
    for (piece_key const& k : keys) {
        w.put(k.address);
        w.put(k.key.value);
    }
}

piece_keys get_keys(reader& r, std::size_t count) {
    piece_keys keys(count);
    for (piece_key& k : keys) {
        k.address = r.get<std::uint64_t>();
        k.key.value = r.get<std::uint32_t>();
    }
    return keys;
}

error_code malformed_if(bool is_malformed) noexcept {
    return is_malformed ? make_error_code(channel_errc::malformed_message) : error_code{};
}

}  // namespace

std::vector<std::byte> encode_find(std::string_view name) {
    std::vector<std::byte> out(find_head_bytes + name.size());
    writer w{out};
    w.put(region_version);
    w.put(std::uint16_t{0});
    w.put(bytes_of(name));
    return out;
}

std::vector<std::byte> encode(region_found const& f) {
    std::vector<std::byte> out(found_bytes(f.range_bytes.size(), f.keys.size()));
    writer w{out};
    w.put(f.number);
    w.put(static_cast<std::uint32_t>(f.rights));
    w.put(static_cast<std::uint16_t>(f.range_bytes.size()));
    w.put(static_cast<std::uint16_t>(f.keys.size()));
    w.put(f.piece_bytes);
    for (std::uint64_t const bytes : f.range_bytes) w.put(bytes);
    put(w, f.keys);
    return out;
}

std::vector<std::byte> encode(std::span<piece_key const> keys) {
    std::vector<std::byte> out(keys.size() * region_key_bytes);
    writer w{out};
    put(w, keys);
    return out;
}

std::array<std::byte, 16> encode(region_keys const& k) noexcept {
    std::array<std::byte, 16> out{};
    writer w{out};
    w.put(k.number);
    w.put(k.first);
    w.put(k.count);
    return out;
}

std::array<std::byte, 16> encode(region_dropped const& d) noexcept {
    std::array<std::byte, 16> out{};
    writer w{out};
    w.put(d.number);
    w.put(d.founds);
    return out;
}

std::array<std::byte, 24> encode(region_allocate const& a) noexcept {
    std::array<std::byte, 24> out{};
    writer w{out};
    w.put(a.version);
    w.put(static_cast<std::uint16_t>(a.is_kept ? keep_flag : 0));
    w.put(std::uint32_t{0});
    w.put(a.bytes);
    w.put(a.alignment);
    return out;
}

std::array<std::byte, 24> encode(region_resume const& r) noexcept {
    std::array<std::byte, 24> out{};
    writer w{out};
    w.put(r.version);
    w.put(std::uint16_t{0});
    w.put(std::uint32_t{0});
    w.put(std::span<std::byte const>{r.token});
    return out;
}

std::vector<std::byte> encode(region_allocated const& a) {
    std::vector<std::byte> out(allocated_head_bytes);
    writer w{out};
    w.put(a.bytes_left);
    w.put(std::span<std::byte const>{a.token});
    auto const memory = encode(a.memory);
    out.insert(out.end(), memory.begin(), memory.end());
    return out;
}

std::array<std::byte, 16> encode(region_left const& l) noexcept {
    std::array<std::byte, 16> out{};
    writer w{out};
    w.put(l.bytes_left);
    w.put(l.largest_bytes);
    return out;
}

std::vector<std::byte> encode(region_share const& s) {
    std::vector<std::byte> out(sizeof s.number + s.name.size());
    writer w{out};
    w.put(s.number);
    w.put(bytes_of(s.name));
    return out;
}

std::array<std::byte, 8> encode_number(std::uint64_t number) noexcept {
    std::array<std::byte, 8> out{};
    writer{out}.put(number);
    return out;
}

std::array<std::byte, 24> encode(region_refused const& r) noexcept {
    std::array<std::byte, 24> out{};
    writer w{out};
    w.put(static_cast<std::uint32_t>(r.why));
    w.put(static_cast<std::uint32_t>(r.limit.what));
    w.put(r.limit.needed);
    w.put(r.limit.allowed);
    return out;
}

region_find decode_find(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    region_find f;
    f.version = r.get<std::uint16_t>();
    bool const is_padded = r.get<std::uint16_t>() == 0;
    std::span<std::byte const> const name = r.take(r.left());
    f.name = {reinterpret_cast<char const*>(name.data()), name.size()};
    // Of another version only the version is known.
    ec = malformed_if(
        r.too_short() || (f.version == region_version && (!is_padded || !is_region_name(f.name)))
    );
    return f;
}

region_found decode_found(std::span<std::byte const> in, error_code& ec) {
    reader r{in};
    region_found f;
    f.number = r.get<std::uint64_t>();
    f.rights = static_cast<access_flags>(r.get<std::uint32_t>());
    auto const ranges = r.get<std::uint16_t>();
    auto const keys = r.get<std::uint16_t>();
    f.piece_bytes = r.get<std::uint64_t>();
    ec = malformed_if(
        r.too_short() || !allows(rights_known, f.rights) || ranges == 0 ||
        ranges > region_ranges_max || keys > region_keys_max ||
        in.size() != found_bytes(ranges, keys)
    );
    if (ec) return {};
    f.range_bytes.resize(ranges);
    for (std::uint64_t& bytes : f.range_bytes) bytes = r.get<std::uint64_t>();
    f.keys = get_keys(r, keys);
    return f;
}

piece_keys decode_piece_keys(std::span<std::byte const> in, std::size_t count, error_code& ec) {
    ec = malformed_if(count > region_keys_max || in.size() != count * region_key_bytes);
    if (ec) return {};
    reader r{in};
    return get_keys(r, count);
}

region_keys decode_keys(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    region_keys k;
    k.number = r.get<std::uint64_t>();
    k.first = r.get<std::uint32_t>();
    k.count = r.get<std::uint32_t>();
    ec = malformed_if(r.too_short() || r.left() > 0 || k.count == 0 || k.count > region_keys_max);
    return k;
}

region_dropped decode_dropped(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    region_dropped d;
    d.number = r.get<std::uint64_t>();
    d.founds = r.get<std::uint32_t>();
    bool const is_padded = r.get<std::uint32_t>() == 0;
    ec = malformed_if(r.too_short() || r.left() > 0 || !is_padded || d.founds == 0);
    return d;
}

region_allocate decode_allocate(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    region_allocate a;
    a.version = r.get<std::uint16_t>();
    auto const flags = r.get<std::uint16_t>();
    bool const is_padded = r.get<std::uint32_t>() == 0;
    a.bytes = r.get<std::uint64_t>();
    a.alignment = r.get<std::uint64_t>();
    a.is_kept = flags == keep_flag;
    // Of another version only the version is known.
    bool const is_known = a.version == region_version;
    bool const is_right = !r.too_short() && r.left() == 0 && flags <= keep_flag && is_padded &&
                          a.bytes > 0 && std::has_single_bit(a.alignment);
    ec = malformed_if(in.size() < sizeof a.version || (is_known && !is_right));
    return a;
}

region_resume decode_resume(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    region_resume m;
    m.version = r.get<std::uint16_t>();
    bool const is_padded = (r.get<std::uint16_t>() | r.get<std::uint32_t>()) == 0;
    auto const token = r.take(m.token.size());
    std::ranges::copy(token, m.token.begin());
    bool const is_right = !r.too_short() && r.left() == 0 && is_padded;
    ec = malformed_if(in.size() < sizeof m.version || (m.version == region_version && !is_right));
    return m;
}

region_allocated decode_allocated(std::span<std::byte const> in, error_code& ec) {
    reader r{in};
    region_allocated a;
    a.bytes_left = r.get<std::uint64_t>();
    std::ranges::copy(r.take(a.token.size()), a.token.begin());
    ec = malformed_if(r.too_short());
    if (ec) return {};
    a.memory = decode_found(r.take(r.left()), ec);
    return a;
}

region_left decode_left(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    region_left l;
    l.bytes_left = r.get<std::uint64_t>();
    l.largest_bytes = r.get<std::uint64_t>();
    ec = malformed_if(r.too_short() || r.left() > 0);
    return l;
}

region_share decode_share(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    region_share s;
    s.number = r.get<std::uint64_t>();
    std::span<std::byte const> const name = r.take(r.left());
    s.name = {reinterpret_cast<char const*>(name.data()), name.size()};
    ec = malformed_if(r.too_short() || !is_region_name(s.name));
    return s;
}

std::uint64_t decode_number(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    auto const number = r.get<std::uint64_t>();
    ec = malformed_if(r.too_short() || r.left() > 0);
    return number;
}

region_refused decode_refused(std::span<std::byte const> in, error_code& ec) noexcept {
    constexpr std::uint32_t errno_max = 4095;  // as the kernel's
    using kind = registration_limit::kind;
    reader r{in};
    auto const why = r.get<std::uint32_t>();
    auto const what = r.get<std::uint32_t>();
    registration_limit limit;
    limit.needed = r.get<std::uint64_t>();
    limit.allowed = r.get<std::uint64_t>();
    bool const is_known = what <= static_cast<std::uint32_t>(kind::memory_bytes);
    ec = malformed_if(r.too_short() || r.left() > 0 || why == 0 || why > errno_max || !is_known);
    if (ec) return {};
    limit.what = static_cast<kind>(what);
    return {static_cast<int>(why), limit};
}

}  // namespace rcverbs::wire
