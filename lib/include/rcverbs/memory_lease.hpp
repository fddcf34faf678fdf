// memory_lease.hpp — memory that an operation owns until the device no longer uses it.
//
//     slot_lease slot = co_await slots.async_acquire(use_awaitable);
//     auto const first = co_await (c.async_receive(std::move(slot), as_tuple(use_awaitable)) ||
//                                  timer.async_wait(as_tuple(use_awaitable)));
//     if (first.index() == 1) std::cout << "no message yet; the connection goes on\n";
//
// A cancelled operation on borrowed memory must end the connection, because the device still uses
// the memory. An operation that owns its memory completes at once with every type of cancellation,
// and the connection goes on: the memory is released when the device has finished with it.
//
// A lease is moved into an operation, and its handler gets it back; after a cancellation the handler
// gets none. One thread at a time uses a lease; it may be released on any thread.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include <rcverbs/export.hpp>
#include <rcverbs/receive_result.hpp>
#include <rcverbs/slice.hpp>

namespace rcverbs {

class memory_lease;
class slot_lease;

namespace detail {

/// Owns registered memory, and has a slice of it.
template <class T>
concept has_slice = requires(T const& owner) {
    { owner.slice() } -> std::convertible_to<mutable_slice>;
};
template <class T>
concept slice_owner = !std::same_as<T, memory_lease> && has_slice<T> && std::movable<T>;

}  // namespace detail

/// The right to use a range of registered memory, whatever owns it; gives the memory back when it is
/// destroyed.
class RCVERBS_EXPORT memory_lease {
public:
    /// No memory; is_valid() is false.
    memory_lease() noexcept = default;
    /// Takes a slot of a pool. Allocates nothing.
    memory_lease(slot_lease&& slot) noexcept;
    /// Takes anything that owns registered memory and has `mutable_slice slice() const`, such as a
    /// registered_buffer or a message. Allocates memory for the owner.
    template <class Owner>
    requires detail::slice_owner<Owner> memory_lease(Owner owner) {
        auto held = std::make_shared<Owner>(std::move(owner));
        slice_ = held->slice();
        owner_ = std::move(held);
    }
    memory_lease(memory_lease&& other) noexcept
        : slice_{std::exchange(other.slice_, {})},
          owner_{std::move(other.owner_)},
          give_back_{std::exchange(other.give_back_, nullptr)},
          index_{other.index_} {}
    /// Gives its own memory back first.
    memory_lease& operator=(memory_lease&& other) noexcept {
        memory_lease taken{std::move(other)};
        std::swap(slice_, taken.slice_);
        std::swap(owner_, taken.owner_);
        std::swap(give_back_, taken.give_back_);
        std::swap(index_, taken.index_);
        return *this;
    }
    /// Gives the memory back.
    ~memory_lease() { release(); }

    /// True if it has memory.
    bool is_valid() const noexcept { return owner_ != nullptr; }
    /// The memory.
    std::span<std::byte> bytes() const noexcept { return slice_.bytes(); }
    /// The size in bytes.
    std::size_t size() const noexcept { return slice_.size(); }
    /// The memory, as operations take it.
    mutable_slice const& slice() const noexcept { return slice_; }

    /// Gives the memory back now; is_valid() is false afterwards.
    void release() noexcept;

private:
    mutable_slice slice_;
    std::shared_ptr<void> owner_;
    // Called with the owner and the index, if the owner keeps the memory; else null.
    void (*give_back_)(void* owner, std::uint32_t index) noexcept = nullptr;
    std::uint32_t index_ = 0;
};

/// What converts to a memory_lease: an rvalue of it, or of an owner of registered memory.
template <class T>
concept leasable = !std::is_lvalue_reference_v<T> && std::convertible_to<T&&, memory_lease>;

/// The outcome of a receive that owns its memory.
struct leased_receive_result : receive_result {
    /// The memory with the message: *a* lease that a receive of this connection was started with,
    /// not necessarily this one. Without memory after a cancellation.
    memory_lease memory;

    /// The message; empty if it was a write with immediate.
    std::span<std::byte> bytes() const noexcept {
        return memory.bytes().first(is_write ? 0 : size_bytes);
    }
};

}  // namespace rcverbs
