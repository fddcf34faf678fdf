// Setup, events and teardown of a connection. The functions that the program calls are in
// requests.cpp, the data-path operations in operations.cpp.
#include "connection/core.hpp"

#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/prefer.hpp>

#include <rcverbs/detail/option_check.hpp>
#include "connection/option_problems.hpp"
#include "hosting/executors.hpp"
#include "probes/connection_open.hpp"
#include "progress/poller_core.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

// --- construction and shutdown -------------------------------------------------------------------

connection_core::connection_core(
    place const& where, connection_options options, lifecycle::state first
)
    : thread_{hosting::thread_of(where.executor)},
      services_{connection_services::of(where.executor)},
      executor_{where.executor},
      order_{
          where.poller != nullptr ? where.poller->order()
                                  : std::make_shared<hosting::sequence>(executor_)},
      work_{first == lifecycle::state::idle ? asio::any_io_executor{} : tracked()},
      options_{std::move(options)},
      home_{&hosting::context_of(executor_)},
      host_{home_},
      life_{first},
      link_{services_, options_, where},
      liveness_{limits_of(options_.liveness)},
      keepalive_interval_{options_.liveness.keepalive_interval} {}

connection_core::~connection_core() = default;

std::shared_ptr<connection_core> connection_core::make(
    place const& where, connection_options options, lifecycle::state first
) {
    throw_if_refused(problem_of(options));
    auto core = std::make_shared<connection_core>(where, std::move(options), first);
    core->membership_.join(where.executor, core, hosting::rank::object);
    return core;
}

std::shared_ptr<connection_core> connection_core::make_for_request(
    place const& where, connection_options options, waiting_request::parts request, error_code& ec
) {
    if (request.event.incoming == nullptr) {
        ec = errc::not_connected;
        return nullptr;
    }
    auto core = make(where, std::move(options), lifecycle::state::requested);
    RCVERBS_PROBE1(connect_begin, core.get());
    {
        entry const inside{*core};
        request.admitted->belong_to(core);
        core->arm(lifecycle::deadline::connect);
        if (link::next const failed = core->link_.take(std::move(request), core->listener())) {
            ec = failed->code;
            core->resume(*failed);
            return core;
        }
    }
    ec = core->make_queues();
    return core;
}

// Returns the failure, if any. The connection may be closed meanwhile: finish() waits for the queues.
error_code connection_core::make_queues() {
    link::queues made;
    std::shared_ptr<progress::cq_poller> poller;
    std::shared_ptr<shared_receives> unused;
    bool is_passive = false;
    std::optional<link::listener> who;
    {
        guard const lock{mutex_};
        if (is_shut_down_) return errc::not_connected;
        is_making_queues_ = true;
        is_passive = life_.is_passive();
        who.emplace(listener());
    }
    made = link_.make_queues(is_passive, *who);
    error_code const failed = made.result.code;
    link::event const result = made.result;
    {
        guard const lock{mutex_};
        if (is_shut_down_) {
            unused = std::move(made.shared);
        } else {
            data_ = std::move(made.path);
            link_.adopt(std::move(made));
            if (link_.queue_pair().is_open()) poller = link_.join(shared_from_this());
        }
    }
    if (poller != nullptr) poller->wake();
    if (unused != nullptr) unused->detach();
    entry const inside{*this};
    is_making_queues_ = false;
    resume(result);
    if (is_finish_late_) begin_finish();
    return failed;
}

bool connection_core::stop_device() noexcept {
    std::shared_ptr<shared_receives> shared;
    {
        guard const lock{mutex_};
        if (std::exchange(is_shut_down_, true)) return !is_queue_pair_left_;
        static_cast<void>(life_.resume({event_kind::gone}));
        data_.enter(data_phase::closed);
        shared = link_.leave_shared();
        if (!link_.abandon()) is_queue_pair_left_ = true;
    }
    if (shared != nullptr) shared->detach(!is_queue_pair_left_);
    return !is_queue_pair_left_;
}

void connection_core::shut_down() noexcept {
    stop_device();
    waiters dropped;
    {
        guard const lock{mutex_};
        is_context_gone_ = true;
        // A strand belongs to its context and must be destroyed before the context is.
        work_ = {};
        if (thread_ == nullptr) executor_ = {};
        std::swap(dropped, waiters_);
    }
    if (thread_ == nullptr) order_->abandon();
    // Last, because a handler may own the last handle of another connection, or of this one.
    data_.drop_handlers(is_queue_pair_left_);
    if (leased_ != nullptr) leased_->drop_handlers();
}

// --- events --------------------------------------------------------------------------------------

// The lifecycle decides on an action and the link carries it out. If that yields the next event at
// once, the lifecycle processes it, too.
void connection_core::resume(link::event const& e) {
    bool const was_open = life_.is_open();
    lifecycle::answer const a = life_.resume(e);
    arm(a.until);
    if (a.done) RCVERBS_PROBE2(connect_step, this, static_cast<int>(*a.done));
    if (a.done && options_.on_step) {
        waiters_.run([self = shared_from_this(), s = *a.done] { self->options_.on_step(s); });
    }
    waiters_.tell(a);
    link::next const next = act(a.then, was_open);
    data_.enter(phase());
    if (life_.is_open() && !was_open) {
        fire_connection_open(this, link_.queue_pair().get()->qp_num, link_.peer());
        post_queued();
    }
    if (next) return resume(*next);
    check_drained();
}

asio::any_io_executor connection_core::tracked() const {
    return asio::prefer(executor_, asio::execution::outstanding_work.tracked);
}

link::next connection_core::act(lifecycle::action what, bool was_open) {
    using action = lifecycle::action;
    link::next next;
    switch (what) {
    case action::none: break;
    case action::resolve_address: return link_.resolve_address(weak_from_this());
    case action::resolve_route: return link_.resolve_route();
    case action::make_queue_pair:
        // prepare() does it itself.
        if (!link_.is_out_of_band()) {
            waiters_.run([self = shared_from_this()] { static_cast<void>(self->make_queues()); });
        }
        break;
    case action::connect: return link_.connect(own_private_data_);
    case action::accept: return link_.accept(own_private_data_);
    case action::open:
        if (link_.domain()->on().is_iwarp()) life_.runs_on_iwarp();
        next = link_.open(life_.is_passive());
        data_.set_read_depth(link_.limits().initiator_depth);
        return next;
    case action::reject: link_.reject(own_private_data_); [[fallthrough]];
    case action::stop:
        link_.stop(was_open);
        data_.give_up_built();
        break;
    case action::finish: begin_finish(); break;
    }
    return std::nullopt;
}

void connection_core::arm(lifecycle::deadline what) {
    constexpr std::chrono::seconds grace{1};
    timeout_options const& limits = options_.timeouts;
    switch (what) {
    case lifecycle::deadline::same: return;
    case lifecycle::deadline::none: return link_.disarm();
    // The connection manager has its own deadlines for these two steps and reports a more exact
    // error. The grace period lets it report first, even if it is slow.
    case lifecycle::deadline::resolve_address: return arm(bounded(limits.resolve_address) + grace);
    case lifecycle::deadline::resolve_route: return arm(bounded(limits.resolve_route) + grace);
    case lifecycle::deadline::connect: return arm(limits.connect);
    case lifecycle::deadline::disconnect: return arm(limits.disconnect);
    case lifecycle::deadline::drain: return arm(limits.drain);
    }
}

void connection_core::arm(std::chrono::milliseconds after) {
    link_.arm(after, [weak = weak_from_this()](std::uint64_t use) {
        if (auto const self = weak.lock()) self->on_deadline(use);
    });
}

void connection_core::on_deadline(std::uint64_t armed) {
    entry const inside{*this};
    if (is_shut_down_ || !link_.is_armed(armed)) return;
    if (life_.is_open()) {
        tick();
    } else {
        resume({event_kind::deadline});
    }
}

void connection_core::on_event(cm::event& e) {
    entry const inside{*this};
    if (is_shut_down_ || life_.has_ended()) return;
    link::next const what = link_.describe(e, life_.is_passive(), life_.is_open());
    if (!what) return;
    // The device may have stopped the queue pair before, because of an error.
    if (what->what == event_kind::peer_gone && life_.is_open() && link_.has_stopped())
        resume({event_kind::stopped});
    resume(*what);
}

void connection_core::on_device_event(cm::device_event const& e) {
    entry const inside{*this};
    if (is_shut_down_ || life_.has_ended()) return;
    if (link::next const what = link_.describe(e)) resume(*what);
}

void connection_core::on_queue_broken(error_code ec) {
    entry const inside{*this};
    resume({event_kind::broken, ec, 0, close_reason::transport_error});
}

// --- teardown ------------------------------------------------------------------------------------

void connection_core::check_drained() {
    bool const waits = life_.current() == lifecycle::state::disconnecting ||
                       life_.current() == lifecycle::state::draining;
    if (waits && data_.is_drained()) resume({event_kind::drained});
}

// The last steps make system calls and may run user code. So they run on the executor.
void connection_core::begin_finish() {
    waiters_.run([self = shared_from_this()] { self->order_->call([self] { self->finish(); }); });
}

void connection_core::finish() {
    operation_list arrived;
    operation_list left;
    std::shared_ptr<shared_receives> shared;
    deferred_completions told;
    boost::asio::any_io_executor work;
    bool is_destroyed = false;
    {
        guard const lock{mutex_};
        if (is_shut_down_ || life_.current() != lifecycle::state::finishing) return;
        if (is_making_queues_) {
            is_finish_late_ = true;
            return;
        }
        // The last completions: messages that have arrived must still be delivered.
        is_destroyed = link_.destroy_queue_pair([&](std::span<ibv_wc const> batch) {
            take_rest(batch, left, arrived);
        });
        if (!is_destroyed) is_queue_pair_left_ = true;
        resume({is_destroyed ? event_kind::finished : event_kind::kept});
        // No completion can arrive any more: complete the work that the device never returned.
        operation_list unheard = data_.fail_all(life_.flush_code());
        left.append(unheard);
        name_flushed(left);
        bool const is_violated = life_.failure().code == errc::peer_violation ||
                                 life_.reason() == close_reason::protocol_error;
        link_.give_back(counted(), is_violated);
        shared = link_.leave_shared();
        RCVERBS_PROBE3(
            connection_close, this, static_cast<int>(life_.reason()), life_.failure().code.value()
        );
        told = waiters_.take_completions();
        work = std::move(work_);
    }
    if (shared != nullptr) {
        shared->complete(arrived, {});
        shared->detach(is_destroyed);
    }
    if (!left.empty()) post_handlers(left);
    // `work` keeps the context running until the last handler has been called.
    order_->call([self = shared_from_this(), told = std::move(told), work = std::move(work)](
                 ) mutable { told.make(*self->order_); });
}

// Completions of a queue pair that is being destroyed, including those of unsignaled work that failed.
void connection_core::take_rest(
    std::span<ibv_wc const> batch, operation_list& done, operation_list& arrived
) {
    completion_report report = data_.retire(batch);
    if (report.failed.failed()) on_failed(report);
    done.append(report.done);
    arrived.append(report.shared);
}

}  // namespace rcverbs::detail
