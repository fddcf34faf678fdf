#include "wire/message.hpp"

#include <algorithm>

#include "wire/bytes.hpp"
#include "wire/hello.hpp"

namespace rcverbs::wire {

namespace {

constexpr std::uint32_t message_magic = 0x5243564D;  // "RCVM"
enum class message_type : std::uint8_t { regions = 1, done = 2 };

void put_head(writer& w, message_type type, std::size_t count) noexcept {
    w.put(message_magic);
    w.put(static_cast<std::uint8_t>(protocol_version));
    w.put(static_cast<std::uint8_t>(type));
    w.put(static_cast<std::uint16_t>(count));
    w.put(static_cast<std::uint32_t>(head_bytes + count * descriptor_bytes));
    w.put(std::uint32_t{0});
}

void put_descriptor(writer& w, region_descriptor const& d) noexcept {
    w.put(d.region.encode());
    for (std::size_t i = 0; i < region_name_bytes_max; ++i) {
        w.put(static_cast<std::uint8_t>(i < d.name.size() ? d.name[i] : '\0'));
    }
}

region_descriptor get_descriptor(reader& r, error_code& ec) {
    region_descriptor d;
    error_code wrong;
    d.region = remote_region::decode(r.take(remote_region::encoded_bytes), wrong);
    if (wrong) ec = session_errc::malformed_message;
    bool ended = false;
    for (std::size_t i = 0; i < region_name_bytes_max; ++i) {
        auto const c = static_cast<char>(r.get<std::uint8_t>());
        if (c == '\0') ended = true;
        else if (ended) ec = session_errc::malformed_message;  // bytes after the padding
        else d.name += c;
    }
    return d;
}

}  // namespace

std::size_t encode(message const& m, std::span<std::byte> out, error_code& ec) noexcept {
    writer w{out};
    ec.clear();
    if (auto const* const regions = std::get_if<regions_message>(&m)) {
        bool const fits =
            regions->regions.size() <= regions_max &&
            std::all_of(regions->regions.begin(), regions->regions.end(), [](auto const& d) {
                return d.name.size() <= region_name_bytes_max;
            });
        if (!fits) {
            ec = errc::message_too_large;
            return 0;
        }
        put_head(w, message_type::regions, regions->regions.size());
        for (region_descriptor const& d : regions->regions) put_descriptor(w, d);
    } else {
        put_head(w, message_type::done, 0);
    }
    if (w.too_short()) ec = errc::message_too_large;
    return ec ? 0 : w.size();
}

message decode(std::span<std::byte const> in, error_code& ec) {
    ec.clear();
    reader r{in};
    auto const found = r.get<std::uint32_t>();
    auto const version = r.get<std::uint8_t>();
    auto const type = static_cast<message_type>(r.get<std::uint8_t>());
    std::size_t const count = r.get<std::uint16_t>();
    auto const size = r.get<std::uint32_t>();
    auto const zero = r.get<std::uint32_t>();
    if (r.too_short() || found != message_magic) {
        ec = session_errc::malformed_message;
        return done_message{};
    }
    if (version != protocol_version) {
        ec = session_errc::version_mismatch;
        return done_message{};
    }
    bool const known = type == message_type::regions || (type == message_type::done && count == 0);
    bool const fits =
        count <= regions_max && size == head_bytes + count * descriptor_bytes && size == in.size();
    if (!known || !fits || zero != 0) {
        ec = session_errc::malformed_message;
        return done_message{};
    }
    if (type == message_type::done) return done_message{};
    regions_message regions;
    regions.regions.reserve(count);
    for (std::size_t i = 0; i < count; ++i) regions.regions.push_back(get_descriptor(r, ec));
    return regions;
}

}  // namespace rcverbs::wire
