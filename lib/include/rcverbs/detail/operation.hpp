// operation.hpp — the storage of one data-path operation, its handler included, which is used again.
//
// A connection allocates operations as it needs them and reuses them. Otherwise starting and completing an
// operation allocates nothing as long as its handler fits operation::handler_bytes_max. Internal;
// guarded by the lock of the owner.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/execution_context.hpp>
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

#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/parcel.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/memory_lease.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/receive_result.hpp>

namespace rcverbs::detail {

/// The kind of an operation; it determines the work request's opcode. Their order has no meaning:
/// verbs/work_request.hpp has what they have in common.
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
    // Of a memory window.
    bind_window,
    invalidate_window,
    // Not a kind: their number.
    count
};

inline constexpr std::size_t operation_kinds = static_cast<std::size_t>(operation_kind::count);

/// The memory of an operation that owns it. Of a receive also the way back to the connection for a
/// message that the handler does not take, because it is cancelled or destroyed before it runs.
struct owned_memory {
    memory_lease lease;
    return_path<receive_result, memory_lease> back;
    bool const* is_cancelled = nullptr;  // of assign_noted()
};

/// The result of an operation; its kind determines which member is valid.
struct outcome {
    std::size_t bytes = 0;
    receive_result arrival;
    std::uint64_t word = 0;
    // The memory that the operation owned, for its handler; null for one that owned none.
    owned_memory* memory = nullptr;
};

/// A result, and the memory that the operation owned.
template <class Value>
struct with_memory {
    Value value;
    memory_lease memory;
};

/// A message in memory of its own, on its way to a handler; goes back if that does not take it.
struct arriving_message {
    receive_result result;
    owned_memory memory;

    arriving_message(receive_result const& what, owned_memory&& owned) noexcept
        : result{what},
          memory{std::move(owned)} {}
    arriving_message(arriving_message&&) = default;
    ~arriving_message() { give_back(); }

    bool is_cancelled() const noexcept {
        return memory.is_cancelled != nullptr && *memory.is_cancelled;
    }
    void give_back() noexcept {
        if (memory.back.owner != nullptr)
            memory.back(receive_result{result}, std::move(memory.lease));
    }
    leased_receive_result take() noexcept {
        memory.back.owner.reset();
        return {result, std::move(memory.lease)};
    }
};

/// Calls a handler with its arguments.
template <class Handler, class Value>
void call(Handler& handler, error_code const& code, Value&& value) {
    std::move(handler)(code, std::forward<Value>(value));
}
template <class Handler, class Value>
void call(Handler& handler, error_code const& code, with_memory<Value>&& both) {
    std::move(handler)(code, both.value, std::move(both.memory));
}
template <class Handler>
void call(Handler& handler, error_code const& code, arriving_message&& message) {
    if (!message.is_cancelled()) return std::move(handler)(code, message.take());
    message.give_back();
    std::move(handler)(error_code{boost::asio::error::operation_aborted}, leased_receive_result{});
}

/// The parameters of an operation: filled in by the initiating function, read when the work
/// requests are built.
struct work_request {
    work_request() noexcept = default;
    // A constructor, since an aggregate's initialisation clears the unused slices, too.
    work_request(operation_kind k, slice_list const& slices) noexcept : kind{k}, local{slices} {}

    operation_kind kind = operation_kind::send;
    // Starts only when all earlier reads and atomics are complete.
    bool is_fenced = false;
    // An error that was found before the start; errc{} if there is none.
    errc problem = {};
    std::uint32_t immediate = 0;
    // For send_with_invalidate the key to invalidate, otherwise the remote region's key.
    remote_key remote;
    std::uint64_t remote_address = 0;
    // Empty for an atomic whose result is written to the connection's own memory.
    slice_list local;
    // fetch_add: the value to add; compare_swap: the value to compare; bind_window and
    // invalidate_window: the address of the window.
    std::uint64_t operand = 0;
    std::uint64_t swap = 0;
};

/// How far an operation has been posted. An operation that exceeds the device's message size or its
/// segments per work request is posted in pieces.
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
    /// Room for a handler in place. Awaitable handlers of Boost 1.81 and callbacks with a few
    /// captures fit; a larger one is kept in memory of its associated allocator.
    static constexpr std::size_t handler_bytes_max = 192;

    // A default candidate: a handler with this associated cancellation slot has none of its own.
    struct no_slot {};
    template <class Handler>
    static constexpr bool has_cancellation_slot =
        !std::is_same_v<boost::asio::associated_cancellation_slot_t<Handler, no_slot>, no_slot>;

    // Two default candidates: if each is returned as the associated executor, the handler has none
    // of its own.
    struct probe_a {};
    struct probe_b {};
    template <class Handler>
    static constexpr bool has_no_executor =
        std::is_same_v<boost::asio::associated_executor_t<Handler, probe_a>, probe_a>&&
            std::is_same_v<boost::asio::associated_executor_t<Handler, probe_b>, probe_b>;

    operation() = default;
    operation(operation const&) = delete;
    operation& operator=(operation const&) = delete;
    ~operation() { drop(); }

    /// Stores a handler. `Result` converts the outcome to the handler's arguments, `io` is the
    /// executor of the connection. REQUIRES: no handler is stored.
    template <class Result, class Handler>
    void emplace(Handler&& handler, boost::asio::any_io_executor const& io) {
        using holder = holder_for<std::decay_t<Handler>, Result>;
        if constexpr (sizeof(holder) <= handler_bytes_max && alignof(holder) <= alignof(std::max_align_t)) {
            ::new (static_cast<void*>(storage_.data()))
                holder{std::forward<Handler>(handler), io, *this};
            actions_ = &in_place_actions<holder>;
        } else {
            auto allocator = rebound<holder>(handler);
            using traits = std::allocator_traits<decltype(allocator)>;
            holder* place = traits::allocate(allocator, 1);
            try {
                ::new (static_cast<void*>(place)) holder{std::forward<Handler>(handler), io, *this};
            } catch (...) {
                traits::deallocate(allocator, place, 1);
                throw;
            }
            ::new (static_cast<void*>(storage_.data())) holder* {place};
            actions_ = &allocated_actions<holder>;
        }
    }

    /// Calls the handler if it runs on the connection's executor, otherwise adds it to `outgoing`
    /// for its own executor; no handler remains. REQUIRES: a handler is stored; this thread runs
    /// the executor that was passed to emplace().
    void complete(outgoing_parcels& outgoing) {
        std::exchange(actions_, nullptr)->complete(*this, outgoing);
    }

    /// Destroys the handler, if any, without calling it.
    void drop() noexcept {
        if (actions_ != nullptr) std::exchange(actions_, nullptr)->drop(*this);
    }

    /// placing: its handler is being stored, without the owner's lock. done: its handler is about to
    /// be called. A cancellation has an effect between the two only.
    enum class stage : std::uint8_t { placing, started, done };

    /// Makes a free operation ready for its next use.
    void begin_use() noexcept {
        if (code.failed()) code.clear();
        // Together one store.
        is_single = true;
        is_posted = false;
        is_cancelled = false;
        stage = stage::placing;
        ++use;
    }

    /// True if a handler is stored.
    bool is_pending() const noexcept { return actions_ != nullptr; }

    /// The requests of the operation: one, or the batch.
    std::span<work_request const> requests() const noexcept {
        return is_single || batch.empty() ? std::span{&what, 1} : batch;
    }

    // For a plain operation only the kind is set, because its work request is built at once.
    work_request what;
    std::span<work_request const> batch;
    error_code code;
    outcome result;
    progress_mark posted;
    // Work requests that are still to be posted, and how many of them count as reads. (`posted` is
    // used only if `is_single` is false.)
    std::size_t pieces_left = 0;
    std::size_t reads_left = 0;
    // Counts uses, so that a late cancellation does not affect the next use of this object.
    std::uint32_t use = 0;
    // One request that is posted as one work request.
    bool is_single = true;
    bool is_posted = false;
    bool is_cancelled = false;
    enum stage stage = stage::done;
    operation* next = nullptr;
    // The context of the handler's executor; null if that is the connection's executor. Set only for
    // a handler that has an executor of its own.
    boost::asio::execution_context* host = nullptr;

private:
    // The handler's associated executor and its work guard. The connection's executor needs no
    // guard here, because the connection holds one.

    // For a handler without an executor of its own, which runs on the connection's executor.
    struct no_guard {
        template <class Handler>
        no_guard(Handler const&, boost::asio::any_io_executor const&, operation&) noexcept {}
        bool is_foreign() const noexcept { return false; }
    };

    // For a handler with a type-erased executor. If it equals the connection's executor, it is not
    // stored, because copies are expensive.
    struct erased_guard {
        boost::asio::any_io_executor work;

        template <class Handler>
        erased_guard(
            Handler const& handler, boost::asio::any_io_executor const& io, operation& op
        ) {
            boost::asio::any_io_executor const& own =
                boost::asio::get_associated_executor(handler, io);
            op.host = nullptr;
            if (own == io) return;
            work = boost::asio::prefer(own, boost::asio::execution::outstanding_work.tracked);
            op.host = context_of(own);
        }
        bool is_foreign() const noexcept { return static_cast<bool>(work); }
        boost::asio::any_io_executor const& executor() const noexcept { return work; }
    };

    template <class Executor>
    struct typed_guard {
        std::optional<boost::asio::executor_work_guard<Executor>> work;

        template <class Handler>
        typed_guard(Handler const& handler, boost::asio::any_io_executor const& io, operation& op) {
            auto&& own = boost::asio::get_associated_executor(handler, io);
            auto const* const same = io.template target<Executor>();
            op.host = nullptr;
            if (same != nullptr && *same == own) return;
            work.emplace(own);
            op.host = context_of(own);
        }
        bool is_foreign() const noexcept { return work.has_value(); }
        Executor executor() const noexcept { return work->get_executor(); }
    };

    template <
        class Handler,
        class Executor = boost::asio::associated_executor_t<Handler, boost::asio::any_io_executor>>
    using guard_for = std::conditional_t<
        has_no_executor<Handler>,
        no_guard,
        std::conditional_t<
            std::is_base_of_v<boost::asio::any_io_executor, Executor>,
            erased_guard,
            typed_guard<Executor>>>;

    template <class Handler, class Result>
    struct holder_for {
        Handler handler;
        [[no_unique_address]] guard_for<Handler> guard;

        template <class H>
        holder_for(H&& h, boost::asio::any_io_executor const& io, operation& op)
            : handler{std::forward<H>(h)},
              guard{handler, io, op} {}

        void call(operation& op, outgoing_parcels& outgoing) {
            if (!guard.is_foreign()) {
                if constexpr (std::is_void_v<decltype(Result{}(op.result))>) {
                    std::move(handler)(op.code);
                } else {
                    detail::call(handler, op.code, Result{}(op.result));
                }
            } else if constexpr (!has_no_executor<Handler>) {
                using value_type = decltype(Result{}(op.result));
                if constexpr (std::is_void_v<value_type>) {
                    outgoing.add(guard.executor(), bound_code{std::move(handler), op.code});
                } else {
                    outgoing.add(
                        guard.executor(),
                        bound<value_type>{std::move(handler), op.code, Result{}(op.result)}
                    );
                }
            }
        }

        // The handler with its arguments.
        template <class Value>
        struct bound {
            Handler handler;
            error_code code;
            std::remove_const_t<Value> value;
            void operator()() { detail::call(handler, code, std::move(value)); }
        };
        // The same for an operation without a result.
        struct bound_code {
            Handler handler;
            error_code code;
            void operator()() { std::move(handler)(code); }
        };
    };

    struct actions {
        void (*complete)(operation&, outgoing_parcels&);
        void (*drop)(operation&) noexcept;
    };

    template <class Holder, class Handler>
    static auto rebound(Handler const& handler) {
        auto allocator = boost::asio::get_associated_allocator(handler);
        return typename std::allocator_traits<decltype(allocator)>::template rebind_alloc<Holder>{
            allocator};
    }

    template <class Holder>
    static Holder* in_place(operation& op) noexcept {
        return std::launder(reinterpret_cast<Holder*>(op.storage_.data())
        );  // where emplace constructed it
    }

    template <class Holder>
    static inline constexpr actions in_place_actions{
        [](operation& op, outgoing_parcels& outgoing) {
            // Called in place, because moving the handler would cost more than the call; destroyed
            // when it returns or throws.
            struct cleanup {
                Holder& holder;
                ~cleanup() { std::destroy_at(&holder); }
            } const on_return{*in_place<Holder>(op)};
            on_return.holder.call(op, outgoing);
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
        [](operation& op, outgoing_parcels& outgoing) {
            take_allocated<Holder>(op).call(op, outgoing);
        },
        [](operation& op) noexcept { take_allocated<Holder>(op); }};

    alignas(std::max_align_t) std::array<std::byte, handler_bytes_max> storage_;
    actions const* actions_ = nullptr;
};

/// Converts the outcome to the handler's argument, by kind of operation.
struct bytes_result {
    std::size_t operator()(outcome const& o) const noexcept { return o.bytes; }
};
struct arrival_result {
    receive_result operator()(outcome const& o) const noexcept { return o.arrival; }
};
struct no_result {
    void operator()(outcome const&) const noexcept {}
};
struct word_result {
    std::uint64_t operator()(outcome const& o) const noexcept { return o.word; }
};
/// The same for an operation that owned its memory.
template <class Reader>
struct result_with_memory {
    auto operator()(outcome const& o) const noexcept {
        return with_memory<decltype(Reader{}(o))>{Reader{}(o), std::move(o.memory->lease)};
    }
};
template <>
struct result_with_memory<arrival_result> {
    arriving_message operator()(outcome const& o) const noexcept {
        return {o.arrival, std::move(*o.memory)};
    }
};

}  // namespace rcverbs::detail
