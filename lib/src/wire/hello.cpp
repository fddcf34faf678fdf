#include "wire/hello.hpp"

#include "wire/bytes.hpp"

namespace rcverbs::wire {

namespace {
constexpr std::uint32_t hello_magic = 0x52435653;  // "RCVS"
}  // namespace

std::array<std::byte, hello_bytes> encode(hello const& h) noexcept {
    std::array<std::byte, hello_bytes> out{};
    writer w{out};
    w.put(hello_magic);
    w.put(h.version);
    w.put(static_cast<std::uint16_t>(h.answer));
    w.put(h.mode);
    w.put(h.message_bytes_max);
    w.put(h.receives);
    return out;
}

hello decode_hello(std::span<std::byte const> in, error_code& ec) noexcept {
    reader r{in};
    hello h;
    auto const found = r.get<std::uint32_t>();
    h.version = r.get<std::uint16_t>();
    h.answer = static_cast<verdict>(r.get<std::uint16_t>());
    h.mode = r.get<std::uint32_t>();
    h.message_bytes_max = r.get<std::uint32_t>();
    h.receives = r.get<std::uint16_t>();
    h.is_padded = r.get<std::uint32_t>() == 0 && r.get<std::uint16_t>() == 0;
    ec = found != hello_magic || in.size() < hello_bytes
             ? make_error_code(session_errc::foreign_peer)
             : error_code{};
    return h;
}

namespace {

// Whether the two sides are compatible; the same rules for requests and acceptances.
verdict judge(hello const& ours, hello const& theirs) noexcept {
    if (theirs.version != ours.version) return verdict::version_mismatch;
    bool const is_valid = theirs.answer == verdict::welcome && theirs.is_padded &&
                          theirs.receives >= receives_min &&
                          theirs.message_bytes_max >= message_bytes_min;
    if (!is_valid) return verdict::malformed;
    return theirs.mode == ours.mode ? verdict::welcome : verdict::mode_mismatch;
}

}  // namespace

verdict judge_request(hello const& ours, hello const& theirs) noexcept {
    return judge(ours, theirs);
}

error_code check_acceptance(hello const& ours, hello const& theirs) noexcept {
    return judgement<session_errc>(judge(ours, theirs));
}

error_code check_refusal(hello const& theirs) noexcept {
    return refusal<session_errc>(theirs.answer);
}

}  // namespace rcverbs::wire
