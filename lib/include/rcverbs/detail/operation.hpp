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
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/prefer.hpp>

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
#include <rcverbs/local_slice.hpp>
#include <rcverbs/received.hpp>

namespace rcverbs::detail {

/// What an operation does; the work request's opcode follows from it.
enum class operation_kind : std::uint8_t {
    send,
    send_with_immediate,
    send_with_invalidate,
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

/// What to do: filled in by the initiating function, read when the work requests are built.
struct request {
    operation_kind kind = operation_kind::send;
    // Starts only when all earlier reads and atomics are complete.
    bool is_fenced = false;
    // What was found wrong with it already, or nothing.
    errc problem = {};
    std::uint32_t immediate = 0;
    // What the peer is to lose for send_with_invalidate, the remote region's key else.
    remote_key remote;
    std::uint64_t remote_address = 0;
    // Empty for an atomic whose result goes to the connection's own memory.
    local_slices local;
    std::uint64_t operand = 0;  // fetch_add: what to add; compare_swap: what to compare with
    std::uint64_t swap = 0;
};

/// How far an operation has been posted: one that is longer than the device's messages, or gathers from more slices than
/// the device does at once, goes out in pieces.
struct progress_mark {
    std::size_t request_index = 0;
    // Within the request:
    std::size_t slice_index = 0;
    std::size_t slice_offset = 0;
    std::uint64_t size_bytes = 0;
};

/// One operation and the handler that waits for it.
class operation {
public:
    /// Room for a handler in place. Awaitable handlers of Boost 1.81 and callbacks with a few captures fit; a larger
    /// one is kept in memory of its associated allocator.
    static constexpr std::size_t handler_bytes_max = 192;

    // A slot that nobody associates with anything: a handler that takes it for its own has none.
    struct no_slot {};
    template <class Handler>
    static constexpr bool has_cancellation_slot =
        !std::is_same_v<boost::asio::associated_cancellation_slot_t<Handler, no_slot>, no_slot>;

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

    /// Calls the handler and leaves none: at once if `io` is its executor, else as dispatch does on the executor it has. The
    /// place is free when this returns. REQUIRES: a handler is in place; this thread runs `io`.
    void complete(boost::asio::any_io_executor const& io) {
        std::exchange(actions_, nullptr)->complete(*this, io);
    }

    /// Destroys the handler, if any, without calling it.
    void drop() noexcept {
        if (actions_ != nullptr) std::exchange(actions_, nullptr)->drop(*this);
    }

    /// Makes a free operation ready for its next use.
    void begin_use() noexcept {
        if (code.failed()) code.clear();
        is_posted = false;
        is_cancelled = false;
        is_done = false;
        ++use;
    }

    /// True if a handler is in place.
    bool is_pending() const noexcept { return actions_ != nullptr; }

    /// What is to be done: one request, or the batch. Those that make one work request know it.
    std::span<request const> requests() const noexcept {
        return is_single || batch.empty() ? std::span{&what, 1} : batch;
    }

    // Of plain work only the kind: its work request is built at once.
    request what;
    std::span<request const> batch;
    std::size_t size_bytes = 0;
    error_code code;
    outcome result;
    progress_mark posted;
    // Work requests that are still to be posted, and how many of them read. (`posted` counts for one that is not single.)
    std::size_t pieces_left = 0;
    std::size_t reads_left = 0;
    // Counts uses, so that a late cancellation does not hit the next use of the same place.
    std::uint32_t use = 0;
    bool is_single = false;
    bool is_posted = false;
    bool is_cancelled = false;
    // On its way to its handler: too late for a cancellation.
    bool is_done = false;
    operation* next = nullptr;

private:
    // Where a handler is at home, and what keeps that place running while it waits. The operation's own executor needs no
    // keeping: the connection sees to it.

    // At the operation's executor, having none of its own.
    struct no_home {
        template <class Handler>
        no_home(Handler const&, boost::asio::any_io_executor const&) noexcept {}
        bool is(boost::asio::any_io_executor const&) const noexcept { return true; }
    };

    // At an executor of any type, which may be the operation's: a coroutine's. That one is not kept, since copies of it cost.
    struct erased_home {
        boost::asio::any_io_executor work;

        template <class Handler>
        erased_home(Handler const& handler, boost::asio::any_io_executor const& io) {
            auto&& own = boost::asio::get_associated_executor(handler, io);
            if (own == io) return;
            work = boost::asio::prefer(own, boost::asio::execution::outstanding_work.tracked);
        }
        bool is(boost::asio::any_io_executor const&) const noexcept { return !work; }
        boost::asio::any_io_executor const& executor() const noexcept { return work; }
    };

    template <class Executor>
    struct own_home {
        boost::asio::executor_work_guard<Executor> work;

        template <class Handler>
        own_home(Handler const& handler, boost::asio::any_io_executor const& io)
            : work{boost::asio::get_associated_executor(handler, io)} {}
        bool is(boost::asio::any_io_executor const&) const noexcept { return false; }
        Executor executor() const noexcept { return work.get_executor(); }
    };

    // Two executors that nobody associates with anything: a handler that takes either has none of its own.
    struct probe_a {};
    struct probe_b {};
    template <class Handler>
    static constexpr bool has_no_executor =
        std::is_same_v<boost::asio::associated_executor_t<Handler, probe_a>, probe_a> &&
        std::is_same_v<boost::asio::associated_executor_t<Handler, probe_b>, probe_b>;

    template <class Handler, class Executor = boost::asio::associated_executor_t<Handler, boost::asio::any_io_executor>>
    using home_of = std::conditional_t<
        has_no_executor<Handler>,
        no_home,
        std::conditional_t<std::is_same_v<Executor, boost::asio::any_io_executor>, erased_home, own_home<Executor>>>;

    template <class Handler, class Result>
    struct holder_for {
        Handler handler;
        [[no_unique_address]] home_of<Handler> at;

        template <class H>
        holder_for(H&& h, boost::asio::any_io_executor const& io) : handler{std::forward<H>(h)}, at{handler, io} {}

        void call(operation& op, boost::asio::any_io_executor const& io) {
            if (at.is(io)) {
                if constexpr (has_cancellation_slot<Handler>) {
                    boost::asio::get_associated_cancellation_slot(handler).clear();
                }
                std::move(handler)(op.code, Result{}(op.result));
            } else if constexpr (!has_no_executor<Handler>) {
                using value_type = decltype(Result{}(op.result));
                boost::asio::dispatch(at.executor(), bound<value_type>{std::move(handler), op.code, Result{}(op.result)});
            }
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
        void (*complete)(operation&, boost::asio::any_io_executor const&);
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
        [](operation& op, boost::asio::any_io_executor const& io) {
            // Called where it is, since moving it would cost more than calling it; gone when it returns, or throws.
            struct leaving {
                Holder& holder;
                ~leaving() { std::destroy_at(&holder); }
            } const at_the_end{*in_place<Holder>(op)};
            at_the_end.holder.call(op, io);
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
        [](operation& op, boost::asio::any_io_executor const& io) {
            take_allocated<Holder>(op).call(op, io);
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
