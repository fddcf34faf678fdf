// operation.hpp — the fixed place in which one data-path operation lives, its handler included.
//
// A connection makes all its operations when it is made, and each is used again and again: starting and completing one
// allocates nothing as long as the handler fits operation::handler_bytes_max. Internal; guarded by its connection.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <rcverbs/error.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/received.hpp>

namespace rcverbs::detail {

/// What an operation does; the work request's opcode follows from it.
enum class operation_kind : std::uint8_t {
    send,
    send_with_immediate,
    write,
    write_with_immediate,
    read,
    fetch_add,
    compare_swap,
    receive,
};

/// What an operation came to; which member counts follows from its kind.
struct outcome {
    std::size_t bytes = 0;
    received arrival;
    std::uint64_t word = 0;
};

/// What to do: filled in by the initiating function, read when the work request is built.
struct request {
    operation_kind kind = operation_kind::send;
    bool fence = false;
    std::uint32_t immediate = 0;
    std::byte* local_data = nullptr;
    std::size_t size_bytes = 0;
    local_key key;
    std::uint64_t remote_address = 0;
    remote_key remote;
    std::uint64_t operand = 0;  // fetch_add: what to add; compare_swap: what to compare with
    std::uint64_t swap = 0;
};

/// One operation and the handler that waits for it.
class operation {
public:
    /// Room for a handler in place. Awaitable handlers of Boost 1.81 and callbacks with a few captures fit; a larger
    /// one is kept in memory of its associated allocator.
    static constexpr std::size_t handler_bytes_max = 192;

    operation() = default;
    operation(operation const&) = delete;
    operation& operator=(operation const&) = delete;
    ~operation() { drop(); }

    /// Puts a handler in place. `Result` turns the outcome into the handler's arguments.
    /// REQUIRES: no handler is in place.
    template <class Result, class Handler>
    void emplace(Handler&& handler, boost::asio::any_io_executor const& io) {
        using holder = holder_for<std::decay_t<Handler>, Result>;
        if constexpr (sizeof(holder) <= handler_bytes_max && alignof(holder) <= alignof(std::max_align_t)) {
            ::new (static_cast<void*>(storage_.data())) holder{std::forward<Handler>(handler), io};
            actions_ = &in_place_actions<holder>;
        } else {
            auto allocator = rebound<holder>(handler);
            using traits = std::allocator_traits<decltype(allocator)>;
            holder* place = traits::allocate(allocator, 1);
            ::new (static_cast<void*>(place)) holder{std::forward<Handler>(handler), io};
            ::new (static_cast<void*>(storage_.data())) holder*{place};
            actions_ = &allocated_actions<holder>;
        }
    }

    /// Takes the handler out, frees its place, and calls it on its associated executor: at once if that is `io` and
    /// `inside_io` says that this thread runs it, else as dispatch does. REQUIRES: a handler is in place.
    void complete(boost::asio::any_io_executor const& io, bool inside_io) {
        std::exchange(actions_, nullptr)->complete(*this, io, inside_io);
    }

    /// Destroys the handler, if any, without calling it.
    void drop() noexcept {
        if (actions_ != nullptr) std::exchange(actions_, nullptr)->drop(*this);
    }

    /// True if a handler is in place.
    bool is_pending() const noexcept { return actions_ != nullptr; }

    request what;
    error_code code;
    outcome result;
    // How much of a read or write has been posted: one longer than the device's messages goes out in pieces.
    std::size_t posted_bytes = 0;
    // Counts uses, so that a late cancellation does not hit the next use of the same place.
    std::uint32_t use = 0;
    bool is_posted = false;
    bool is_cancelled = false;
    // On its way to its handler: too late for a cancellation.
    bool is_done = false;
    operation* next = nullptr;

private:
    template <class Handler, class Result>
    struct holder_for {
        using executor_type = boost::asio::associated_executor_t<Handler, boost::asio::any_io_executor>;
        Handler handler;
        boost::asio::executor_work_guard<executor_type> work;

        template <class H>
        holder_for(H&& h, boost::asio::any_io_executor const& io)
            : handler{std::forward<H>(h)}, work{boost::asio::get_associated_executor(handler, io)} {}

        // Called with the holder moved out of its place.
        void call(operation& op, boost::asio::any_io_executor const& io, bool inside_io) {
            executor_type executor = work.get_executor();
            error_code const code = op.code;
            auto const value = Result{}(op.result);
            if constexpr (std::is_same_v<executor_type, boost::asio::any_io_executor>) {
                if (inside_io && executor == io) {
                    boost::asio::get_associated_cancellation_slot(handler).clear();
                    std::move(handler)(code, value);
                    return;
                }
            }
            boost::asio::dispatch(executor, bound<decltype(value)>{std::move(handler), code, value});
        }

        // The handler with its arguments, keeping its associations.
        template <class Value>
        struct bound {
            using allocator_type = boost::asio::associated_allocator_t<Handler>;
            allocator_type get_allocator() const noexcept { return boost::asio::get_associated_allocator(handler); }

            Handler handler;
            error_code code;
            std::remove_const_t<Value> value;
            void operator()() {
                // On the handler's executor and nowhere else: that is where signals are emitted.
                boost::asio::get_associated_cancellation_slot(handler).clear();
                std::move(handler)(code, value);
            }
        };
    };

    struct actions {
        void (*complete)(operation&, boost::asio::any_io_executor const&, bool);
        void (*drop)(operation&) noexcept;
    };

    template <class Holder, class Handler>
    static auto rebound(Handler const& handler) {
        auto allocator = boost::asio::get_associated_allocator(handler);
        return typename std::allocator_traits<decltype(allocator)>::template rebind_alloc<Holder>{allocator};
    }

    template <class Holder>
    static Holder* in_place(operation& op) noexcept {
        return std::launder(reinterpret_cast<Holder*>(op.storage_.data()));  // where emplace constructed it
    }

    template <class Holder>
    static inline constexpr actions in_place_actions{
        [](operation& op, boost::asio::any_io_executor const& io, bool inside_io) {
            Holder* place = in_place<Holder>(op);
            Holder local{std::move(*place)};
            place->~Holder();
            local.call(op, io, inside_io);
        },
        [](operation& op) noexcept { in_place<Holder>(op)->~Holder(); }};

    template <class Holder>
    static Holder take_allocated(operation& op) {
        Holder* place = *in_place<Holder*>(op);
        auto allocator = rebound<Holder>(place->handler);
        Holder local{std::move(*place)};
        place->~Holder();
        std::allocator_traits<decltype(allocator)>::deallocate(allocator, place, 1);
        return local;
    }

    template <class Holder>
    static inline constexpr actions allocated_actions{
        [](operation& op, boost::asio::any_io_executor const& io, bool inside_io) {
            take_allocated<Holder>(op).call(op, io, inside_io);
        },
        [](operation& op) noexcept { take_allocated<Holder>(op); }};

    alignas(std::max_align_t) std::array<std::byte, handler_bytes_max> storage_;
    actions const* actions_ = nullptr;
};

/// Outcome to handler argument, by kind of operation.
struct bytes_result {
    std::size_t operator()(outcome const& o) const noexcept { return o.bytes; }
};
struct arrival_result {
    received operator()(outcome const& o) const noexcept { return o.arrival; }
};
struct word_result {
    std::uint64_t operator()(outcome const& o) const noexcept { return o.word; }
};

}  // namespace rcverbs::detail
