// message_cipher.hpp — AES-256-GCM of the messages of one connection, which arrive in their order: the number
// of a message in its direction is its nonce, so nothing is sent for it, and a message that was lost,
// repeated or exchanged does not open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "authentication/exchange.hpp"

struct evp_cipher_ctx_st;

namespace rcverbs::detail {

class message_cipher {
public:
    /// Bytes that a message grows by.
    static constexpr std::size_t tag_bytes = 16;

    /// @throws boost::system::system_error (errc::authentication_failed): OpenSSL cannot.
    message_cipher(message_keys const& keys, bool is_connecting_side);

    /// Encrypts a message where it is; its last tag_bytes get the tag. False if OpenSSL cannot.
    [[nodiscard]] bool seal(std::span<std::byte> message_and_tag) noexcept;
    /// The opposite. False if it is not the next message of the peer's.
    [[nodiscard]] bool open(std::span<std::byte> message_and_tag) noexcept;

private:
    struct direction {
        struct free {
            void operator()(evp_cipher_ctx_st* what) const noexcept;
        };

        std::unique_ptr<evp_cipher_ctx_st, free> with;
        std::uint64_t number = 0;
    };

    static direction make(secret const& key, bool is_sending);

    direction sending_;
    direction receiving_;
};

}  // namespace rcverbs::detail
