#include <rcverbs/remote_region.hpp>

#include <cstdint>

#include "wire/bytes.hpp"

namespace rcverbs {

namespace {

// What a peer needs to know: bind_windows, relaxed_ordering and on_demand concern this side only.
constexpr std::uint32_t known_rights = 0xF;

}  // namespace

std::array<std::byte, remote_region::encoded_bytes> remote_region::encode() const noexcept {
    std::array<std::byte, encoded_bytes> out;
    wire::writer w{out};
    w.put(address_);
    w.put(size_bytes_);
    w.put(key_.value);
    w.put(static_cast<std::uint32_t>(rights_) & known_rights);
    return out;
}

remote_region remote_region::decode(std::span<std::byte const> in, error_code& ec) noexcept {
    wire::reader r{in};
    auto const address = r.get<std::uint64_t>();
    auto const size = r.get<std::uint64_t>();
    remote_key const key{r.get<std::uint32_t>()};
    auto const rights = r.get<std::uint32_t>();
    ec.clear();
    // A range that wraps around the address space would make every later bounds check worthless.
    if (r.too_short() || (rights & ~known_rights) != 0 || size > UINT64_MAX - address) {
        ec = errc::malformed_message;
        return {};
    }
    return {address, size, key, static_cast<access_flags>(rights)};
}

remote_region remote_region::decode(std::span<std::byte const> in) {
    error_code ec;
    remote_region const region = decode(in, ec);
    if (ec) throw boost::system::system_error{ec, "remote_region"};
    return region;
}

remote_region remote_region::slice(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
    if (offset_bytes > size_bytes_ || size_bytes > size_bytes_ - offset_bytes) {
        throw boost::system::system_error{errc::out_of_range, "slice of a remote region"};
    }
    return {address_ + offset_bytes, size_bytes, key_, rights_};
}

remote_atomic remote_region::word(std::uint64_t offset_bytes) const {
    remote_region const cell = slice(offset_bytes, sizeof(std::uint64_t));
    return {cell.address(), cell.key(), cell.rights()};
}

}  // namespace rcverbs
