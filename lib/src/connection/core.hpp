// core.hpp — one connection, composed of its parts.
//
//   lifecycle   decides: the next action, the cause of the end, the results of waiting handlers
//   link        acts: the connection manager's id, queue pair, completion queue, timer
//   data_path   the operations: checks, queues, posts and completes them
//   waiters     the handlers of setup, disconnect and end; the calls to make outside of the lock
//   liveness    detects that the peer no longer answers
//
// Threads. User code, which includes moving a handler, its allocator and its executor, runs without
// the lock: an operation is reserved under it, its handler placed without it, and started under it.
// Events come from the event channel, the deadline timer and the completion queue, all run
// by the executor's context; calls come from any thread. One lock guards all state. Nothing blocks
// while it is held, and user code is called only after it is released: an `entry` holds the lock
// and makes the deferred calls on leaving. The lock order is: core, then event channel or
// members.
//
// Life. The user's handle, the CQ poller and the handlers in progress keep the connection alive.
// When the handle is destroyed, or the connection ends for any other reason, the lifecycle leads to
// finish(), in the sequence: the connection leaves the CQ poller and destroys its queue pair, the
// operations that the device did not return are completed, the id is destroyed, and the waiting
// handlers are called.
#pragma once

#include <atomic>
#include <forward_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/connection.hpp>
#include <rcverbs/runs_on.hpp>

#include "connection/data_path.hpp"
#include "connection/leased_operations.hpp"
#include "connection/link.hpp"
#include "connection/connection_services.hpp"
#include "connection/option_problems.hpp"
#include "connection/waiters.hpp"
#include "connection/window_core.hpp"
#include "machines/lifecycle.hpp"
#include "machines/liveness.hpp"
#include "progress/cq_poller.hpp"
#include "hosting/members.hpp"
#include "hosting/light_mutex.hpp"
#include "hosting/poller_thread.hpp"
#include "probes/probe.hpp"

namespace rcverbs::detail {

class connection_core final : public std::enable_shared_from_this<connection_core>,
                              public hosting::member,
                              public cm::event_sink,
                              public cm::device_event_sink,
                              public progress::completion_sink {
    using lifecycle = machines::lifecycle;
    using event_kind = lifecycle::event_kind;
    using guard = hosting::light_lock;

    // Returns the result of `look`, called with the lock held.
    template <class Look>
    auto seen(Look const& look) const {
        guard const lock{mutex_};
        return look();
    }

public:
    /// An idle connection. Throws errc::invalid_option, or the error of starting a thread.
    static std::shared_ptr<connection_core> make(
        place const& where,
        connection_options options,
        lifecycle::state first = lifecycle::state::idle
    );
    /// A connection for a peer's request, with its queue pair created. On failure the request is
    /// rejected.
    static std::shared_ptr<connection_core> make_for_request(
        place const& where,
        connection_options options,
        waiting_request::parts request,
        error_code& ec
    );

    connection_core(place const& where, connection_options options, lifecycle::state first);
    ~connection_core();

    void start_resolve(endpoint const& peer, bool and_connect, control_handler handler);
    void start_establish(std::span<std::byte const> private_data, control_handler handler);
    void start_accept(std::span<std::byte const> private_data, control_handler handler);
    void start_disconnect(control_handler handler);
    void start_wait(control_handler handler);
    /// Calls a function at the end, once, beside the program's handlers: a layer that has nothing posted
    /// hears of it, too.
    void call_at_end(std::function<void()> of_layer);
    queue_pair_address prepare(
        std::string const& device, verbs::wanted_address const& wanted, error_code& ec
    );
    error_code establish(queue_pair_address const& peer);
    error_code reject(std::span<std::byte const> private_data);
    /// What runs the connection's handlers: functions of protocols on top of it do not overlap them.
    std::shared_ptr<hosting::sequence> const& order() const noexcept { return order_; }
    /// Destroys the queue pair, because the context is being destroyed. False if that fails.
    bool stop_device() noexcept;
    void close() noexcept;
    /// Closes the connection because the peer violated a protocol on top of it.
    void close_for(error_code violation) noexcept;

    errc start_operation(std::span<work_request const> what, turn when, handler_source source);
    /// Starts an operation that owns its memory.
    void start_leased(work_request const& what, memory_lease memory, handler_source source);
    void cancel_leased(leased_waiter& w, std::uint32_t use);
    /// Cancels op if its use count still matches.
    void cancel(operation& op, std::uint32_t use, boost::asio::cancellation_type type);
    /// Cancels the wait for the end and all operations of which nothing is posted.
    void cancel_waiting();

    std::shared_ptr<window_core> make_window(error_code& ec);
    void drop_window(verbs::memory_window& window) noexcept;
    /// Returns the result of `use`, called with the lock held, which guards windows, too.
    template <class Use>
    auto with_window(Use const& use) const {
        return seen(use);
    }

    [[nodiscard]] error_code set_remote_access(access_flags rights);
    void set_keepalive_interval(std::optional<std::chrono::milliseconds> interval) noexcept;
    std::optional<std::chrono::milliseconds> keepalive_interval() const;

    /// The default executor of its handlers.
    boost::asio::any_io_executor const& executor() const noexcept { return executor_; }
    /// The error of an operation that is started while the connection is not established.
    error_code why_not_connected() const noexcept {
        return seen([this] { return life_.refusal_code(); });
    }
    bool is_open() const {
        return seen([this] { return life_.is_open(); });
    }
    failure last_failure() const {
        return seen([this] { return present_failure(); });
    }
    protection_domain domain() const {
        return seen([this] { return detail::access::make<protection_domain>(link_.domain()); });
    }
    connection_limits limits() const {
        return seen([this] { return link_.limits(); });
    }
    endpoint peer() const {
        return seen([this] { return link_.peer(); });
    }
    endpoint local() const {
        return seen([this] { return link_.local(); });
    }
    std::vector<std::byte> private_data() const {
        return seen([this] { return link_.peer_private_data(); });
    }
    connection_statistics statistics() const {
        return seen([this] { return counted(); });
    }
    void keep_for_messages(std::size_t count) noexcept {
        guard const lock{mutex_};
        data_.keep_for_messages(count);
    }
    /// True if the queue pair could not be destroyed: the device may still use the memory of what was
    /// posted. Any thread.
    bool is_queue_pair_left() const noexcept { return is_queue_pair_left_; }
    ibv_qp* native_queue_pair() const {
        return seen([this] { return link_.queue_pair().get(); });
    }
    std::uint32_t queue_pair_number() const;

private:
    // Holds the lock. On leaving, releases it and makes the deferred calls.
    class entry {
    public:
        explicit entry(connection_core& core) noexcept : core_{core} { core.mutex_.lock(); }
        entry(entry const&) = delete;
        entry& operator=(entry const&) = delete;
        ~entry() {
            if (is_inside_) leave();
        }
        /// Leaves early. REQUIRES: leave() has not been called.
        void leave() {
            is_inside_ = false;
            if (core_.waiters_.has_completions()) {
                core_.unlock_and_call();
            } else {
                core_.mutex_.unlock();
            }
        }

    private:
        connection_core& core_;
        // No other members, so that the object stays in registers.
        bool is_inside_ = true;
    };

    // Called without the lock, by the event sources and the context.
    void context_is_going(boost::asio::execution_context const& which) noexcept override;
    void shut_down() noexcept;
    void on_host_going(boost::asio::execution_context const& which) noexcept;
    void on_event(cm::event& e) override;
    void on_device_event(cm::device_event const& e) override;
    std::size_t on_completions(std::span<ibv_wc const> batch) override;
    void on_queue_broken(error_code ec) override;
    void on_deadline(std::uint64_t armed);

    // Called without the lock.
    error_code make_queues();

    // Called with the lock held; the entry makes the deferred calls.
    void resume(link::event const& e);
    link::next act(lifecycle::action what, bool was_open);
    void arm(lifecycle::deadline what);
    void arm(std::chrono::milliseconds after);
    data_phase phase() const noexcept;
    link::listener listener();
    failure present_failure() const;
    connection_statistics counted() const noexcept;
    bool add(waiters::kind of, control_waiter& waiter);
    void cancel(waiters::kind of, std::uint64_t serial, boost::asio::cancellation_type type);
    [[gnu::noinline]] void check_drained();
    void begin_finish();
    void finish();
    void take_rest(std::span<ibv_wc const> batch, operation_list& done, operation_list& arrived);

    // The operations.
    // Stores the handler of a reserved operation, without the lock. If that throws, the operation is
    // given back.
    void put(handler_source const& source, operation& op, std::span<work_request const> what) {
        try {
            if (source.actions->is_plain) {
                source.actions->place(source.handler, op, executor_);
            } else {
                put_bound(source, op);
            }
        } catch (...) {
            give_back(op, what);
            throw;
        }
    }
    [[gnu::noinline]] void put_bound(handler_source const& source, operation& op);
    [[gnu::cold]] void give_back(operation& op, std::span<work_request const> what) noexcept;
    // Starts a reserved operation whose handler is placed. Inside a round the doorbell is rung once,
    // at its end. False if the context is being destroyed: the operation must be given back.
    bool start(operation& op, std::span<work_request const> what) {
        RCVERBS_PROBE3(operation_start, this, &op, static_cast<std::uint8_t>(what.front().kind));
        if (!data_.build(op, what.front())) return start_slow(op, what);
        if (round_thread_ == this_thread()) return true;
        if (!data_.ring(link_.queue_pair())) post_waiting();
        if (!is_armed_) arm_liveness();
        return true;
    }
    [[gnu::noinline]] bool start_slow(operation& op, std::span<work_request const> what);
    [[gnu::noinline]] void become_guest(boost::asio::execution_context& host);
    void post_queued() {
        if (data_.has_work() && !(data_.is_open() && data_.ring(link_.queue_pair())))
            post_waiting();
        if (!is_armed_) arm_liveness();
    }
    [[gnu::noinline]] void post_waiting();

    // The operations that own their memory.
    struct owner_of_memory;
    void put(handler_source const& source, leased_waiter& w);
    void discard(leased_waiter& w) noexcept;
    void start_leased_receive(work_request const& what, memory_lease& memory, leased_waiter& w);
    error_code post_leased(work_request const& what, memory_lease& memory, leased_waiter* w);
    void on_leased(
        error_code ec,
        outcome const& result,
        memory_lease memory,
        leased_waiter* w,
        std::uint32_t use
    );
    static void set_result(
        leased_waiter& w, error_code ec, outcome const& result, memory_lease memory
    ) noexcept;
    void complete_later(
        leased_waiter& w, error_code ec, outcome const& result, memory_lease memory
    );
    void call_due_receivers();
    void complete_receiver(
        error_code ec, std::uint64_t number, outcome const& result, memory_lease memory
    ) noexcept;
    void take_back(std::uint64_t number, receive_result const& what, memory_lease memory) noexcept;
    void call_handler(leased_waiter& w);
    void cancel_leased(leased_waiter& w);
    [[gnu::noinline]] void on_failed(completion_report const& report);
    void name_flushed(operation_list const& done) noexcept;
    [[gnu::noinline]] void arm_liveness();
    void tick();
    machines::liveness::sample sample() const noexcept;
    void send_keepalive();

    [[gnu::noinline]] void unlock_and_call();

    // Called without the lock.
    void run_round(operation_list done);
    [[gnu::noinline]] void run_shared_round(completion_report& report);
    [[gnu::noinline]] void post_handlers(operation_list done);
    void run_posted(operation_list done);
    /// An executor that counts as outstanding work. Not under the lock: it is the program's code.
    boost::asio::any_io_executor tracked() const;
    // Identifies the calling thread, in one or two instructions, and without a thread-local variable
    // of a fixed place, of which a plugin may find none left.
    static void const* this_thread() noexcept { return __builtin_thread_pointer(); }

    // The polling thread, if it belongs to the library; shared, so it outlives the objects on it.
    std::shared_ptr<hosting::poller_thread> const thread_;
    connection_services& services_;
    // The program's executor. Emptied when its context is destroyed, because strands belong to it.
    boost::asio::any_io_executor executor_;
    // All handlers and polling rounds run in this sequence.
    std::shared_ptr<hosting::sequence> const order_;
    // Outstanding work: keeps the context running from the beginning of the setup until the connection has
    // ended. Until then there is none, as an unconnected socket has none.
    boost::asio::any_io_executor work_;
    connection_options const options_;
    // The executor's context, asked for once: no code of a program's runs under the mutex.
    boost::asio::execution_context* const home_;
    // The context of the last handler that had one of its own; become_guest() runs when it changes.
    boost::asio::execution_context* host_ = nullptr;
    hosting::membership membership_;
    std::forward_list<hosting::membership> as_guest_;

    mutable hosting::light_mutex mutex_;
    lifecycle life_;
    link link_;
    // The queue pair could not be destroyed: the device may still use the memory of its operations.
    std::atomic<bool> is_queue_pair_left_{false};
    data_path data_;
    // Made when the first operation that owns its memory is started.
    std::unique_ptr<leased_operations> leased_;
    waiters waiters_;
    // The context is being destroyed: nothing is posted any more, and nothing that happens has an effect. What
    // layers above start meanwhile is refused.
    bool is_shut_down_ = false;
    // They have been destroyed, too: nothing may be started.
    bool is_context_gone_ = false;
    // A thread creates the queue pair, without the lock.
    bool is_making_queues_ = false;
    // finish() was called meanwhile, and is to be called again.
    bool is_finish_late_ = false;
    std::vector<std::byte> own_private_data_;
    // The thread that runs a round of completions. Operations that it starts are posted at the end
    // of the round.
    void const* round_thread_ = nullptr;
    // Checked periodically: while work is posted, or always, as the options require.
    machines::liveness liveness_;
    bool is_armed_ = false;
    std::optional<std::chrono::milliseconds> keepalive_interval_;
    std::uint64_t keepalives_sent_ = 0;
};

}  // namespace rcverbs::detail
