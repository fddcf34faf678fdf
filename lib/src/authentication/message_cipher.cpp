#include "authentication/message_cipher.hpp"

#include <openssl/evp.h>

#include <boost/endian/conversion.hpp>

#include <array>
#include <cstring>

#include <rcverbs/error.hpp>

#include "authentication/secret.hpp"

namespace rcverbs::detail {

namespace {

using nonce = std::array<unsigned char, 12>;

nonce nonce_of(std::uint64_t number) noexcept {
    nonce n{};
    boost::endian::native_to_big_inplace(number);
    std::memcpy(n.data() + 4, &number, sizeof(number));
    return n;
}

}  // namespace

void message_cipher::direction::free::operator()(evp_cipher_ctx_st* what) const noexcept {
    EVP_CIPHER_CTX_free(what);
}

message_cipher::direction message_cipher::make(secret const& key, bool is_sending) {
    direction made;
    made.with.reset(EVP_CIPHER_CTX_new());
    auto const* const bytes = reinterpret_cast<unsigned char const*>(key.bytes().data());
    int const is_right =
        made.with == nullptr
            ? 0
            : EVP_CipherInit_ex(
                  made.with.get(), EVP_aes_256_gcm(), nullptr, bytes, nullptr, is_sending ? 1 : 0
              );
    if (is_right != 1) throw boost::system::system_error{errc::authentication_failed, "OpenSSL"};
    return made;
}

message_cipher::message_cipher(message_keys const& keys, bool is_connecting_side)
    : sending_{make(is_connecting_side ? keys.connecting : keys.accepting, true)},
      receiving_{make(is_connecting_side ? keys.accepting : keys.connecting, false)} {}

bool message_cipher::seal(std::span<std::byte> message_and_tag) noexcept {
    EVP_CIPHER_CTX* const with = sending_.with.get();
    std::size_t const size = message_and_tag.size() - tag_bytes;
    unsigned char* const at = octets(message_and_tag);
    int written = 0;
    nonce const n = nonce_of(sending_.number++);
    return EVP_EncryptInit_ex(with, nullptr, nullptr, nullptr, n.data()) == 1 &&
           EVP_EncryptUpdate(with, at, &written, at, static_cast<int>(size)) == 1 &&
           EVP_EncryptFinal_ex(with, at + size, &written) == 1 &&
           EVP_CIPHER_CTX_ctrl(with, EVP_CTRL_GCM_GET_TAG, tag_bytes, at + size) == 1;
}

bool message_cipher::open(std::span<std::byte> message_and_tag) noexcept {
    if (message_and_tag.size() < tag_bytes) return false;
    EVP_CIPHER_CTX* const with = receiving_.with.get();
    std::size_t const size = message_and_tag.size() - tag_bytes;
    unsigned char* const at = octets(message_and_tag);
    int written = 0;
    nonce const n = nonce_of(receiving_.number++);
    return EVP_DecryptInit_ex(with, nullptr, nullptr, nullptr, n.data()) == 1 &&
           EVP_DecryptUpdate(with, at, &written, at, static_cast<int>(size)) == 1 &&
           EVP_CIPHER_CTX_ctrl(with, EVP_CTRL_GCM_SET_TAG, tag_bytes, at + size) == 1 &&
           EVP_DecryptFinal_ex(with, at + size, &written) == 1;
}

}  // namespace rcverbs::detail
