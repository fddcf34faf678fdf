#include "authentication/exchange.hpp"

#include <algorithm>
#include <utility>

namespace rcverbs::detail {

namespace {

std::array<std::byte, 2> encoded(std::uint16_t number) noexcept {
    return {std::byte(number >> 8U), std::byte(number & 0xFFU)};
}

digest after_hello(digest const& before, std::span<std::byte const> hello) {
    return hash("rcverbs authentication 1 hello", {before, hello});
}

digest after_result(
    digest const& before, wire::authentication_verdict verdict, std::span<std::byte const> hello
) {
    return hash(
        "rcverbs authentication 1 result",
        {before, encoded(static_cast<std::uint16_t>(verdict)), hello}
    );
}

}  // namespace

// --- both sides ----------------------------------------------------------------------------------

void authentication_side::begin_transcript(authenticated_addresses const& who) {
    transcript_ = hash(
        "rcverbs authentication 1 request",
        {wire::encode(request_), who.connecting, who.accepting, accepting_nonce_}
    );
}

std::vector<std::byte> authentication_side::salt() const {
    std::vector<std::byte> both(request_.nonce.begin(), request_.nonce.end());
    both.insert(both.end(), accepting_nonce_.begin(), accepting_nonce_.end());
    return both;
}

secret authentication_side::accepting_key(secret const& shared) const {
    return derive(shared, salt(), "rcverbs authentication 1 accepting proof", {});
}

secret authentication_side::connecting_key(secret const& shared) const {
    return derive(shared, salt(), "rcverbs authentication 1 connecting proof", {});
}

message_keys authentication_side::keys() const {
    return {
        derive(shared_, salt(), "rcverbs authentication 1 connecting messages", {transcript_}),
        derive(shared_, salt(), "rcverbs authentication 1 accepting messages", {transcript_})};
}

// --- the connecting side -------------------------------------------------------------------------

connecting_authentication::connecting_authentication(
    std::string identity,
    std::vector<secret> keys,
    bool encrypts,
    wire::authentication_nonce const& nonce
)
    : authentication_side{encrypts},
      keys_{std::move(keys)} {
    request_.identity = std::move(identity);
    request_.nonce = nonce;
}

error_code connecting_authentication::take_acceptance(
    std::span<std::byte const> private_data, authenticated_addresses const& who
) {
    if (!wire::is_authentication(private_data)) return errc::security_mismatch;
    auto const theirs = wire::decode_authentication_acceptance(private_data);
    if (!theirs) return errc::authentication_failed;
    if (theirs->encrypts != request_.encrypts) return errc::security_mismatch;
    accepting_nonce_ = theirs->nonce;
    begin_transcript(who);
    for (secret const& key : keys_) {
        digest const expected = authenticate(accepting_key(key), transcript_);
        // Both are looked at, so that the time does not say which it is.
        bool const is_first = is_equal(expected, theirs->proofs[0]);
        bool const is_second = is_equal(expected, theirs->proofs[1]);
        if ((is_first || is_second) && shared_.is_empty()) shared_ = key;
    }
    return shared_.is_empty() ? error_code{errc::authentication_failed} : error_code{};
}

std::vector<std::byte> connecting_authentication::proof(std::span<std::byte const> hello) {
    transcript_ = after_hello(transcript_, hello);
    return wire::encode(wire::authentication_proof_message{
        authenticate(connecting_key(shared_), transcript_), hello});
}

error_code connecting_authentication::take_result(std::span<std::byte const> message) {
    auto const theirs = wire::decode_authentication_result(message);
    if (!theirs) return errc::authentication_failed;
    digest const after = after_result(transcript_, theirs->verdict, theirs->hello);
    if (!is_equal(authenticate(accepting_key(shared_), after), theirs->proof))
        return errc::authentication_failed;
    transcript_ = after;
    verdict_ = theirs->verdict;
    peer_hello_.assign(theirs->hello.begin(), theirs->hello.end());
    return {};
}

// --- the accepting side --------------------------------------------------------------------------

wire::authentication_refusal accepting_authentication::take_request(
    std::span<std::byte const> private_data, key_source const& keys
) {
    using refusal = wire::authentication_refusal;
    if (!wire::is_authentication(private_data)) return refusal::mismatch;
    bool const encrypts = request_.encrypts;
    wire::authentication_request theirs;
    if (refusal const why = wire::decode(private_data, theirs); why != refusal::none) return why;
    if (theirs.encrypts != encrypts) return refusal::mismatch;
    keys_ = keys(theirs.identity);
    if (keys_.empty()) return refusal::unknown_identity;
    request_ = std::move(theirs);
    return refusal::none;
}

std::vector<std::byte> accepting_authentication::acceptance(
    authenticated_addresses const& who,
    wire::authentication_nonce const& nonce,
    wire::authentication_proof const& filler
) {
    accepting_nonce_ = nonce;
    begin_transcript(who);
    wire::authentication_acceptance ours{request_.encrypts, nonce, {filler, filler}};
    for (std::size_t i = 0; i < std::min(keys_.size(), ours.proofs.size()); ++i)
        ours.proofs[i] = authenticate(accepting_key(keys_[i]), transcript_);
    return wire::encode(ours);
}

error_code accepting_authentication::take_proof(std::span<std::byte const> message) {
    auto const theirs = wire::decode_authentication_proof(message);
    if (!theirs) return errc::authentication_failed;
    transcript_ = after_hello(transcript_, theirs->hello);
    for (secret const& key : keys_) {
        bool const is_right =
            is_equal(authenticate(connecting_key(key), transcript_), theirs->proof);
        if (is_right && shared_.is_empty()) shared_ = key;
    }
    if (shared_.is_empty()) return errc::authentication_failed;
    peer_hello_.assign(theirs->hello.begin(), theirs->hello.end());
    return {};
}

std::vector<std::byte> accepting_authentication::result(
    wire::authentication_verdict verdict, std::span<std::byte const> hello
) {
    transcript_ = after_result(transcript_, verdict, hello);
    return wire::encode(wire::authentication_result_message{
        authenticate(accepting_key(shared_), transcript_), verdict, hello});
}

}  // namespace rcverbs::detail
