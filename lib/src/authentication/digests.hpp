// digests.hpp — what proofs and keys are computed with: SHA-256, HMAC-SHA-256 and HKDF of OpenSSL, and random
// numbers. Each throws boost::system::system_error (errc::authentication_failed) if OpenSSL cannot, as
// where its configuration forbids the algorithm.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include "authentication/secret.hpp"

namespace rcverbs::detail {

using digest = std::array<std::byte, 32>;
using parts = std::initializer_list<std::span<std::byte const>>;

/// SHA-256 of a label and the parts, one behind the other. The parts' lengths follow from what they are.
digest hash(std::string_view label, parts all);
/// HMAC-SHA-256.
digest authenticate(secret const& key, digest const& text);
/// HKDF with SHA-256: 32 bytes.
secret derive(
    secret const& from, std::span<std::byte const> salt, std::string_view label, parts context
);
bool is_equal(digest const& a, digest const& b) noexcept;
void fill_random(std::span<std::byte> out);

}  // namespace rcverbs::detail
