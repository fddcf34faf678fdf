// op.hpp — operations on data as values.
//
//     co_await c.async_start(op::write(mine.slice(), theirs).fenced(), use_awaitable);
//     error_code const ec = c.try_start(op::send(mine.slice()), [](error_code, std::size_t) {});
//     if (ec == errc::would_block) std::cout << "the queue is full\n";
//     list.add(op::write(mine.slice(), theirs)).add(op::send(mine.slice()));
//
// A value says what an operation does; nothing happens until a connection or a batch gets it. It
// can be copied, and started any number of times. connection::async_start() starts it for a
// completion token, connection::try_start() only if it can be posted at once, and batch::add() adds
// it to a list. connection::async_write() and its sisters are short for async_start(); they
// document each operation, and its errors.
//
// Rules for every operation:
//   * Its handler is called exactly once, on its associated executor or else on the connection's,
//     and never from inside the initiating call.
//   * Borrowed memory belongs to the operation until its handler runs. After a failure, a
//     cancellation or close(), the handler runs only when the device no longer uses the memory,
//     except with errc::not_drained: then do not free it. An operation that owns its memory
//     (op::leased) completes at once when it is cancelled; with errc::not_drained its memory never comes
//     back. The same holds for a batch. Slices themselves are copied: up to four of an operation into the
//     value, more into memory that is allocated.
//   * Sends, reads, writes and atomics are posted and complete in the order of the calls; so do
//     receives. An operation that finds its queue full waits; at most
//     queue_pair_options::waiting_operations_max operations wait.
//   * Everything that can be checked is checked before posting. Such an error harms neither the
//     connection nor other operations. A failed work request moves an RC queue pair to the error
//     state, and the connection ends.
//   * If you cancel an operation before it is posted, it is as if it had never been started. One on
//     borrowed memory that was posted cannot be cancelled alone: only a terminal cancellation has an
//     effect, and it ends the connection. One that owns its memory can, and the connection goes on.
//   * Operations that were posted when the connection failed complete with the error that describes
//     the cause: see connection::last_failure.
//   * An operation allocates nothing if its handler fits detail::operation::handler_bytes_max, and
//     if as many have been outstanding before: what they need is kept.
//
// Any thread may start operations. Operations that handlers start on the connection's executor are
// posted as one list at the end of the polling round; all others are posted at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/start.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/memory_lease.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/receive_result.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs::op {

/// An operation of the send queue: every one but op::receive_t. What batch::add() takes.
class send_queue_operation {
protected:
    // From a function that makes the request, in place: it is large.
    template <class Make>
    explicit send_queue_operation(Make const& make) noexcept : request_{make()} {}

    detail::work_request request_;

private:
    friend struct detail::access;
};

/// What the operations of the send queue have in common.
template <class Derived>
class fenceable : public send_queue_operation {
public:
    /// The same operation with a fence: it starts only when all reads and atomics before it have
    /// completed. Needed if a write or send depends on the result of a read; a reliable connection
    /// keeps the other orders itself: docs/reference/ordering.md. Source: ibv_post_send(3),
    /// IBV_SEND_FENCE.
    [[nodiscard]] Derived fenced() const noexcept {
        Derived same = static_cast<Derived const&>(*this);
        same.request_.is_fenced = true;
        return same;
    }

protected:
    template <class Make>
    explicit fenceable(Make const& make) noexcept : send_queue_operation{make} {}
};

/// A write, with or without immediate data.
class write_t : public fenceable<write_t> {
public:
    /// The bytes written.
    using result_type = std::size_t;

private:
    friend struct detail::access;
    using reader = detail::bytes_result;
    template <class Make>
    explicit write_t(Make const& make) noexcept : fenceable<write_t>{make} {}
};

/// A read.
class read_t : public fenceable<read_t> {
public:
    /// The bytes read.
    using result_type = std::size_t;

private:
    friend struct detail::access;
    using reader = detail::bytes_result;
    template <class Make>
    explicit read_t(Make const& make) noexcept : fenceable<read_t>{make} {}
};

/// A send, with or without immediate data or an invalidation.
class send_t : public fenceable<send_t> {
public:
    /// The bytes sent.
    using result_type = std::size_t;

private:
    friend struct detail::access;
    using reader = detail::bytes_result;
    template <class Make>
    explicit send_t(Make const& make) noexcept : fenceable<send_t>{make} {}
};

/// A fetch-and-add or a compare-and-swap.
class atomic_t : public fenceable<atomic_t> {
public:
    /// The cell's value before.
    using result_type = std::uint64_t;

private:
    friend struct detail::access;
    using reader = detail::word_result;
    template <class Make>
    explicit atomic_t(Make const& make) noexcept : fenceable<atomic_t>{make} {}
};

/// A receive.
class receive_t {
public:
    /// What has arrived.
    using result_type = receive_result;

private:
    friend struct detail::access;
    using reader = detail::arrival_result;
    template <class Make>
    explicit receive_t(Make const& make) noexcept : request_{make()} {}

    detail::work_request request_;
};

/// An operation that owns its local memory: see memory_lease.hpp. Move only.
template <class Op>
class leased {
public:
    /// As of the operation on borrowed memory.
    using result_type = typename Op::result_type;

    /// As fenceable::fenced().
    [[nodiscard]] leased fenced() && noexcept {
        request_.is_fenced = true;
        return std::move(*this);
    }

private:
    friend struct detail::access;
    using reader = decltype(detail::access::reader_of<Op>());
    leased(Op const& what, memory_lease memory, bool fits) noexcept
        : request_{detail::access::request_of(what)},
          memory_{std::move(memory)} {
        if (!fits) request_.problem = errc::out_of_range;
    }

    detail::work_request request_;
    memory_lease memory_;
};

}  // namespace rcverbs::op

namespace rcverbs::detail {

/// Makes an operation that owns its memory, of one on the first `size_bytes` bytes; all of them if
/// it is empty.
template <class Owner, class Make>
auto lease(Owner&& owner, std::optional<std::size_t> size_bytes, Make const& make) {
    memory_lease memory{std::forward<Owner>(owner)};
    std::size_t const size = size_bytes.value_or(memory.size());
    bool const fits = size <= memory.size();
    auto const what = make(fits ? memory.slice().first(size) : mutable_slice{});
    return access::make<op::leased<std::remove_const_t<decltype(what)>>>(
        what, std::move(memory), fits
    );
}

}  // namespace rcverbs::detail

namespace rcverbs::op {

/// Writes local bytes into memory that the peer has exposed: see connection::async_write().
///
/// @param source  Bytes to read, 0 or more, of one slice or several.
/// @param target  The peer's memory: exactly as many bytes, exposed with remote_write.
inline write_t write(const_slices const& source, remote_region target) noexcept {
    return detail::access::make<write_t>([&] {
        return detail::transfer_request(
            detail::operation_kind::write, detail::access::list_of(source), target
        );
    });
}

/// The same, and completes the peer's oldest receive with `immediate`: see
/// connection::async_write_with_immediate().
///
/// @param source     As above.
/// @param target     As above; may be default-constructed if `source` is empty.
/// @param immediate  In host byte order.
inline write_t write_with_immediate(
    const_slices const& source, remote_region target, std::uint32_t immediate
) noexcept {
    return detail::access::make<write_t>([&] {
        return detail::transfer_request(
            detail::operation_kind::write_with_immediate,
            detail::access::list_of(source),
            target,
            immediate
        );
    });
}

/// Reads memory that the peer has exposed: see connection::async_read().
///
/// @param source  The peer's memory, exposed with remote_read.
/// @param target  Exactly as many bytes, of regions with local_write.
inline read_t read(remote_region source, mutable_slices const& target) noexcept {
    return detail::access::make<read_t>([&] {
        return detail::transfer_request(
            detail::operation_kind::read, detail::access::list_of(target), source
        );
    });
}

/// Sends a message: see connection::async_send().
///
/// @param message  One slice or several.
inline send_t send(const_slices const& message) noexcept {
    return detail::access::make<send_t>([&] {
        return detail::local_request(
            detail::operation_kind::send, detail::access::list_of(message)
        );
    });
}

/// Sends a message and 32 bits of immediate data: see connection::async_send_with_immediate().
///
/// @param message    As above.
/// @param immediate  In host byte order.
inline send_t send_with_immediate(const_slices const& message, std::uint32_t immediate) noexcept {
    return detail::access::make<send_t>([&] {
        return detail::message_request(
            detail::operation_kind::send_with_immediate, detail::access::list_of(message), immediate
        );
    });
}

/// Sends a message and invalidates a key of the receiver's: see
/// connection::async_send_with_invalidate().
///
/// @param message  As above.
/// @param key      The peer's key.
inline send_t send_with_invalidate(const_slices const& message, remote_key key) noexcept {
    return detail::access::make<send_t>([&] {
        return detail::invalidation_request(detail::access::list_of(message), key);
    });
}

/// Adds to an 8-byte cell of the peer's memory: see connection::async_fetch_add().
///
/// @param target  The cell: 8-byte aligned, exposed with remote_atomic.
/// @param add     The number to add, modulo 2^64.
inline atomic_t fetch_add(remote_atomic target, std::uint64_t add) noexcept {
    return detail::access::make<atomic_t>([&] {
        return detail::atomic_request(detail::operation_kind::fetch_add, target, add, 0);
    });
}

/// The same; the device also writes the cell's old value to memory of the program's, which a batch
/// needs to report it.
///
/// @param target  As above.
/// @param add     As above.
/// @param before  8 bytes of a region with local_write.
inline atomic_t fetch_add(
    remote_atomic target, std::uint64_t add, mutable_slice const& before
) noexcept {
    return detail::access::make<atomic_t>([&] {
        return detail::atomic_request(
            detail::operation_kind::fetch_add,
            target,
            add,
            0,
            detail::slice_list{detail::access::plain_of(before)}
        );
    });
}

/// Replaces an 8-byte cell of the peer's memory if it holds `expected`: see
/// connection::async_compare_swap().
///
/// @param target    As for fetch_add().
/// @param expected  The value to compare with.
/// @param desired   The value to store.
inline atomic_t compare_swap(
    remote_atomic target, std::uint64_t expected, std::uint64_t desired
) noexcept {
    return detail::access::make<atomic_t>([&] {
        return detail::atomic_request(
            detail::operation_kind::compare_swap, target, expected, desired
        );
    });
}

/// The same; the device also writes the cell's old value to memory of the program's, which a batch
/// needs to report it.
///
/// @param target    As for fetch_add().
/// @param expected  As above.
/// @param desired   As above.
/// @param before    8 bytes of a region with local_write.
inline atomic_t compare_swap(
    remote_atomic target, std::uint64_t expected, std::uint64_t desired, mutable_slice const& before
) noexcept {
    return detail::access::make<atomic_t>([&] {
        return detail::atomic_request(
            detail::operation_kind::compare_swap,
            target,
            expected,
            desired,
            detail::slice_list{detail::access::plain_of(before)}
        );
    });
}

/// Receives a message, or the immediate data of a write: see connection::async_receive().
///
/// @param into  Memory for a sent message, of regions with local_write; may be empty for immediate
///              data alone.
inline receive_t receive(mutable_slices const& into) noexcept {
    return detail::access::make<receive_t>([&] {
        return detail::local_request(
            detail::operation_kind::receive, detail::access::list_of(into)
        );
    });
}

// --- operations that own their memory ------------------------------------------------------------

/// A write from memory that the operation owns: `void(error_code, std::size_t, memory_lease)`.
///
/// @param source      An rvalue of a memory_lease, or of what converts to it, such as a slot_lease.
/// @param size_bytes  Bytes to write, from the start of the memory. 0 to its size.
/// @param target      The peer's memory: exactly as many bytes, exposed with remote_write.
template <leasable Source>
leased<write_t> write(Source&& source, std::size_t size_bytes, remote_region target) {
    return detail::lease(std::forward<Source>(source), size_bytes, [&](mutable_slice const& bytes) {
        return op::write(bytes, target);
    });
}

/// A read into memory that the operation owns: `void(error_code, std::size_t, memory_lease)`.
///
/// @param source  The peer's memory, exposed with remote_read: at most as many bytes as `target`
///                has.
/// @param target  An rvalue of a memory_lease, or of what converts to it.
template <leasable Target>
leased<read_t> read(remote_region source, Target&& target) {
    return detail::lease(
        std::forward<Target>(target),
        source.size(),
        [&](mutable_slice const& bytes) { return op::read(source, bytes); }
    );
}

/// A send of memory that the operation owns: `void(error_code, std::size_t, memory_lease)`.
///
/// @param message     An rvalue of a memory_lease, or of what converts to it.
/// @param size_bytes  Bytes to send, from the start of the memory. 0 to its size.
template <leasable Message>
leased<send_t> send(Message&& message, std::size_t size_bytes) {
    return detail::lease(
        std::forward<Message>(message),
        size_bytes,
        [](mutable_slice const& bytes) { return op::send(bytes); }
    );
}

/// As fetch_add(), into memory that the operation owns: `void(error_code, std::uint64_t,
/// memory_lease)`.
///
/// @param target  As above.
/// @param add     As above.
/// @param before  At least 8 bytes: an rvalue of a memory_lease, or of what converts to it.
template <leasable Before>
leased<atomic_t> fetch_add(remote_atomic target, std::uint64_t add, Before&& before) {
    return detail::lease(
        std::forward<Before>(before),
        sizeof(std::uint64_t),
        [&](mutable_slice const& cell) { return op::fetch_add(target, add, cell); }
    );
}

/// As compare_swap(), into memory that the operation owns: `void(error_code, std::uint64_t,
/// memory_lease)`.
///
/// @param target    As above.
/// @param expected  As above.
/// @param desired   As above.
/// @param before    As for fetch_add().
template <leasable Before>
leased<atomic_t> compare_swap(
    remote_atomic target, std::uint64_t expected, std::uint64_t desired, Before&& before
) {
    return detail::lease(
        std::forward<Before>(before),
        sizeof(std::uint64_t),
        [&](mutable_slice const& cell) { return op::compare_swap(target, expected, desired, cell); }
    );
}

/// A receive into memory that the operation owns: see connection::async_receive().
///
/// @param into  An rvalue of a memory_lease, or of what converts to it. Its size is the longest
///              message.
template <leasable Into>
leased<receive_t> receive(Into&& into) {
    return detail::lease(std::forward<Into>(into), std::nullopt, [](mutable_slice const& bytes) {
        return op::receive(bytes);
    });
}

}  // namespace rcverbs::op

namespace rcverbs::detail {

/// One of the classes of rcverbs::op.
template <class Op>
concept operation_value = requires(Op const& what) {
    typename Op::result_type;
    access::request_of(what);
};

}  // namespace rcverbs::detail
