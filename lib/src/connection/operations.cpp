// A connection's operations, from the program to the queue pair and from the completions to the
// handlers; and the periodic liveness check.
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <cassert>
#include <future>

#include "connection/core.hpp"
#include "connection/option_problems.hpp"
#include "hosting/executors.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

// --- from the program to the queue pair ----------------------------------------------------------

inline errc connection_core::start_operation(
    std::span<work_request const> what, turn when, handler_source source
) {
    auto const [op, refused] = seen([&] {
        assert(
            !is_context_gone_ && "an operation was started after its io_context had been destroyed"
        );
        return data_.reserve(what, when);
    });
    if (op == nullptr) [[unlikely]]
        return refused;
    put(source, *op, what);
    bool is_started = false;
    {
        entry const inside{*this};
        is_started = start(*op, what);
    }
    if (!is_started) give_back(*op, what);
    return {};
}

// Flattened, because the calls in it would cost as much as their work.
[[gnu::flatten]] errc start_operation(
    std::shared_ptr<connection_core> const& core,
    std::span<work_request const> what,
    turn when,
    handler_source source
) {
    return core->start_operation(what, when, source);
}

// For a handler with a cancellation slot or an executor of its own.
void connection_core::put_bound(handler_source const& source, operation& op) {
    place_handler(source, op, executor_, *this);
    if (op.host == nullptr || op.host == home_) return;
    // The handler runs on another context.
    guard const lock{mutex_};
    if (op.host != host_) [[unlikely]]
        become_guest(*op.host);
}

void connection_core::give_back(operation& op, std::span<work_request const> what) noexcept {
    op.drop();
    guard const lock{mutex_};
    data_.give_back(op, what);
}

// Starts an operation that has to wait or has several parts, or for which there is no room in the lists.
bool connection_core::start_slow(operation& op, std::span<work_request const> what) {
    if (!data_.is_closed()) {
        if (!data_.make_list_room()) post_queued();
        if (!data_.build(op, what.front())) data_.start(op, what);
        if (round_thread_ != this_thread()) post_queued();
        return true;
    }
    if (is_shut_down_) return false;
    // The connection has ended since the operation was reserved.
    data_.fail_reserved(op, what, life_.refusal_code());
    operation_list failed;
    failed.push_back(op);
    waiters_.run([self = shared_from_this(), failed] { self->post_handlers(failed); });
    return true;
}

void connection_core::post_waiting() {
    if (!life_.is_live() || !link_.queue_pair().is_open()) return;
    operation_list refused;
    error_code const ec = data_.post_queued(link_.queue_pair(), refused, data_.is_open());
    if (!refused.empty()) {
        waiters_.run([self = shared_from_this(), refused]() { self->post_handlers(refused); });
    }
    if (ec) resume({event_kind::broken, ec, 0, close_reason::transport_error});
}

void connection_core::cancel(operation& op, std::uint32_t use, asio::cancellation_type type) {
    entry const inside{*this};
    if (op.use != use || op.stage != operation::stage::started || is_shut_down_ ||
        type == asio::cancellation_type::none)
        return;
    if (data_.take_back(op)) {
        operation_list taken;
        taken.push_back(op);
        return waiters_.run([self = shared_from_this(), taken] { self->post_handlers(taken); });
    }
    if ((type & asio::cancellation_type::terminal) == asio::cancellation_type::none) return;
    op.is_cancelled = true;
    resume({event_kind::close, asio::error::operation_aborted});
}

void connection_core::cancel_waiting() {
    entry const inside{*this};
    if (is_shut_down_) return;
    waiters_.tell(waiters::kind::end, asio::error::operation_aborted);
    // Leased receives that wait for room stay, as those that are posted: the next handlers adopt them.
    bool const is_leasing = leased_ != nullptr && !data_.has_borrowed_receives();
    operation_list const taken = data_.take_back_waiting(is_leasing);
    if (leased_ != nullptr)
        leased_->for_each_waiting([this](leased_waiter& w) { cancel_leased(w); });
    if (!taken.empty())
        waiters_.run([self = shared_from_this(), taken] { self->post_handlers(taken); });
}

// --- from the completions to the handlers --------------------------------------------------------

[[gnu::flatten]] std::size_t connection_core::on_completions(std::span<ibv_wc const> batch) {
    entry inside{*this};
    if (is_shut_down_) return batch.size();
    std::uint64_t const oldest = data_.oldest_send();
    completion_report report = data_.retire(batch);
    // A completion may cover several sends. Receives, and completions that belong to no operation,
    // do not advance the send window: for them the size of the batch counts.
    std::size_t const work = std::max<std::size_t>(batch.size(), data_.oldest_send() - oldest);
    if (report.failed.failed()) on_failed(report);
    if (!life_.is_live()) check_drained();
    round_thread_ = this_thread();
    inside.leave();
    if (!report.shared.empty()) {
        run_shared_round(report);
    } else {
        run_round(report.done);
    }
    return work;
}

void connection_core::on_failed(completion_report const& report) {
    resume({event_kind::work_failed, report.failed, report.vendor_error});
    name_flushed(report.done);
}

// Gives flushed operations the code of the cause of the end, as far as it is known.
void connection_core::name_flushed(operation_list const& done) noexcept {
    error_code const why = life_.flush_code();
    for (operation* op = done.front(); op != nullptr; op = op->next) {
        if (op->code == wc_errc::flushed) op->code = why;
    }
}

// A handler's exception ends a round. So if both lists have operations, one list is posted.
void connection_core::run_shared_round(completion_report& report) {
    std::shared_ptr<shared_receives> const queue = link_.shared();
    if (!report.done.empty()) {
        queue->complete(report.shared, {});
        return run_round(report.done);
    }
    run_round({});
    queue->complete(report.shared, executor_);
}

// Calls handlers on the executor. Operations that they start on this thread are posted as one list
// afterwards. REQUIRES: round_thread_ is this thread.
void connection_core::run_round(operation_list done) {
    call_handlers(done, [this](operation_list& called, operation_list const& left) {
        // After an exception: before the next round, as handlers run in order.
        if (!left.empty())
            order_->resume([self = shared_from_this(), left] { self->run_posted(left); });
        entry const inside{*this};
        round_thread_ = nullptr;
        data_.release(called);
        post_queued();
    });
}

void connection_core::post_handlers(operation_list done) {
    order_->call([self = shared_from_this(), done] { self->run_posted(done); });
}

void connection_core::run_posted(operation_list done) {
    {
        guard const lock{mutex_};
        round_thread_ = this_thread();
    }
    run_round(done);
}

// Handlers of control operations are called through the executor: in order, after the steps that
// led to them, and never from inside the initiating function.
void connection_core::unlock_and_call() {
    deferred_completions made = waiters_.take_completions();
    mutex_.unlock();
    // A handler may destroy the connection, and with it the thread that runs the handler, before
    // call() returns here.
    auto const self = shared_from_this();
    order_->call([self, made = std::move(made)]() mutable { made.make(*self->order_); });
}

// --- handlers for other contexts -----------------------------------------------------------------

// A context for which handlers wait, or have waited, is being destroyed, and its handlers with it.
// Before that, the device must stop using the memory that they own. So the connection is shut down now,
// on its own thread, which continues to run.
void connection_core::context_is_going(asio::execution_context const& which) noexcept {
    if (thread_ == nullptr || &which == &thread_->context()) return shut_down();
    if (thread_->has_ended() || thread_->is_this_thread()) return on_host_going(which);
    std::promise<void> done;
    std::future<void> const ran = done.get_future();
    asio::post(thread_->context(), [this, &which, d = std::move(done)]() mutable {
        on_host_going(which);
        d.set_value();
    });
    // If the thread ends before, the function is destroyed, and its promise with it.
    ran.wait();
    if (thread_->has_ended()) on_host_going(which);
}

// Nothing happens if none of the connection's handlers is for that context any more.
void connection_core::on_host_going(asio::execution_context const& which) noexcept {
    {
        guard const lock{mutex_};
        // The next context may have the same address.
        if (host_ == &which) host_ = home_;
        bool const has_handlers = data_.has_handlers_for(which) ||
                                  (leased_ != nullptr && leased_->has_handlers_for(which));
        if (is_shut_down_ || !has_handlers) return;
    }
    membership_.leave();
    shut_down();
}

void connection_core::become_guest(asio::execution_context& host) {
    if (thread_ == nullptr) return;
    host_ = &host;
    if (&host == home_) return;
    for (hosting::membership& m : as_guest_) {
        if (m.is_of(host)) return;
    }
    // A place in a context that is gone is used again.
    auto const left = std::find_if(as_guest_.begin(), as_guest_.end(), [](auto const& m) {
        return !m.is_listed();
    });
    hosting::membership& m = left != as_guest_.end() ? *left : as_guest_.emplace_front();
    m.join(host, weak_from_this(), hosting::rank::guest);
}

// --- liveness ------------------------------------------------------------------------------------

machines::liveness::sample connection_core::sample() const noexcept {
    return {data_.is_awaiting(), data_.oldest_send(), data_.completed(), data_.is_sending()};
}

void connection_core::arm_liveness() {
    if (!life_.is_open() || !(liveness_.looks_always() || data_.is_sending())) return;
    is_armed_ = true;
    if (!liveness_.looks()) return;
    liveness_.begin(sample());
    arm(liveness_.period());
}

void connection_core::tick() {
    is_armed_ = liveness_.looks_always() || data_.is_sending();
    if (!is_armed_) return;
    auto const give_up = [this](errc why) {
        resume({event_kind::broken, why, 0, close_reason::timed_out});
    };
    switch (liveness_.tick(sample())) {
    case machines::liveness::action::stalled: return give_up(errc::stalled);
    case machines::liveness::action::idle: return give_up(errc::idle);
    case machines::liveness::action::send_keepalive: send_keepalive(); break;
    case machines::liveness::action::kick_send_queue:
        if (link_.domain()->on().forgets_posted_work()) link_.queue_pair().kick_send_queue();
        break;
    case machines::liveness::action::none: break;
    }
    if (life_.is_live()) arm(liveness_.period());
}

// A write of zero bytes: the peer's device acknowledges it, the peer's program does not see it, and
// no key is checked. Source: InfiniBand specification, C9-88.
void connection_core::send_keepalive() {
    work_request nothing;
    nothing.kind = operation_kind::write;
    operation* const op = data_.reserve({&nothing, 1}, turn::now).op;
    if (op == nullptr) return liveness_.keepalive_failed();
    // With a handler, so that the work request is signaled.
    op->emplace<bytes_result>([](error_code, std::size_t) {}, executor_);
    data_.start(*op, {&nothing, 1});
    ++keepalives_sent_;
    post_queued();
}

void connection_core::set_keepalive_interval(std::optional<std::chrono::milliseconds> interval
) noexcept {
    entry const inside{*this};
    if (is_shut_down_) return;
    keepalive_interval_ = interval;
    liveness_options now = options_.liveness;
    now.keepalive_interval = interval;
    liveness_ = machines::liveness{limits_of(now)};
    is_armed_ = false;
    // Before the connection is open, the timer runs the deadlines of the setup.
    if (!life_.is_open()) return;
    link_.disarm();
    arm_liveness();
}

}  // namespace rcverbs::detail
