#include "wire/authentication_message.hpp"

#include <algorithm>

#include "wire/bytes.hpp"

namespace rcverbs::wire {

namespace {

constexpr std::uint16_t authentication_magic = 0xCA5E;
constexpr std::size_t authentication_head_bytes = 4;
constexpr std::uint8_t encrypts_flag = 1;

template <class Array>
void copy_to(Array& to, std::span<std::byte const> from) noexcept {
    if (from.size() == to.size()) std::ranges::copy(from, to.begin());
}

void put_head(writer& w, std::uint8_t version, std::uint8_t fourth) {
    w.put(authentication_magic);
    w.put(version);
    w.put(fourth);
}

}  // namespace

bool is_authentication(std::span<std::byte const> in) noexcept {
    reader r{in};
    return r.get<std::uint16_t>() == authentication_magic && in.size() >= authentication_head_bytes;
}

std::vector<std::byte> encode(authentication_request const& r) {
    std::vector<std::byte> out(authentication_head_bytes + r.nonce.size() + 1 + r.identity.size());
    writer w{out};
    put_head(w, r.version, r.encrypts ? encrypts_flag : 0);
    w.put(std::span<std::byte const>{r.nonce});
    w.put(static_cast<std::uint8_t>(r.identity.size()));
    w.put(std::as_bytes(std::span{r.identity}));
    return out;
}

authentication_refusal decode(std::span<std::byte const> in, authentication_request& into) {
    reader r{in.subspan(2)};
    into.version = r.get<std::uint8_t>();
    auto const flags = r.get<std::uint8_t>();
    if (into.version != authentication_version) return authentication_refusal::other_version;
    into.encrypts = flags == encrypts_flag;
    copy_to(into.nonce, r.take(into.nonce.size()));
    std::size_t const size = r.get<std::uint8_t>();
    auto const identity = r.take(size);
    into.identity.assign(reinterpret_cast<char const*>(identity.data()), identity.size());
    bool const is_right = !r.too_short() && flags <= encrypts_flag && size >= 1 &&
                          size <= authentication_identity_bytes_max;
    return is_right ? authentication_refusal::none : authentication_refusal::malformed;
}

std::vector<std::byte> encode(authentication_acceptance const& a) {
    std::vector<std::byte> out(
        authentication_head_bytes + a.nonce.size() + a.proofs.size() * authentication_proof_bytes
    );
    writer w{out};
    put_head(w, authentication_version, a.encrypts ? encrypts_flag : 0);
    w.put(std::span<std::byte const>{a.nonce});
    for (auto const& each : a.proofs) w.put(std::span<std::byte const>{each});
    return out;
}

std::optional<authentication_acceptance> decode_authentication_acceptance(
    std::span<std::byte const> in
) noexcept {
    reader r{in};
    authentication_acceptance a;
    bool const is_ours = r.get<std::uint16_t>() == authentication_magic &&
                         r.get<std::uint8_t>() == authentication_version;
    auto const flags = r.get<std::uint8_t>();
    a.encrypts = flags == encrypts_flag;
    copy_to(a.nonce, r.take(a.nonce.size()));
    for (auto& each : a.proofs) copy_to(each, r.take(each.size()));
    if (!is_ours || flags > encrypts_flag || r.too_short()) return std::nullopt;
    return a;
}

std::vector<std::byte> encode(authentication_refusal why) {
    std::vector<std::byte> out(authentication_head_bytes);
    writer w{out};
    put_head(w, authentication_version, static_cast<std::uint8_t>(why));
    return out;
}

authentication_refusal decode_authentication_refusal(std::span<std::byte const> in) noexcept {
    auto const number = std::to_integer<std::uint8_t>(in[3]);
    bool const is_known =
        number >= static_cast<std::uint8_t>(authentication_refusal::other_version) &&
        number <= static_cast<std::uint8_t>(authentication_refusal::malformed);
    return is_known ? static_cast<authentication_refusal>(number)
                    : authentication_refusal::malformed;
}

std::vector<std::byte> encode(authentication_proof_message const& m) {
    std::vector<std::byte> out(authentication_proof_bytes + 2 + m.hello.size());
    writer w{out};
    w.put(std::span<std::byte const>{m.proof});
    w.put(static_cast<std::uint16_t>(m.hello.size()));
    w.put(m.hello);
    return out;
}

std::vector<std::byte> encode(authentication_result_message const& m) {
    std::vector<std::byte> out(authentication_proof_bytes + 4 + m.hello.size());
    writer w{out};
    w.put(std::span<std::byte const>{m.proof});
    w.put(static_cast<std::uint16_t>(m.verdict));
    w.put(static_cast<std::uint16_t>(m.hello.size()));
    w.put(m.hello);
    return out;
}

std::optional<authentication_proof_message> decode_authentication_proof(
    std::span<std::byte const> in
) noexcept {
    reader r{in};
    authentication_proof_message m;
    copy_to(m.proof, r.take(m.proof.size()));
    std::size_t const size = r.get<std::uint16_t>();
    m.hello = r.take(size);
    bool const is_right = !r.too_short() && r.left() == 0 && size <= authentication_hello_bytes_max;
    return is_right ? std::optional{m} : std::nullopt;
}

std::optional<authentication_result_message> decode_authentication_result(
    std::span<std::byte const> in
) noexcept {
    reader r{in};
    authentication_result_message m;
    copy_to(m.proof, r.take(m.proof.size()));
    auto const verdict = r.get<std::uint16_t>();
    m.verdict = static_cast<authentication_verdict>(verdict);
    std::size_t const size = r.get<std::uint16_t>();
    m.hello = r.take(size);
    bool const is_right =
        !r.too_short() && r.left() == 0 && size <= authentication_hello_bytes_max &&
        verdict <= static_cast<std::uint16_t>(authentication_verdict::identity_refused);
    return is_right ? std::optional{m} : std::nullopt;
}

error_code to_error(authentication_refusal why) noexcept {
    switch (why) {
    case authentication_refusal::none: return {};
    case authentication_refusal::unknown_identity: return errc::unknown_identity;
    case authentication_refusal::mismatch: return errc::security_mismatch;
    // Nothing is known of what the peer meant.
    case authentication_refusal::other_version:
    case authentication_refusal::malformed: break;
    }
    return errc::security_mismatch;
}

}  // namespace rcverbs::wire
