// A connection's making, its data, its waiters and what it tells. The ways in are in setup.cpp, the way out in ending.cpp.
#include "connection/core.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>

#include <algorithm>

#include "connection/quarantine.hpp"
#include "verbs/errno_map.hpp"
#include "verbs/region_record.hpp"
#include "verbs/rights.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

asio::any_io_executor executor_for(
    asio::io_context& context, connection_options const& options, progress::poller_thread* poller
) {
    // A strand, because any number of threads may run the caller's io_context.
    if (options.progress == progress_on::context) return asio::make_strand(context);
    return poller->context().get_executor();
}

std::shared_ptr<progress::poller_thread> poller_for(registry& members, connection_options const& options) {
    if (options.progress == progress_on::context) return nullptr;
    if (options.shared_poller.is_open()) return options.shared_poller.impl();
    return members.threads().start();
}

}  // namespace

// --- making and unmaking -----------------------------------------------------------------------------------------

connection_core::connection_core(asio::io_context& context, connection_options options)
    : context_{context},
      registry_{asio::use_service<registry>(context)},
      work_{context.get_executor()},
      options_{std::move(options)},
      poller_{poller_for(registry_, options_)},
      executor_{executor_for(context, options_, poller_.get())},
      timer_{context},
      liveness_{{options_.stall_timeout, options_.keepalive_interval, options_.idle_timeout}} {}

connection_core::~connection_core() {
    // The registry has let go of what it shut down, and may be gone itself.
    if (!is_shut_down_) registry_.remove(this);
}

std::shared_ptr<connection_core> connection_core::make(asio::io_context& context, connection_options options) {
    if (error_code const ec = validate(options)) throw boost::system::system_error{ec, "connection"};
    auto core = std::make_shared<connection_core>(context, std::move(options));
    core->registry_.add(core);
    return core;
}

std::shared_ptr<connection_core> connection_core::make_for_request(
    asio::io_context& context, connection_options options, cm::event request, std::shared_ptr<admission::place> place,
    error_code& ec
) {
    std::shared_ptr<connection_core> core = make(context, std::move(options));
    guard lock{core->mutex_};
    core->setup_.emplace<accept>();
    core->place_ = std::move(place);
    core->id_ = std::move(request.incoming);
    core->id_->set_sink(core);
    core->peer_private_data_ = std::move(request.private_data);
    core->make_id_queue_pair(ec);
    // The peer's request bounds what is worth asking for: more would be refused or wasted.
    core->limits_.initiator_depth = std::min<std::uint32_t>(core->limits_.initiator_depth, request.initiator_depth);
    core->limits_.responder_resources =
        std::min<std::uint32_t>(core->limits_.responder_resources, request.responder_resources);
    core->arm(core->options_.connect_deadline);
    if (ec) core->perform(step::create_queue_pair, ec);
    core->make_calls(lock);
    return core;
}

void connection_core::shut_down() noexcept {
    control_waiter dropped[3];
    calls dropped_calls;
    std::shared_ptr<progress::completion_source> source;
    std::unique_ptr<cm::id> id;
    std::shared_ptr<shared_receives> shared;
    {
        guard const lock{mutex_};
        shared = std::move(shared_);
        is_shut_down_ = true;
        is_open_ = false;
        timer_.reset();
        work_.reset();
        place_.reset();
        // A strand is its io_context's and must not be left to the time when that is gone.
        if (options_.progress == progress_on::context) executor_ = {};
        std::swap(dropped[0], setup_waiter_);
        std::swap(dropped[1], disconnect_waiter_);
        std::swap(dropped[2], end_waiter_);
        std::swap(dropped_calls, calls_);
        source = std::move(source_);
        id = std::move(id_);
        if (qp_.is_open()) {
            auto const channel = registry_.channel().lock();
            if (qp_.destroy()) keep_for_ever({source, domain_, atomic_results_});
        }
    }
    if (source != nullptr) {
        source->abandon();
        static_cast<void>(source->queue().destroy());
    }
    id.reset();
    if (shared != nullptr) shared->detach();
    // Last: a handler may hold the last handle of another connection, or of this one.
    data_.for_each([](operation& op) { op.drop(); });
}

// --- data ----------------------------------------------------------------------------------------------------

errc connection_core::refusal(request const& what) const noexcept {
    if (what.problem != errc{}) return what.problem;
    bool const is_receive = what.kind == operation_kind::receive;
    if (!is_open_) {
        if (!qp_.is_open() || !is_live()) return errc::not_connected;
        // The peer may have sent, and a handler may want to answer, before the connection manager tells that it is
        // established: what is started from connect or accept on waits until then.
        if (!is_receive && !setup_is_under_way()) return errc::not_connected;
    }
    access_flags const needed = verbs::local_rights(what.kind);
    for (std::size_t i = 0; i < what.local.count(); ++i) {
        if (errc const problem = check(what.local[i], domain_.get(), needed); problem != errc{}) return problem;
    }
    switch (what.kind) {
    case operation_kind::receive:
        if (shared_ != nullptr) return errc::receives_are_shared;
        return verbs::count_segments(what) > limits_.receive_segments_max ? errc::too_many_segments : errc{};
    case operation_kind::send_with_invalidate:
        if (!domain_->on().limits().has_send_with_invalidate) return errc::invalidate_unsupported;
        [[fallthrough]];
    case operation_kind::send:
    case operation_kind::send_with_immediate:
        if (what.local.size_bytes() > limits_.message_bytes_max) return errc::message_too_large;
        return verbs::count_segments(what) > limits_.send_segments_max ? errc::too_many_segments : errc{};
    case operation_kind::fetch_add:
    case operation_kind::compare_swap:
        if (!domain_->on().limits().has_atomics) return errc::atomics_unsupported;
        [[fallthrough]];
    case operation_kind::read: return is_open_ && data_.read_depth() == 0 ? errc::read_depth_zero : errc{};
    case operation_kind::write:
    case operation_kind::write_with_immediate: break;
    }
    return {};
}

bool connection_core::setup_is_under_way() const noexcept {
    if (auto const* const machine = std::get_if<connect>(&setup_)) {
        return machine->current() == connect::state::connecting;
    }
    return std::get<accept>(setup_).current() == accept::state::accepting;
}

// The same as refusal() for a plain request on an open connection: one slice at most, and no longer than a message.
inline errc connection_core::plain_refusal(request const& what) const noexcept {
    if (what.problem != errc{}) return what.problem;
    if ((kinds_ >> static_cast<unsigned>(what.kind) & 1U) == 0) return refusal(what);
    return check(what.local.front(), domain_.get(), verbs::local_rights(what.kind));
}

// Short for what is usual: one request on an open connection that can be posted at once.
inline errc connection_core::start_operation(
    std::span<request const> what, turn when, handler_source source
) {
    guard lock{mutex_};
    request const& first = what.front();
    bool const is_unusual = !is_open_ || what.size() != 1 || source.actions->slot != nullptr;
    if (is_unusual || !(data_.is_plain(first) || data_.is_plain_receive(first))) {
        return start_specially(lock, what, when, source);
    }
    if (errc const problem = plain_refusal(first); problem != errc{}) return problem;
    operation* const op = data_.take_free();
    if (op == nullptr) return when == turn::now ? errc::would_block : errc::queue_full;
    source.actions->place(source.handler, *op, executor_);
    if (first.kind == operation_kind::receive) {
        data_.start_plain_receive(*op, first);
    } else {
        data_.start_plain(*op, first);
    }
    // Inside a round the doorbell is rung once, at its end.
    if (round_thread_ != this_thread()) pump();
    make_calls(lock);
    return {};
}

// Flat, because the calls in it would cost as much as what they do.
[[gnu::flatten]] errc start_operation(
    std::shared_ptr<connection_core> const& core, std::span<request const> what, turn when, handler_source source
) {
    return core->start_operation(what, when, source);
}

errc connection_core::start_specially(
    guard& lock, std::span<request const> what, turn when, handler_source source
) {
    for (request const& one : what) {
        errc const problem = is_open_ && data_.is_single(one) ? plain_refusal(one) : refusal(one);
        if (problem != errc{}) return problem;
    }
    bool const is_receive = what.front().kind == operation_kind::receive;
    if (when == turn::now && !((is_open_ || is_receive) && data_.has_room_for(what))) return errc::would_block;
    operation* const op = data_.take_free();
    if (op == nullptr) return when == turn::now ? errc::would_block : errc::queue_full;
    op->batch = what.size() > 1 ? what : std::span<request const>{};
    place_handler(source, *op, executor_, weak_from_this());
    if (is_open_ && what.size() == 1 && data_.is_plain(what.front())) {
        data_.start_plain(*op, what.front());
    } else {
        op->what = what.front();
        data_.start(*op);
    }
    if (round_thread_ != this_thread()) pump();
    make_calls(lock);
    return {};
}

void connection_core::post_waiting() {
    if (!is_live() || !qp_.is_open()) return;
    operation_list refused;
    error_code const ec = data_.pump(qp_, refused, is_open_);
    if (!refused.empty()) {
        calls_.run([self = shared_from_this(), refused]() { self->post_handlers(refused); });
    }
    if (ec) {
        note(step::transfer, ec, 0, close_reason::transport_error);
        resume(teardown::event::broken);
    }
}

[[gnu::flatten]] std::size_t connection_core::on_completions(std::span<ibv_wc const> batch) {
    guard lock{mutex_};
    if (is_shut_down_) return batch.size();
    std::uint64_t const oldest = data_.oldest_send();
    completion_report report = data_.retire(batch);
    // A completion may stand for a list; but receives, and completions of nobody's, have none in this account.
    std::size_t const work = std::max<std::size_t>(batch.size(), data_.oldest_send() - oldest);
    if (report.failed.failed()) on_failed(report);
    if (!is_live()) check_drained();
    round_thread_ = this_thread();
    make_calls(lock);
    if (!report.shared.empty()) {
        run_shared_round(report);
    } else {
        run_round(report.done);
    }
    return work;
}

// One of the two may be ended by a handler's exception: so where there are both, one is posted.
void connection_core::run_shared_round(completion_report& report) {
    std::shared_ptr<shared_receives> const queue = shared_;
    if (!report.done.empty()) {
        queue->complete(report.shared, {});
        return run_round(report.done);
    }
    run_round({});
    queue->complete(report.shared, executor_);
}

void connection_core::on_failed(completion_report const& report) {
    name_flushed(report.done);
    // What is no consequence of the peer's leaving came before it, though it is heard of afterwards: the peer left for that reason.
    bool const is_cause = report.failed != wc_errc::flushed && report.failed != wc_errc::retry_exceeded &&
                          report.failed != wc_errc::rnr_retry_exceeded;
    if (!is_live() && reason_ == close_reason::peer_disconnected && is_cause) {
        reason_ = close_reason::transport_error;
        failure_ = {step::transfer, report.failed, peer_, report.vendor_error};
    }
    // While it is being made, the connection manager stops the queue pair of a connection that is refused: what is
    // flushed then says nothing, and the event that says why follows.
    if (!is_live() || (!is_open_ && report.failed == wc_errc::flushed)) return;
    note(step::transfer, report.failed, report.vendor_error, close_reason::transport_error);
    resume(teardown::event::broken);
}

// What was merely flushed says why the connection ended, as far as that is known.
void connection_core::name_flushed(operation_list const& done) noexcept {
    error_code const why = flush_error();
    for (operation* op = done.front(); op != nullptr; op = op->next) {
        if (op->code == wc_errc::flushed) op->code = why;
    }
}

void connection_core::on_queue_broken(error_code ec) {
    guard lock{mutex_};
    note(step::transfer, ec, 0, close_reason::transport_error);
    resume(teardown::event::broken);
    make_calls(lock);
}

void connection_core::cancel(operation& op, std::uint32_t use, asio::cancellation_type type) {
    guard lock{mutex_};
    if (op.use != use || op.is_done || is_shut_down_ || type == asio::cancellation_type::none) return;
    if (data_.take_back(op)) {
        operation_list taken;
        taken.push_back(op);
        lock.unlock();
        return post_handlers(std::move(taken));
    }
    if ((type & asio::cancellation_type::terminal) == asio::cancellation_type::none) return;
    op.is_cancelled = true;
    note(step::transfer, asio::error::operation_aborted, 0, close_reason::closed_locally);
    resume(teardown::event::close);
    make_calls(lock);
}

// What an operation that was merely flushed completes with: why the connection ended, from the user's point of view.
error_code connection_core::flush_error() const noexcept {
    switch (reason_) {
    case close_reason::closed_locally: return asio::error::operation_aborted;
    case close_reason::peer_disconnected: return errc::peer_disconnected;
    case close_reason::timed_out: return failure_.code ? failure_.code : make_error_code(errc::timed_out);
    case close_reason::device_gone: return failure_.code;
    default: return wc_errc::flushed;
    }
}

// Calls handlers on the executor. What they start on this thread is gathered and posted as one list afterwards. REQUIRES:
// round_thread_ is this thread.
void connection_core::run_round(operation_list done) {
    call_handlers(done, executor_, [this](operation_list& called, operation_list const& left) {
        if (!left.empty()) post_handlers(left);
        guard lock{mutex_};
        round_thread_ = nullptr;
        data_.release(called);
        pump();
        make_calls(lock);
    });
}

void connection_core::post_handlers(operation_list done) {
    asio::post(executor_, [self = shared_from_this(), done] {
        {
            guard const lock{self->mutex_};
            self->round_thread_ = this_thread();
        }
        self->run_round(done);
    });
}

error_code connection_core::set_remote_access(access_flags rights) {
    guard lock{mutex_};
    if (!is_open_) return errc::not_connected;
    return qp_.set_remote_access(verbs::to_ibv_access(rights));
}

void connection_core::stop_keepalive() noexcept {
    guard const lock{mutex_};
    liveness_.stop_keepalive();
}

// --- waiters and calls ---------------------------------------------------------------------------------------

bool connection_core::set_waiter(control_waiter& waiter, control_handler& handler, bool is_wait) {
    control_waiter made{std::move(handler), executor_};
    if (waiter) {
        calls_.complete(made, errc::operation_in_progress);
        return false;
    }
    made.serial = ++waiter_serial_;
    if (made.slot().is_connected()) {
        made.slot().assign([weak = weak_from_this(), &waiter, serial = made.serial, is_wait](asio::cancellation_type type) {
            bool const is_terminal = (type & asio::cancellation_type::terminal) != asio::cancellation_type::none;
            auto const self = weak.lock();
            if (self == nullptr || type == asio::cancellation_type::none || !(is_wait || is_terminal)) return;
            self->cancel(waiter, serial, is_wait);
        });
    }
    waiter = std::move(made);
    return true;
}

void connection_core::cancel(control_waiter& waiter, std::uint64_t serial, bool is_wait) {
    guard lock{mutex_};
    // After completion a cancellation has no effect.
    if (!waiter || waiter.serial != serial) return;
    if (is_wait) {
        calls_.complete(waiter, asio::error::operation_aborted);
        return make_calls(lock);
    }
    lock.unlock();
    close();
}

void connection_core::notify_step(step s) {
    if (options_.on_step) calls_.run([self = shared_from_this(), s] { self->options_.on_step(s); });
}

// Control operations' handlers go by way of the executor: never from inside the initiating call, in order, and after
// the steps that led to them.
void connection_core::post_calls(guard& lock) {
    calls made = std::exchange(calls_, {});
    lock.unlock();
    asio::post(executor_, [self = shared_from_this(), made = std::move(made)]() mutable {
        made.make(self->executor_);
    });
}

// --- observers -----------------------------------------------------------------------------------------------

bool connection_core::is_open() const {
    guard const lock{mutex_};
    return is_open_;
}

protection_domain connection_core::domain() const {
    guard const lock{mutex_};
    return protection_domain{domain_};
}

connection_limits connection_core::limits() const {
    guard const lock{mutex_};
    return limits_;
}

endpoint connection_core::peer() const {
    guard const lock{mutex_};
    return peer_;
}

endpoint connection_core::local() const {
    guard const lock{mutex_};
    return local_;
}

std::vector<std::byte> connection_core::private_data() const {
    guard const lock{mutex_};
    return peer_private_data_;
}

close_reason connection_core::reason() const {
    guard const lock{mutex_};
    return reason_;
}

connection_statistics connection_core::statistics() const {
    guard const lock{mutex_};
    connection_statistics now = data_.statistics();
    now.keepalives_sent = keepalives_sent_;
    if (poll_counters_ != nullptr) poll_counters_->read(now);
    return now;
}

std::uint32_t connection_core::queue_pair_number() const {
    guard const lock{mutex_};
    return qp_.is_open() ? qp_.get()->qp_num : 0;
}

ibv_qp* connection_core::native_queue_pair() const {
    guard const lock{mutex_};
    return qp_.get();
}

failure connection_core::last_failure() const {
    guard const lock{mutex_};
    return failure_;
}

}  // namespace rcverbs::detail
