// authentication.hpp — keys that two sides share, without which no session, channel or ring is opened.
//
//     message_channel_options options;
//     options.authentication.keys = pre_shared_keys::load("/etc/rcverbs/keys");
//     message_channel c{io, options};
//     co_await c.async_connect(peer, use_awaitable);
//
// The options are the same on both sides. Each side proves that it has the key of the connecting side's
// identity, for this connection: the proofs depend on random numbers of both sides, on the addresses of
// both, and on what the sides say about their protocol. Until then nothing of the application is sent
// or accepted, and the peer may not access any memory. docs/guides/security.md says what this protects
// and what it does not; docs/reference/authentication-format.md has the messages.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

namespace detail {

class key_set;
struct access;

}  // namespace detail

/// Identities, and the keys of each. Copies refer to the same keys. Any thread.
class RCVERBS_EXPORT pre_shared_keys {
public:
    /// Bytes of an identity, at most.
    static constexpr std::size_t identity_bytes_max = 32;
    /// Bytes of a key, at least.
    static constexpr std::size_t key_bytes_min = 16;
    /// Bytes of a key, at most.
    static constexpr std::size_t key_bytes_max = 64;
    /// Keys of an identity that are valid at a time, at most: the new one and the old one while a key
    /// is being replaced. The connecting side uses its first that the other side has.
    static constexpr std::size_t keys_each_max = 2;

    /// No keys: peers are not authenticated.
    pre_shared_keys() noexcept;

    /// Reads a file. Each line has an identity, spaces, and a key in hexadecimal digits; lines that are
    /// empty or begin with # are ignored. For a key of 32 random bytes: `openssl rand -hex 32`.
    ///
    /// @param path  The file. Only its owner may write it, and others than its owner and group may not
    ///              read it.
    /// @throws boost::system::system_error: errc::invalid_key_file, with the line, and what is wrong;
    ///         errno of reading.
    static pre_shared_keys load(std::string const& path);
    /// The same; reports through `ec` instead of throwing, and returns no keys.
    static pre_shared_keys load(std::string const& path, error_code& ec);

    /// Adds a key.
    ///
    /// @param identity  1 to identity_bytes_max printable characters of ASCII, without spaces, that do
    ///                  not begin with #.
    /// @param key       key_bytes_min to key_bytes_max bytes, which nobody can guess: random ones, no
    ///                  password.
    /// @throws boost::system::system_error: errc::invalid_option (one of them is not so, or the identity
    ///         has keys_each_max keys).
    void add(std::string_view identity, std::span<std::byte const> key);
    /// Reads the file again from which the keys were loaded, in all copies. After an error the keys are
    /// as before. Without effect on keys of no file.
    ///
    /// @throws As load().
    void reload();
    /// The same; reports through `ec` instead of throwing.
    void reload(error_code& ec);

    /// The same keys, for a connecting side that has those of several identities.
    ///
    /// @param identity  Who it is. 1 to identity_bytes_max bytes.
    /// @throws boost::system::system_error (errc::invalid_option): another length.
    pre_shared_keys as(std::string_view identity) const;

    /// True if there are no keys.
    bool is_empty() const noexcept { return set_ == nullptr; }
    /// All identities, in order.
    std::vector<std::string> identities() const;

private:
    friend struct detail::access;

    std::shared_ptr<detail::key_set> set_;
    std::shared_ptr<std::string const> identity_;
};

/// How the sides of a session, a channel or a ring know each other.
struct authentication_options {
    /// The keys that both sides have. The connecting side is their only identity, or the one that
    /// pre_shared_keys::as() named. Without keys the peer is not authenticated; a side with keys and
    /// one without refuse each other with errc::security_mismatch.
    pre_shared_keys keys = {};
    /// Of the accepting side: called once the peer has proved its identity; if it returns false, the
    /// peer gets errc::identity_refused. Runs on the connection's executor; must not throw. Empty:
    /// everybody who has a key.
    std::function<bool(std::string_view identity)> admits = {};
    /// True: each message is encrypted and protected against changes (AES-256-GCM). Both sides must
    /// have the same. Costs 16 bytes of each message. Only small messages can be sent: large ones, and
    /// answers that are written to the peer's memory, are not protected, so they are refused with
    /// errc::message_too_large or sent as small messages. Not for rings, whose records are written to
    /// memory. Reads, writes and atomics of the program are not protected.
    bool encrypts_messages = false;
    /// How long the peer may take, from the connection's establishment. Above 0.
    std::chrono::milliseconds timeout{10000};
};

}  // namespace rcverbs
