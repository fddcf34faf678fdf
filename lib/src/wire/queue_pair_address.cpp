#include <rcverbs/queue_pair_address.hpp>

#include "wire/bytes.hpp"

namespace rcverbs {

// offset  size  field
//      0     4  magic, "RCVQ"
//      4     2  version, 2
//      6     2  zero
//      8     4  queue pair number
//     12     4  starting packet sequence number
//     16    16  GID
//     32     2  LID
//     34     1  MTU code
//     35     1  initiator depth
//     36     1  responder resources
//     37     1  RNR retry count
//     38     2  zero
//     40     4  vendor of the enhanced connection establishment
//     44     4  its options

namespace {
constexpr std::uint32_t queue_pair_address_magic = 0x52435651;  // "RCVQ"
constexpr std::uint16_t version = 2;
constexpr std::uint32_t bits_24 = 0xFFFFFF;
}  // namespace

std::array<std::byte, queue_pair_address::encoded_bytes> queue_pair_address::encode(
) const noexcept {
    std::array<std::byte, encoded_bytes> out{};
    wire::writer w{out};
    w.put(queue_pair_address_magic);
    w.put(version);
    w.put(std::uint16_t{0});
    w.put(queue_pair_number);
    w.put(starting_psn);
    for (std::uint8_t const b : gid) w.put(b);
    w.put(lid);
    w.put(mtu);
    w.put(initiator_depth);
    w.put(responder_resources);
    w.put(rnr_retry_count);
    w.put(std::uint16_t{0});
    w.put(ece_vendor);
    w.put(ece_options);
    return out;
}

queue_pair_address queue_pair_address::decode(
    std::span<std::byte const> in, error_code& ec
) noexcept {
    ec.clear();
    wire::reader r{in};
    queue_pair_address a;
    auto const found = r.get<std::uint32_t>();
    auto const theirs = r.get<std::uint16_t>();
    auto const zero = r.get<std::uint16_t>();
    a.queue_pair_number = r.get<std::uint32_t>();
    a.starting_psn = r.get<std::uint32_t>();
    for (std::uint8_t& b : a.gid) b = r.get<std::uint8_t>();
    a.lid = r.get<std::uint16_t>();
    a.mtu = r.get<std::uint8_t>();
    a.initiator_depth = r.get<std::uint8_t>();
    a.responder_resources = r.get<std::uint8_t>();
    a.rnr_retry_count = r.get<std::uint8_t>();
    static_cast<void>(r.get<std::uint16_t>());
    a.ece_vendor = r.get<std::uint32_t>();
    a.ece_options = r.get<std::uint32_t>();
    bool const is_sound = in.size() == encoded_bytes && zero == 0 &&
                          a.queue_pair_number <= bits_24 && a.starting_psn <= bits_24 &&
                          a.mtu >= 1 && a.mtu <= 5 && a.rnr_retry_count <= 7;
    bool const is_ours = found == queue_pair_address_magic && in.size() >= 8;
    if (is_ours && theirs != version) ec = errc::version_mismatch;
    else if (!is_ours || !is_sound) ec = errc::malformed_message;
    return a;
}

}  // namespace rcverbs
