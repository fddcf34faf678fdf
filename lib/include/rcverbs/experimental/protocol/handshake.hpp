// handshake.hpp — a driver that connects and accepts, with a hello of each side in the private data of
// the connection. Experimental: it may change.
//
//     class echo final : public protocol::handshake {
//         using handshake::handshake;
//         error_code prepare() override;  // makes the memory, and posts receives
//         std::vector<std::byte> hello(error_code refused) const override;
//         error_code judge(std::span<std::byte const> theirs) override;
//         error_code reason(std::span<std::byte const> theirs) const override;
//         …
//     };
//
//     connecting side                           accepting side
//     prepare(), hello({}) ───── request ─────▶ judge(); refused: hello(why) is the rejection
//     judge(), on_established() ◀─ acceptance ─ prepare(), hello({}), on_established()
//     reason() ◀───────────── rejection ──────
//
// After authenticate() the hellos are messages of the established connection, between the proofs of
// both sides; the same functions are called, in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rcverbs/authentication.hpp>
#include <rcverbs/channel_error.hpp>
#include <rcverbs/endpoint.hpp>
#include <rcverbs/experimental/protocol/driver.hpp>

namespace rcverbs::protocol {

/// A hello for protocols that have nothing more to say.
struct plain_hello {
    std::string_view name;
    std::uint8_t version = 1;

    /// The name and the version, as handshake::hello() returns them.
    std::vector<std::byte> encoded() const {
        auto const letters = std::as_bytes(std::span{name});
        std::vector<std::byte> all(letters.begin(), letters.end());
        all.push_back(std::byte{version});
        return all;
    }
    /// For handshake::judge(): empty, channel_errc::foreign_peer or channel_errc::version_mismatch.
    error_code judge(std::span<std::byte const> theirs) const {
        auto const ours = encoded();
        if (theirs.size() < ours.size() ||
            !std::equal(ours.begin(), ours.end() - 1, theirs.begin()))
            return channel_errc::foreign_peer;
        bool const is_same = theirs[name.size()] == ours.back();
        return is_same ? error_code{} : channel_errc::version_mismatch;
    }
    /// For handshake::reason(): a peer of this protocol rejects another version only.
    error_code reason(std::span<std::byte const> theirs) const {
        error_code const why = judge(theirs);
        return why == channel_errc::foreign_peer ? error_code{} : why;
    }
};

/// A base class. All its functions are called inside.
class RCVERBS_EXPORT handshake : public driver {
public:
    /// Bytes that seal() adds to a message, if it seals.
    static constexpr std::size_t seal_bytes = 16;

    /// Connects. A terminal cancellation closes.
    ///
    /// @param peer  The endpoint.
    /// @param who   Gets errc::already_connected after a connect() or accept(), what judge(), reason(),
    ///              prepare() and on_established() return, or the connection's error.
    void connect(endpoint const& peer, waiter<error_code> who);
    /// Accepts the peer whose request the connection was made of, or rejects it. As connect().
    void accept(waiter<error_code> who);
    /// The identity that the peer has proved; empty on the connecting side, and until then. Any thread.
    std::string peer_identity() const;

protected:
    using driver::driver;

    /// Both sides prove that they have a key before anything else. Called by the constructor of a derived
    /// class; without effect if there are no keys.
    ///
    /// @param how  The same as that of the other side. The connection needs a place for one message more
    ///             in both queues.
    void authenticate(authentication_options const& how);
    /// The hello of the peer's that judge() and reason() get; empty if there is none yet. Any thread.
    std::vector<std::byte> peer_hello() const;
    /// True if messages are encrypted: those that are sent go through seal(), and those that arrive
    /// through unseal(), each in their order. Any thread.
    bool seals_messages() const noexcept { return seals_messages_; }
    /// Encrypts a message where it is, behind on_established(). Without effect if !seals_messages().
    ///
    /// @param place  The message, and room for seal_bytes behind it.
    /// @param size   Bytes of the message.
    /// @return The bytes to be sent.
    std::size_t seal(std::span<std::byte> place, std::size_t size);
    /// The opposite: shortens `message` by what seal() has added.
    ///
    /// @return errc::authentication_failed if this is not the next message of the peer's.
    [[nodiscard]] error_code unseal(std::span<std::byte>& message);

    /// True once connect() or accept() was called.
    bool has_begun() const noexcept { return has_begun_; }
    /// True on the side that has called connect().
    bool is_active() const noexcept { return is_active_; }
    /// Goes on with accepting after holds_back(), or rejects the peer. Without effect if it does not wait.
    void go_on(error_code refused);
    /// Delivers an error to the handler of accept(), if it waits for go_on(): the connection has ended.
    void end_accept(error_code why);
    void on_abandoned() noexcept override;

    /// The result, before it is delivered. Closes the connection after an error.
    ///
    /// @param ec                The result.
    /// @param is_of_connection  The connection has failed, and says at which step.
    virtual void on_result(error_code ec, bool is_of_connection);

private:
    class authentication;

    /// Makes the memory, and posts the receives, before the peer can send.
    virtual error_code prepare() = 0;
    /// This side's hello, as many bytes as private data may have.
    ///
    /// @param refused  Why the peer is rejected; empty for a request and an acceptance.
    virtual std::vector<std::byte> hello(error_code refused) const = 0;
    /// What is wrong with the peer's hello: with its request, or with its acceptance if is_active().
    virtual error_code judge(std::span<std::byte const> theirs) = 0;
    /// The reason in the hello of a peer that has rejected this side; empty if it is no hello: then
    /// the result is cm_errc::rejected_by_peer.
    virtual error_code reason(std::span<std::byte const> theirs) const = 0;
    /// On the accepting side: true if it waits for go_on() before it accepts a peer that was judged well.
    virtual bool holds_back() { return false; }
    /// Both sides agree. An error ends the connection all the same.
    virtual error_code on_established() { return {}; }
    void consider();
    void reject(error_code& why);
    void end(error_code ec, waiter<error_code> who);

    bool has_begun_ = false;
    bool is_active_ = false;
    bool seals_messages_ = false;
    std::optional<waiter<error_code>> accepting_;  // while it is held back
    std::shared_ptr<authentication> authentication_;  // empty if there are no keys
};

}  // namespace rcverbs::protocol
