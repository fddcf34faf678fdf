#include "command.hpp"

#include <algorithm>

namespace rcverbs::nvme::detail {

namespace {

// SGL descriptor types and subtypes, in one byte. Source: Base Specification, 4.1.2.
constexpr std::size_t data_pointer_at = 24;
constexpr std::uint8_t in_capsule_data = 0x01;
constexpr std::uint8_t keyed_data = 0x40;
constexpr std::uint8_t keyed_data_invalidate = 0x4f;

data_pointer decode_pointer(std::span<std::byte const> bytes) noexcept {
    data_pointer p;
    p.address = load<std::uint64_t>(bytes, 0);
    switch (static_cast<std::uint8_t>(bytes[15])) {
    case in_capsule_data:
        p.where = data_pointer::place::in_capsule;
        p.size_bytes = load<std::uint32_t>(bytes, 8);
        break;
    case keyed_data_invalidate: p.is_invalidated = true; [[fallthrough]];
    case keyed_data:
        p.where = data_pointer::place::keyed;
        p.size_bytes = load<std::uint32_t>(bytes, 8) & 0xffffff;
        p.key = load<std::uint32_t>(bytes, 11);
        break;
    default: p.where = data_pointer::place::unknown;
    }
    return p;
}

std::string decode_name(std::span<std::byte const> bytes) {
    auto const* const text = reinterpret_cast<char const*>(bytes.data());
    return {text, std::find(text, text + bytes.size(), '\0')};
}

}  // namespace

command command::decode(std::span<std::byte const> bytes) noexcept {
    command c;
    c.code = static_cast<std::uint8_t>(bytes[0]);
    c.fuse = static_cast<std::uint8_t>(bytes[1]) & 3;
    c.psdt = static_cast<std::uint8_t>(bytes[1]) >> 6;
    c.fabrics = static_cast<std::uint8_t>(bytes[4]);
    c.id = load<std::uint16_t>(bytes, 2);
    c.namespace_id = load<std::uint32_t>(bytes, 4);
    c.data = decode_pointer(bytes.subspan(data_pointer_at, 16));
    for (std::size_t i = 0; i < c.dword.size(); ++i)
        c.dword[i] = load<std::uint32_t>(bytes, 40 + 4 * i);
    return c;
}

void completion::encode(
    std::span<std::byte> to, std::uint16_t command_id, std::uint16_t queue, std::uint16_t head
) const noexcept {
    constexpr std::uint16_t do_not_retry = 0x4000;
    auto field = static_cast<std::uint16_t>(code);
    if (code != status::success && !may_retry) field |= do_not_retry;
    store<std::uint64_t>(to, 0, result);
    store<std::uint16_t>(to, 8, head);
    store<std::uint16_t>(to, 10, queue);
    store<std::uint16_t>(to, 12, command_id);
    store<std::uint16_t>(to, 14, static_cast<std::uint16_t>(field << 1));
}

connect_data connect_data::decode(std::span<std::byte const> bytes) {
    connect_data d;
    std::memcpy(d.host_id.data(), bytes.data(), d.host_id.size());
    d.controller_id = load<std::uint16_t>(bytes, 16);
    d.subsystem = decode_name(bytes.subspan(256, 256));
    d.host = decode_name(bytes.subspan(512, 256));
    return d;
}

connect_private_data connect_private_data::decode(std::span<std::byte const> bytes) noexcept {
    connect_private_data d;
    d.format = load<std::uint16_t>(bytes, 0);
    d.queue = load<std::uint16_t>(bytes, 2);
    d.host_receive_queue = load<std::uint16_t>(bytes, 4);
    d.host_send_queue = load<std::uint16_t>(bytes, 6);
    return d;
}

}  // namespace rcverbs::nvme::detail
