// protocol.hpp — what a protocol on top of a connection is made with. Experimental: it may change.
//
//     class echo final : public protocol::driver {
//     public:
//         explicit echo(connection over) : driver{std::move(over)} {}
//         void ask(protocol::waiter<error_code, std::uint64_t> who) { waiting_.add(std::move(who)); }
//     private:
//         void on_end(failure const& why) override { waiting_.fail_all(why.code); }  // never empty
//         protocol::wait_list<error_code, std::uint64_t> waiting_{*this};
//     };
//     auto core = protocol::make<echo>(connection{io});
//     std::uint64_t answer = co_await protocol::initiate<error_code, std::uint64_t>(
//         core, [](echo& e, auto who) { e.ask(std::move(who)); }, use_awaitable);
//
// A driver has the state of a protocol. All its functions run in the order of its connection: with
// the handlers of the connection's operations, one at a time, so that the state needs no lock. The
// kit has what every protocol needs beside its own messages: the order, handlers that wait, the end
// of the connection (also while nothing is posted), violations, deadlines, and memory for the peer.
// apps/examples/own_protocol.cpp is a protocol made with it; sessions are, too.
//
// A driver whose operations are to begin on the calling thread, not behind what its executor does, has
// its state used by enter() and enter_in_order() only, and gives results out in deliver_one():
//
//     void put(item what) { enter([this](item& i) { items_.push_back(i); }, std::move(what)); }
//     bool is_delivery_due() noexcept override { return !items_.empty() && !takers_.empty(); }
//     bool deliver_one() override {
//         auto [who, item] = take_first();  // of both
//         leave();
//         who(item);
//         return true;
//     }
//
// Handlers that wait are destroyed uncalled with their execution context, as in Asio. Any thread may
// start operations with initiate().
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution/blocking.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/execution_context.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/detail/order_task.hpp>
#include <rcverbs/detail/wait_list.hpp>
#include <rcverbs/detail/waiting_handler.hpp>
#include <rcverbs/experimental/protocol/handle.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/remote_region.hpp>
#include <rcverbs/slice.hpp>

namespace rcverbs::protocol {

class driver;

/// An executor that runs functions in the order of a driver, in the order in which they are handed
/// to it, never from inside that call. For handlers of the layer below: see driver::ordered().
///
/// Holds the driver. Does not count as work of its context.
class order_executor {
public:
    explicit order_executor(std::shared_ptr<driver> owner) noexcept : driver_{std::move(owner)} {}

    /// Runs the function later; it is destroyed uncalled with the context.
    template <class Function>
    void execute(Function function) const;
    RCVERBS_EXPORT boost::asio::execution_context& query(boost::asio::execution::context_t
    ) const noexcept;
    static constexpr boost::asio::execution::blocking_t query(boost::asio::execution::blocking_t
    ) noexcept {
        return boost::asio::execution::blocking.never;
    }
    friend bool operator==(order_executor const&, order_executor const&) noexcept = default;

private:
    std::shared_ptr<driver> driver_;
};

/// What a driver drops when its execution context is destroyed. For the kit's own use.
class RCVERBS_EXPORT part {
public:
    part(part const&) = delete;
    part& operator=(part const&) = delete;

protected:
    explicit part(driver& owner);
    ~part();
    /// The driver. REQUIRES: it is not being destroyed.
    std::shared_ptr<driver> owner() const;
    /// Posts a function to the driver's order.
    void post(hosting::order_task& what) const;
    static void post(driver const& to, hosting::order_task& what);
    /// The code that on_end() gets; empty until it is called. In the driver's order.
    error_code end_code() const noexcept;

private:
    friend class driver;
    virtual void abandon() noexcept = 0;

    driver& owner_;
    part* next_ = nullptr;
};

/// The handler of an operation, with the outstanding work of its executor; called with Arguments.
///
/// Calling it dispatches the handler to its executor. One that is destroyed is never called.
template <class... Arguments>
using waiter = detail::waiting_handler<Arguments...>;

/// The state of a protocol on a connection; a base class. Made by make().
class RCVERBS_EXPORT driver : public std::enable_shared_from_this<driver> {
public:
    driver(driver const&) = delete;
    driver& operator=(driver const&) = delete;

    /// The connection's executor. Empty once its context is destroyed.
    boost::asio::any_io_executor executor() const;
    /// Ends the connection at once, as connection::close(). The driver exists until on_end() has
    /// returned, so the destructor of a handle calls this. Any thread, any state.
    void close() noexcept;
    /// Why the protocol ended: its own failure, otherwise the connection's. Any thread.
    failure last_failure() const;

protected:
    /// Takes an idle connection, or one of a peer's request.
    ///
    /// @throws boost::system::system_error (errc::not_connected) for a default-constructed one.
    explicit driver(connection over);
    /// Takes part in the connection of another protocol, for a layer above it: has the same order, and
    /// hears the same end. The layer keeps the handle below, and closes with it.
    ///
    /// @param below  Any handle that has next_layer(), or a reference to one.
    /// @throws as above.
    template <class Below>
    requires requires(Below& b) { b.next_layer(); }
    explicit driver(Below& below) : driver{detail::another(detail::connection_of(below))} {}
    virtual ~driver();

    /// The connection. Its handlers without an executor of their own run in the driver's order,
    /// those of data operations directly: pass them through held(), and those of connecting,
    /// disconnecting and waiting through ordered().
    connection& lower() noexcept;
    /// As above.
    connection const& lower() const noexcept;
    /// Keeps places in the queues for this protocol's sends and receives, so that a program that fills them
    /// with operations of its own, which are then refused with errc::queue_full, does not have the
    /// protocol's refused. Once the queue pair is made.
    ///
    /// @param count  Sends and receives that the protocol has outstanding at a time, at most as many as the
    ///               connection's options allow.
    void keep_for_messages(std::size_t count) noexcept;

    /// True if the queue pair could not be destroyed, as errc::not_drained says: the device may still
    /// use the memory of what was posted. Any thread.
    bool is_undrained() const noexcept;
    /// Keeps memory until the process ends if is_undrained(). The destructor of a driver calls it for
    /// the memory that it has posted.
    void keep_if_undrained(registered_buffer& memory);

    /// Runs a function in the driver's order, never from inside this call. Any thread. The function
    /// is destroyed uncalled with the context.
    template <class Function>
    void in_order(Function function) {
        post(*new hosting::owned_task<Function>{std::move(function)});
    }
    /// Runs `function(state...)` as the only one that uses the driver's state: now, if no other such
    /// function runs; else when that one has returned, on its thread. Any thread, but the function runs
    /// before those of later calls. It does not wait, and calls no handler of a program's.
    ///
    /// @param function  A function object. What it throws when it runs now is thrown by this call, else
    ///                  it closes the connection.
    /// @param state     Its arguments, lvalues there; moved from if it runs later. The cancellations of a
    ///                  waiter among them are kept then: see waiter::on_cancelled().
    template <class Function, class... State>
    void enter(Function function, State&&... state) {
        if (!try_enter())
            return enter_later(keep(std::move(function), std::forward<State>(state)...));
        struct inside {
            driver& of;
            ~inside() { of.leave(); }
        } const now{*this};
        function(state...);
    }
    /// The same in the driver's order, which may be on the calling thread; calls deliver_one() then,
    /// as long as something is due.
    template <class Function, class... State>
    void enter_in_order(Function function, State&&... state) {
        if (!try_enter())
            return enter_later(keep(std::move(function), std::forward<State>(state)...));
        struct inside {
            driver& of;
            bool is_done = false;
            ~inside() {
                if (!is_done) of.leave();
            }
        } now{*this};
        function(state...);
        now.is_done = true;
        leave_and_deliver();
    }
    /// Ends the use of the state. For deliver_one(), before it calls a handler.
    void leave() noexcept;

    /// A handler that runs `function` with its arguments in the driver's order, and holds the driver
    /// until that has returned. Handlers of one layer below run in the order in which it calls them.
    template <class Function>
    auto ordered(Function function) {
        return boost::asio::bind_executor(order_executor{shared_from_this()}, std::move(function));
    }
    /// A handler of a data operation of lower() that runs `function` with its arguments, and holds the
    /// driver until that has returned. It runs in the driver's order, at no cost beside the call.
    template <class Function>
    auto held(Function function) {
        return [self = shared_from_this(), f = std::move(function)](auto&&... arguments) mutable {
            f(std::forward<decltype(arguments)>(arguments)...);
        };
    }

    /// Ends the connection because the protocol has failed. Only the first call records its
    /// arguments.
    ///
    /// @param where   The step that failed.
    /// @param why     The error.
    /// @param reason  close_reason::protocol_error: the peer is to blame, and the acceptor counts a
    ///                violation of its address. close_reason::open: as the connection has ended.
    /// @return `why`.
    error_code fail(step where, error_code why, close_reason reason) noexcept;
    /// Records that both sides have finished: last_failure() then has close_reason::completed and no
    /// code. Without effect after fail(); then false.
    bool complete() noexcept;

private:
    template <class Driver, class... Arguments>
    friend std::shared_ptr<Driver> make(Arguments&&... arguments);
    template <class... Arguments, class Driver, class Start, class Token>
    friend auto initiate(std::shared_ptr<Driver> const& on, Start start, Token&& token);
    friend class part;
    friend class order_executor;
    class impl;

    // A function that was handed to the thread that is inside.
    class entered : public hosting::order_task {
    public:
        explicit entered(std::shared_ptr<driver> of) noexcept : driver_{std::move(of)} {}
        void run(bool is_wanted) final;

    protected:
        ~entered() = default;

    private:
        // The first runs it, both destroy it.
        virtual void call() = 0;
        virtual void destroy() noexcept = 0;

        std::shared_ptr<driver> driver_;
    };
    template <class Function>
    class entered_function final : public entered, public detail::recycled {
    public:
        entered_function(std::shared_ptr<driver> of, Function&& f)
            : entered{std::move(of)},
              function_{std::move(f)} {}

    private:
        void call() override { function_(); }
        void destroy() noexcept override { delete this; }

        Function function_;
    };
    template <class Function, class... State>
    entered& keep(Function&& function, State&&... state) {
        (
            [&] {
                if constexpr (requires { state.keep_early_cancellation(); })
                    state.keep_early_cancellation();
            }(),
            ...
        );
        auto all = [f = std::forward<Function>(function),
                    ... s = std::forward<State>(state)]() mutable { f(s...); };
        return *new entered_function<decltype(all)>{shared_from_this(), std::move(all)};
    }

    /// The connection has ended, and everything posted has completed. Called once, in the driver's
    /// order, also if nothing was posted, or if close() was called and nothing else refers to the
    /// driver any more.
    ///
    /// @param why  As last_failure(), but with a code in any case: asio::error::operation_aborted
    ///             after close(), asio::error::eof after complete(), errc::peer_disconnected if the
    ///             peer has left.
    virtual void on_end(failure const& why) = 0;
    /// True if there is a result that deliver_one() would give out. Called inside enter(), whenever the
    /// state was used.
    virtual bool is_delivery_due() noexcept { return false; }
    /// Takes a result from the driver's state; calls leave() and then the handler of the result, which
    /// may throw. Called in the driver's order, inside enter().
    ///
    /// @return False if it has not called leave(), because there was none.
    virtual bool deliver_one() { return false; }
    /// There is nothing more to give out for now; inside enter().
    virtual void on_delivered() {}
    /// The execution context is being destroyed; the handlers in wait lists have been destroyed.
    /// Releases what else belongs to the context, and calls nothing.
    virtual void on_abandoned() noexcept {}

    bool try_enter() noexcept;
    void enter_later(entered& what) noexcept;
    void leave_and_deliver();
    void post_delivery() noexcept;
    void deliver_later() noexcept;
    void deliver();
    void go_on_delivering();

    boost::asio::execution_context& context() const noexcept;
    void attach();
    void end();
    void keep_until_end() noexcept;
    void abandon() noexcept;
    void post(hosting::order_task& what) const;

    std::shared_ptr<impl> impl_;
};

template <class Function>
void order_executor::execute(Function function) const {
    driver_->in_order(std::move(function));
}

/// Makes a driver of a class derived from it.
template <class Driver, class... Arguments>
std::shared_ptr<Driver> make(Arguments&&... arguments) {
    auto made = std::make_shared<Driver>(std::forward<Arguments>(arguments)...);
    static_cast<driver&>(*made).attach();
    return made;
}

/// Starts an operation of a driver for a completion token, with the completion signature
/// `void(Arguments...)`. For the function of a handle.
///
/// @param on     The driver.
/// @param start  `start(Driver&, waiter<Arguments...>)`; runs in the driver's order.
/// @param token  Completion token.
template <class... Arguments, class Driver, class Start, class Token>
auto initiate(std::shared_ptr<Driver> const& on, Start start, Token&& token) {
    return detail::initiate_checked<Token, void(Arguments...)>(
        detail::initiation{
            on->executor(),
            [](auto handler, std::shared_ptr<Driver> const& d, Start begin) {
                auto const io = d->executor();
                if (!io) return;  // the handler goes with its context
                waiter<Arguments...> who{
                    detail::erased_handler<Arguments...>{std::move(handler)}, io};
                who.keep_early_cancellation();
                d->in_order([d, begin = std::move(begin), who = std::move(who)]() mutable {
                    begin(*d, std::move(who));
                });
            }},
        token,
        on,
        std::move(start)
    );
}

/// The handlers that wait for one thing, first in, first out. A member of a driver; used in its
/// order only. Handlers that are added after the driver's end are completed at once, see add().
template <class... Arguments>
class wait_list final : private part {
public:
    using taker_back = std::function<void(std::uint64_t number, Arguments...)>;

    explicit wait_list(driver& owner) : part{owner} {}
    /// @param owner         The driver.
    /// @param on_cancelled  Called when a cancellation has removed a handler: the next one may go on.
    wait_list(driver& owner, std::function<void()> on_cancelled)
        : part{owner},
          on_cancelled_{std::move(on_cancelled)} {}
    /// For results that are taken from somewhere, as a message from a queue: see hand_over_first().
    ///
    /// @param owner      The driver.
    /// @param take_back  Gets a result that no handler has taken, in the driver's order; it goes to
    ///                   the place that its number says.
    wait_list(driver& owner, taker_back take_back)
        : part{owner},
          take_back_{std::move(take_back)} {}
    ~wait_list() = default;

    bool empty() const noexcept { return all_.empty(); }
    std::size_t size() const noexcept { return all_.size(); }

    /// Adds a handler behind the others, and returns its number: 1, 2 … A cancellation of any type
    /// removes it and completes it with operation_aborted and default values.
    ///
    /// Once on_end() has been called nothing waits any more: the handler is completed with the error
    /// that on_end() has given to fail_all(), else with its own argument's, and default values; then
    /// this returns 0. A driver that can complete handlers after the end does so without this list.
    std::uint64_t add(waiter<Arguments...> who) {
        if (error_code const ended = end_code()) {
            fail(who, ended_with_ ? ended_with_ : ended);
            return 0;
        }
        std::shared_ptr<wait_list> const self{owner(), this};
        return all_.add(std::move(who), std::weak_ptr{self}, &wait_list::cancel);
    }
    /// True if the handler of this number waits: a cancelled one does not.
    bool contains(std::uint64_t number) const noexcept { return all_.contains(number); }
    /// Completes the handler of this number; false if it does not wait any more.
    bool complete(std::uint64_t number, Arguments... arguments) {
        auto one = all_.take(number);
        if (one.empty() || !one.front().handler) return false;
        one.front().handler(std::move(arguments)...);
        return true;
    }
    /// Completes the handler that has waited longest; false if there is none.
    bool complete_first(Arguments... arguments) {
        auto first = all_.take_first();
        // A handler whose own context is gone does not count.
        while (!first.empty() && !first.front().handler) first = all_.take_first();
        if (first.empty()) return false;
        first.front().handler(std::move(arguments)...);
        return true;
    }
    /// Gives a result to the handler that has waited longest; false if there is none. The result goes
    /// back (`take_back` of the constructor) if no handler takes it: one that is cancelled before it
    /// runs gets operation_aborted instead, also when it runs on another thread; one may be destroyed
    /// uncalled. So what is taken from a queue for a handler is not lost with it.
    ///
    /// @param number     The driver's number of the result, for its place among others.
    /// @param arguments  The result.
    bool hand_over_first(std::uint64_t number, Arguments... arguments) {
        auto first = all_.take_first();
        while (!first.empty() && !first.front().handler) first = all_.take_first();
        if (first.empty()) {
            take_back_(number, std::move(arguments)...);
            return false;
        }
        hand_over(std::move(first.front().handler), number, std::move(arguments)...);
        return true;
    }
    /// The same for a handler that does not wait, because the result was there.
    void hand_over(waiter<Arguments...> who, std::uint64_t number, Arguments... arguments) {
        who.hand_over(
            {std::shared_ptr<wait_list>{owner(), this}, &wait_list::post_back, number},
            std::move(arguments)...
        );
    }
    /// Completes all handlers with the same arguments.
    void complete_all(Arguments const&... arguments) {
        for (auto& one : all_.take_all()) {
            if (one.handler) one.handler(Arguments{arguments}...);
        }
    }
    /// Completes all handlers with an error and default values; in on_end() and after it also those
    /// that are added later.
    ///
    /// @param why  The error; for an empty one they get asio::error::operation_aborted.
    void fail_all(error_code why) {
        if (!why) why = boost::asio::error::operation_aborted;
        if (end_code()) ended_with_ = why;
        for (auto& one : all_.take_all()) fail(one.handler, why);
    }

private:
    using list = detail::wait_list<waiter<Arguments...>>;

    static void fail(waiter<Arguments...>& who, error_code why) {
        if (!who) return;
        [&]<class First, class... Rest>(std::type_identity<First>, std::type_identity<Rest>...) {
            who(why, Rest{}...);
        }(std::type_identity<Arguments>{}...);
    }
    // Any thread.
    static void post_back(void* list, std::uint64_t number, Arguments&&... arguments) noexcept {
        auto& to = *static_cast<wait_list*>(list);
        auto const driver = to.owner();
        try {
            auto take = [&to, driver, number, ... all = std::move(arguments)]() mutable {
                to.take_back_(number, std::move(all)...);
            };
            to.post(*new hosting::owned_task<decltype(take)>{std::move(take)});
        } catch (...) {
            // Without memory the result would be lost unnoticed.
            driver->close();
        }
    }
    // Any thread.
    void cancel(std::uint64_t serial) {
        auto take = [self = std::shared_ptr<wait_list>{owner(), this}, serial] {
            auto one = self->all_.take(serial);
            if (one.empty()) return;
            fail(one.front().handler, boost::asio::error::operation_aborted);
            if (self->on_cancelled_) self->on_cancelled_();
        };
        post(*new hosting::owned_task<decltype(take)>{std::move(take)});
    }
    void abandon() noexcept override { static_cast<void>(all_.take_all()); }

    list all_;
    error_code ended_with_;  // of fail_all(), once the driver has ended
    std::function<void()> on_cancelled_;
    taker_back take_back_;
};

/// A time by which something must have happened. A member of a driver, or of what a driver has; used by
/// any thread, and destroyed in the driver's order.
class RCVERBS_EXPORT deadline final : private part {
public:
    explicit deadline(driver& owner);
    ~deadline();

    /// Runs the function in the driver's order after this time, unless cancel() or start() is called
    /// before.
    void start(std::chrono::milliseconds after, std::function<void()> function);
    void cancel() noexcept;

private:
    struct state;

    void abandon() noexcept override;

    std::shared_ptr<state> state_;
};

/// The slice as a region for the peer of a connection, if it may use it so: the memory is registered
/// in the connection's domain, with that right.
///
/// @param what    Local memory.
/// @param rights  What the peer is to do: remote_read, remote_write or remote_atomic.
/// @param on      The connection.
/// @param ec      errc::region_gone, errc::foreign_domain or errc::access_denied; then the result is
///                empty.
RCVERBS_EXPORT remote_region
expose(const_slice const& what, access_flags rights, connection const& on, error_code& ec) noexcept;

}  // namespace rcverbs::protocol
