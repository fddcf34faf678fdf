#include "authentication/digests.hpp"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <memory>
#include <vector>

#include <rcverbs/error.hpp>

namespace rcverbs::detail {

namespace {

void require(bool has_worked) {
    if (!has_worked) throw boost::system::system_error{errc::authentication_failed, "OpenSSL"};
}

std::vector<std::byte> joined(std::string_view label, parts all) {
    auto const letters = std::as_bytes(std::span{label});
    std::vector<std::byte> text(letters.begin(), letters.end());
    for (auto const part : all) text.insert(text.end(), part.begin(), part.end());
    return text;
}

}  // namespace

secret::~secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

digest hash(std::string_view label, parts all) {
    auto const text = joined(label, all);
    digest out{};
    require(EVP_Digest(text.data(), text.size(), octets(out), nullptr, EVP_sha256(), nullptr) == 1);
    return out;
}

digest authenticate(secret const& key, digest const& text) {
    digest out{};
    std::size_t size = 0;
    require(
        EVP_Q_mac(
            nullptr,
            OSSL_MAC_NAME_HMAC,
            nullptr,
            OSSL_DIGEST_NAME_SHA2_256,
            nullptr,
            key.bytes().data(),
            key.bytes().size(),
            reinterpret_cast<unsigned char const*>(text.data()),
            text.size(),
            octets(out),
            out.size(),
            &size
        ) != nullptr
    );
    return out;
}

secret derive(
    secret const& from, std::span<std::byte const> salt, std::string_view label, parts context
) {
    std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> const kind{
        EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr), &EVP_KDF_free};
    require(kind != nullptr);
    std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> const with{
        EVP_KDF_CTX_new(kind.get()), &EVP_KDF_CTX_free};
    require(with != nullptr);
    std::vector<std::byte> info = joined(label, context);
    std::vector<std::byte> salted(salt.begin(), salt.end());
    secret key = from;
    char sha256[] = OSSL_DIGEST_NAME_SHA2_256;
    OSSL_PARAM const parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, sha256, 0),
        OSSL_PARAM_construct_octet_string(
            OSSL_KDF_PARAM_KEY, key.bytes().data(), key.bytes().size()
        ),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salted.data(), salted.size()),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
        OSSL_PARAM_construct_end()};
    secret out{sizeof(digest)};
    require(EVP_KDF_derive(with.get(), octets(out.bytes()), out.bytes().size(), parameters) == 1);
    return out;
}

bool is_equal(digest const& a, digest const& b) noexcept {
    return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<std::byte> out) {
    require(RAND_bytes(octets(out), static_cast<int>(out.size())) == 1);
}

}  // namespace rcverbs::detail
