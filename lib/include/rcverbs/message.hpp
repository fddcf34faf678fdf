// message.hpp — a message that has arrived at a channel.
//
//     message m = co_await channel.async_receive(use_awaitable);
//     std::cout << m.tag() << ": " << m.bytes().size() << " bytes in place\n";
//     m.release();  // gives the place back: the peer may send one more
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/deferred.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/channel_error.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/slice.hpp>

namespace rcverbs {

namespace detail {

class channel_core;

}  // namespace detail

/// A message that has arrived. It occupies one receive of the channel until it is destroyed,
/// released or detached. The peer waits while it has no receive left.
///
/// Movable to any thread; one thread at a time uses it. Remains valid after the channel.
class RCVERBS_EXPORT message {
public:
    /// No message; is_valid() is false.
    message() noexcept;
    message(message&& other) noexcept;
    /// Releases its own first.
    message& operator=(message&& other) noexcept;
    /// Releases.
    ~message();

    /// True if there is a message.
    bool is_valid() const noexcept { return core_ != nullptr; }
    /// The sender's number.
    std::uint64_t tag() const noexcept { return tag_; }
    /// The size in bytes.
    std::uint64_t size() const noexcept { return size_bytes_; }
    /// True if the bytes are still with the sender: fetch them by async_fetch().
    bool is_large() const noexcept { return is_large_; }
    /// The bytes; none of a large message.
    std::span<std::byte const> bytes() const noexcept { return slice_.bytes(); }
    /// The same as a slice. Registered, so that it may be sent or written from without a copy, until
    /// the message is detached; then a channel still sends it as a small message, and other
    /// operations refuse it (errc::region_gone). A request channel detaches by itself.
    mutable_slice const& slice() const noexcept { return slice_; }
    /// The protection domain of the channel, for memory that is given to async_take(). REQUIRES: is_valid().
    protection_domain domain() const;
    /// The identity that the sender has proved, if it is the connecting side: see
    /// authentication_options. Else empty. REQUIRES: is_valid().
    std::string peer_identity() const;

    /// Copies the bytes, at most the channel's small_bytes_max(), into memory of the message's own,
    /// and gives the receive back now. For messages that are kept for long. A large message can
    /// still be fetched afterwards.
    ///
    /// @throws std::bad_alloc; then nothing has changed.
    void detach();
    /// Gives the receive back now; is_valid() is false afterwards. A large message that was not
    /// fetched is declined: its send fails with channel_errc::message_declined.
    void release() noexcept;
    /// Brings the bytes into memory of the program's, and releases the message, whose is_valid() is
    /// false from the launch on: as async_fetch() of its channel, which need not be known here. A
    /// request can still be answered. REQUIRES: is_valid().
    ///
    /// @param into   As many bytes as the message has: one slice, or a range of them. For a large one
    ///               registered with local_write.
    /// @param token  Completion token. An operation that is launched later refers to this object until
    ///               then.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          None, as for async_fetch().
    /// @par Errors                Those of async_fetch().
    template <class Token = boost::asio::deferred_t>
    auto async_take(mutable_slices into, Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code)>(
            detail::initiation{
                executor(),
                [](auto handler, message* of, mutable_slices const& to) {
                    start_take(std::move(*of), to, detail::control_handler{std::move(handler)});
                }},
            token,
            this,
            into
        );
    }

protected:
    /// What the sender has put before the body.
    std::span<std::byte const> head() const noexcept { return head_; }
    /// The bytes are in memory of the program's.
    void set_body(mutable_slice const& where) noexcept {
        slice_ = where;
        size_bytes_ = where.size();
        is_elsewhere_ = true;
    }
    /// True after set_body().
    bool is_elsewhere() const noexcept { return is_elsewhere_; }

private:
    friend class detail::channel_core;

    boost::asio::any_io_executor executor() const;
    static void start_take(
        message what, mutable_slices const& into, detail::control_handler handler
    );

    std::shared_ptr<detail::channel_core> core_;
    mutable_slice slice_;
    std::uint64_t tag_ = 0;
    std::uint64_t size_bytes_ = 0;
    std::uint64_t number_ = 0;  // of a large message
    std::uint32_t slot_ = 0;
    bool is_large_ = false;
    bool is_detached_ = false;
    bool is_elsewhere_ = false;
    std::span<std::byte const> head_;
    std::vector<std::byte> own_;  // when detached: all that was in its receive
};

}  // namespace rcverbs
