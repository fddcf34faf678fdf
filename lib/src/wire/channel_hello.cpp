#include "wire/channel_hello.hpp"

#include <algorithm>

#include "wire/bytes.hpp"

namespace rcverbs::wire {

namespace {
constexpr std::uint32_t channel_hello_magic = 0x52435643;  // "RCVC"
}  // namespace

std::vector<std::byte> encode(channel_hello const& h) {
    std::size_t const identity_bytes = h.identity ? channel_identity_bytes : 0;
    std::vector<std::byte> out(channel_hello_bytes + h.greeting.size() + identity_bytes);
    writer w{out};
    w.put(channel_hello_magic);
    w.put(h.version);
    w.put(static_cast<std::uint16_t>(h.answer));
    w.put(h.mode);
    w.put(h.slot_bytes);
    w.put(h.receives);
    w.put(static_cast<std::uint8_t>(h.greeting.size()));
    w.put(static_cast<std::uint8_t>(identity_bytes));
    w.put(h.requests);
    w.put(std::uint16_t{0});
    w.put(std::span<std::byte const>{h.greeting});
    if (h.identity) w.put(std::span<std::byte const>{*h.identity});
    return out;
}

channel_hello decode_channel_hello(std::span<std::byte const> in, error_code& ec) {
    reader r{in};
    channel_hello h;
    auto const found = r.get<std::uint32_t>();
    h.version = r.get<std::uint16_t>();
    h.answer = static_cast<verdict>(r.get<std::uint16_t>());
    h.mode = r.get<std::uint32_t>();
    h.slot_bytes = r.get<std::uint32_t>();
    h.receives = r.get<std::uint16_t>();
    std::size_t const greeting_bytes = r.get<std::uint8_t>();
    std::size_t const identity_bytes = r.get<std::uint8_t>();
    h.requests = r.get<std::uint16_t>();
    bool const is_padded = r.get<std::uint16_t>() == 0;
    bool const is_foreign = found != channel_hello_magic || r.too_short();
    ec = is_foreign ? make_error_code(channel_errc::foreign_peer) : error_code{};
    bool const has_identity = identity_bytes == channel_identity_bytes && h.requests > 0;
    h.is_well_formed = is_padded && (has_identity || identity_bytes == 0) &&
                       greeting_bytes + identity_bytes <= channel_greeting_bytes_max;
    if (!is_foreign && h.is_well_formed) {
        auto const greeting = r.take(greeting_bytes);
        h.greeting.assign(greeting.begin(), greeting.end());
        auto const identity = r.take(identity_bytes);
        if (!identity.empty()) std::ranges::copy(identity, h.identity.emplace().begin());
        h.is_well_formed = !r.too_short();
    }
    return h;
}

verdict judge_request(channel_hello const& ours, channel_hello const& theirs) noexcept {
    if (theirs.version != ours.version) return verdict::version_mismatch;
    bool const is_valid =
        theirs.answer == verdict::welcome && theirs.is_well_formed &&
        theirs.receives >= channel_receives_min && theirs.receives <= channel_receives_max &&
        theirs.slot_bytes >= channel_slot_bytes_min && theirs.slot_bytes <= channel_slot_bytes_max;
    if (!is_valid) return verdict::malformed;
    bool const is_alike = theirs.mode == ours.mode && (theirs.requests > 0) == (ours.requests > 0);
    return is_alike ? verdict::welcome : verdict::mode_mismatch;
}

error_code check_acceptance(channel_hello const& ours, channel_hello const& theirs) noexcept {
    return judgement<channel_errc>(judge_request(ours, theirs));
}

}  // namespace rcverbs::wire
