// actor.hpp — an object whose state one function at a time uses, on any thread, and what it has:
// functions that run in its order, handlers that wait, and the end of its context. Experimental: it may
// change.
//
//     class counter final : public protocol::actor {
//     public:
//         explicit counter(boost::asio::any_io_executor where) : actor{std::move(where)} {}
//         void add(unsigned n) { enter([this, n] { value_ += n; proceed(); }); }
//         void wait_for(unsigned n, protocol::waiter<error_code> who) { … }
//     };
//
// Where a lock would have a thread wait until another one is ready, an actor has the other one run the
// function. All functions that the kit calls (those given to enter(), in_order() and ordered(), of
// deadlines, and the virtual ones) run *inside*: no other one of this actor runs. Handlers of programs
// never do: deliver() and deliver_one() call them on the actor's executor, while nobody is inside.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution/blocking.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/execution_context.hpp>

#include <memory>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/detail/order_task.hpp>
#include <rcverbs/detail/waiting_handler.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs::protocol {

class actor;
class driver;

/// An executor that runs functions inside an actor, in the order in which they are handed to it, never
/// from inside that call. For handlers of the layer below: see actor::ordered().
///
/// Holds the actor. Does not count as work of its context.
class order_executor {
public:
    explicit order_executor(std::shared_ptr<actor> owner) noexcept : actor_{std::move(owner)} {}

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
    std::shared_ptr<actor> actor_;
};

/// What an actor drops when its execution context is destroyed. For the kit's own use.
class RCVERBS_EXPORT part {
public:
    part(part const&) = delete;
    part& operator=(part const&) = delete;

protected:
    explicit part(actor& owner);
    ~part();
    /// The actor. REQUIRES: it is not being destroyed.
    std::shared_ptr<actor> owner() const;
    /// As the functions of the actor.
    template <class Function>
    static void enter(actor& which, Function function);
    template <class Function>
    static void in_order(actor& which, Function function);
    /// actor::call_outside().
    template <class Function>
    void call_outside(Function function);
    /// The code that on_end() gets; empty until it is called. Used inside.
    error_code end_code() const noexcept;
    /// actor::give_up().
    static void give_up(actor& which) noexcept;

private:
    friend class actor;
    virtual void abandon() noexcept = 0;

    actor& owner_;
    part* next_ = nullptr;
};

/// The handler of an operation, with the outstanding work of its executor; called with Arguments.
///
/// Calling it dispatches the handler to its executor. One that is destroyed is never called.
template <class... Arguments>
using waiter = detail::waiting_handler<Arguments...>;

/// A base class. Made by make().
class RCVERBS_EXPORT actor : public std::enable_shared_from_this<actor> {
public:
    actor(actor const&) = delete;
    actor& operator=(actor const&) = delete;

    /// The executor that handlers run on by default. Empty once its context is destroyed.
    boost::asio::any_io_executor executor() const;

protected:
    /// The same without a copy of it; null once its context is destroyed.
    std::shared_ptr<boost::asio::any_io_executor const> present_executor() const;

    /// @param where  Runs the functions of in_order(), and the handlers.
    explicit actor(boost::asio::any_io_executor where);
    virtual ~actor();

    /// Runs `function(state...)` inside: now, if nobody is; else when the function that is inside has
    /// returned, on its thread. Any thread; it runs before those of later calls. It does not wait.
    ///
    /// @param function  A function object; destroyed uncalled if the context is gone. What it throws now is
    ///                  thrown by this call; later, give_up() is called.
    /// @param state     Its arguments, lvalues there; copied or moved if it runs later. Cancellations of
    ///                  the waiters among them are kept until they are connected.
    template <class Function, class... State>
    void enter(Function function, State&&... state) {
        if (!try_enter())
            return enter_later(keep(std::move(function), std::forward<State>(state)...));
        leaver const now{this};
        function(state...);
    }
    /// The same in the actor's order, where handlers may be called: those that are due are, before this
    /// returns.
    template <class Function, class... State>
    void enter_in_order(Function function, State&&... state) {
        if (!try_enter())
            return enter_later(keep(std::move(function), std::forward<State>(state)...));
        leaver now{this};
        function(state...);
        now.of = nullptr;
        leave_and_deliver();
    }
    /// Runs a function inside, in the actor's order, never from inside this call. Any thread. The
    /// function is destroyed uncalled with the context.
    template <class Function>
    void in_order(Function function) {
        post(keep(std::move(function)));
    }
    /// A handler that runs `function` with its arguments by in_order(), and holds the actor until that
    /// has returned. Handlers of one layer below run in the order in which it calls them.
    template <class Function>
    auto ordered(Function function) {
        return boost::asio::bind_executor(order_executor{shared_from_this()}, std::move(function));
    }

    /// Calls a handler as soon as nobody is inside, in the actor's order, behind those of earlier calls.
    /// REQUIRES: inside.
    ///
    /// @param who        The handler; if its own context is gone, nothing happens.
    /// @param arguments  Its arguments.
    template <class... Arguments>
    void deliver(waiter<Arguments...> who, std::type_identity_t<Arguments>... arguments) {
        call_outside([w = std::move(who), ... all = std::move(arguments)]() mutable {
            if (w) w.call_on_io(std::move(all)...);
        });
    }
    /// The same for a function of the program's, or one that calls a handler.
    template <class Function>
    void call_outside(Function function) {
        add_ready(*new hosting::owned_task<Function>{std::move(function)});
    }
    /// Ends being inside. For deliver_one(), before it calls a handler.
    void leave() noexcept;
    /// Calls publish_state(), for who reads it next; not if a function is inside at this moment. Any thread.
    void refresh() noexcept;

private:
    template <class Actor, class... Arguments>
    friend std::shared_ptr<Actor> make(Arguments&&... arguments);
    template <class... Arguments, class Actor, class Start, class Token>
    friend auto initiate(std::shared_ptr<Actor> const& on, Start start, Token&& token);
    friend class part;
    friend class order_executor;
    friend class driver;
    class impl;

    struct leaver {
        actor* of;
        ~leaver() {
            if (of != nullptr) of->leave();
        }
    };
    // A function that runs inside later.
    class RCVERBS_EXPORT task : public hosting::order_task {
    public:
        explicit task(std::shared_ptr<actor> of) noexcept : actor_{std::move(of)} {}
        void run(bool is_wanted) final;

    protected:
        ~task() = default;

    private:
        friend class actor;
        virtual void call() = 0;
        virtual void destroy() noexcept = 0;
        void call_inside() noexcept;

        std::shared_ptr<actor> actor_;
        bool is_posted_ = false;
    };
    template <class Function>
    class function_task final : public task, public detail::recycled {
    public:
        function_task(std::shared_ptr<actor> of, Function&& f)
            : task{std::move(of)},
              function_{std::move(f)} {}

    private:
        void call() override { function_(); }
        void destroy() noexcept override { delete this; }

        Function function_;
    };
    template <class Function, class... State>
    task& keep(Function&& function, State&&... state) {
        (
            [&] {
                if constexpr (requires { state.keep_early_cancellation(); })
                    state.keep_early_cancellation();
            }(),
            ...
        );
        auto all = [f = std::forward<Function>(function),
                    ... s = std::forward<State>(state)]() mutable { f(s...); };
        return *new function_task<decltype(all)>{shared_from_this(), std::move(all)};
    }

    /// True if there is a result that deliver_one() would give out. Called when the state was used.
    virtual bool is_delivery_due() noexcept { return false; }
    /// Stores what other threads may see of the state. Called when the state was used, but only once while
    /// handlers are called, and by refresh().
    virtual void publish_state() noexcept {}
    /// Takes a result; calls leave() and then the handler of the result, which may throw. For results
    /// that are not worth a deliver() of their own.
    ///
    /// @return False if it has not called leave(), because there was none.
    virtual bool deliver_one() { return false; }
    /// There is nothing more to give out for now.
    virtual void on_delivered() {}
    /// The execution context is being destroyed. Ends the device's use of memory that handlers may own; if it
    /// cannot, returns false, and the actor is never destroyed.
    virtual bool stop_device() noexcept { return true; }
    /// The execution context is being destroyed; the handlers in wait lists have been destroyed.
    /// Releases what else belongs to the context, and calls nothing.
    virtual void on_abandoned() noexcept {}
    /// A function has thrown that nobody waits for, or there is no memory to run one: what it was for
    /// would never end.
    virtual void give_up() noexcept = 0;

    virtual void attach();
    bool try_enter() noexcept;
    void enter_later(task& what) noexcept;
    void post(task& what) noexcept;
    void add_ready(hosting::order_task& what) noexcept;
    void leave_gate() noexcept;
    void leave_and_deliver();
    bool is_due() noexcept;
    void note_due() noexcept;
    void deliver_later() noexcept;
    void deliver_posted();
    void go_on_delivering();
    bool deliver_next();
    boost::asio::execution_context& context() const noexcept;
    void abandon() noexcept;

    explicit actor(std::shared_ptr<impl> made) noexcept;

    std::shared_ptr<impl> impl_;
};

template <class Function>
void order_executor::execute(Function function) const {
    actor_->in_order(std::move(function));
}
template <class Function>
void part::enter(actor& which, Function function) {
    which.enter(std::move(function));
}
template <class Function>
void part::in_order(actor& which, Function function) {
    which.in_order(std::move(function));
}
template <class Function>
void part::call_outside(Function function) {
    owner_.call_outside(std::move(function));
}

/// Makes an actor, or driver, of a class derived from it.
template <class Actor, class... Arguments>
std::shared_ptr<Actor> make(Arguments&&... arguments) {
    auto made = std::make_shared<Actor>(std::forward<Arguments>(arguments)...);
    static_cast<actor&>(*made).attach();
    return made;
}

/// Starts an operation of an actor for a completion token, with the completion signature
/// `void(Arguments...)`. For the function of a handle.
///
/// @param on     The actor.
/// @param start  `start(Actor&, waiter<Arguments...>)`; runs inside.
/// @param token  Completion token.
template <class... Arguments, class Actor, class Start, class Token>
auto initiate(std::shared_ptr<Actor> const& on, Start start, Token&& token) {
    return detail::initiate_checked<Token, void(Arguments...)>(
        detail::initiation{
            on->executor(),
            [](auto handler, std::shared_ptr<Actor> const& a, Start begin) {
                auto const io = a->executor();
                if (!io) return;  // the handler goes with its context
                static_cast<actor&>(*a).enter(
                    [core = a.get(), begin = std::move(begin)](waiter<Arguments...>& who) mutable {
                        begin(*core, std::move(who));
                    },
                    waiter<Arguments...>{
                        detail::erased_handler<Arguments...>{std::move(handler)}, io}
                );
            }},
        token,
        on,
        std::move(start)
    );
}

}  // namespace rcverbs::protocol
