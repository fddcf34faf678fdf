// message.hpp — a message that has arrived at a channel.
//
//     message m = co_await channel.async_receive(use_awaitable);
//     std::cout << m.tag() << ": " << m.bytes().size() << " bytes in place\n";
//     m.release();  // gives the place back: the peer may send one more
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <rcverbs/channel_error.hpp>
#include <rcverbs/export.hpp>
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

    /// Copies the bytes, at most the channel's small_bytes_max(), into memory of the message's own,
    /// and gives the receive back now. For messages that are kept for long. A large message can
    /// still be fetched afterwards.
    ///
    /// @throws std::bad_alloc; then nothing has changed.
    void detach();
    /// Gives the receive back now; is_valid() is false afterwards. A large message that was not
    /// fetched is declined: its send fails with channel_errc::message_declined.
    void release() noexcept;

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
