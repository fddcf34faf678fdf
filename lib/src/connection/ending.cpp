// The way out, and the deadlines on every way: what the teardown machine decides becomes calls, in the order that gives
// memory back only when the device has let go of it.
#include <boost/asio/post.hpp>

#include <array>

#include "connection/core.hpp"
#include "connection/quarantine.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

// --- whether it still lives --------------------------------------------------------------------------------------

machines::liveness::view connection_core::view() const noexcept {
    return {data_.is_sending(), data_.oldest_send(), data_.completed()};
}

void connection_core::watch() {
    if (!is_open_ || !(liveness_.looks_always() || data_.is_sending())) return;
    is_watching_ = true;
    if (!liveness_.looks()) return;
    liveness_.begin(view());
    arm(liveness_.period());
}

void connection_core::look() {
    is_watching_ = liveness_.looks_always() || data_.is_sending();
    if (!is_watching_) return;
    switch (liveness_.look(view())) {
    case machines::liveness::action::stalled: return give_up(errc::stalled);
    case machines::liveness::action::idle: return give_up(errc::idle);
    case machines::liveness::action::send_keepalive: send_keepalive(); break;
    case machines::liveness::action::ring_again:
        if (domain_->on().forgets_posted_work()) qp_.ring_again();
        break;
    case machines::liveness::action::none: break;
    }
    if (is_live()) arm(liveness_.period());
}

void connection_core::give_up(errc why) {
    note(step::transfer, why, 0, close_reason::timed_out);
    resume(teardown::event::broken);
}

// A write of nothing: the peer's device answers it, its program sees nothing of it, and no key is looked at. Source:
// InfiniBand specification, C9-88.
void connection_core::send_keepalive() {
    request nothing;
    nothing.kind = operation_kind::write;
    if (!data_.is_plain(nothing)) return;
    operation* const op = data_.take_free();
    if (op == nullptr) return;
    // Waited for, so that it asks for a completion.
    op->emplace<bytes_result>([](error_code, std::size_t) {}, executor_);
    data_.start_plain(*op, nothing);
    ++keepalives_sent_;
    pump();
}

// --- the way out ---------------------------------------------------------------------------------------------

void connection_core::start_disconnect(control_handler handler) {
    guard lock{mutex_};
    if (!set_waiter(disconnect_waiter_, handler, false)) return make_calls(lock);
    if (!is_open_ || !is_live()) {
        // One that is ending already is waited for.
        if (has_finished_) calls_.complete(disconnect_waiter_, end_code());
        else if (is_live()) calls_.complete(disconnect_waiter_, errc::not_connected);
        return make_calls(lock);
    }
    note(step::disconnect, {}, 0, close_reason::closed_locally);
    // There is nobody to answer where there is no connection manager.
    resume(is_out_of_band_ ? teardown::event::close : teardown::event::disconnect);
    make_calls(lock);
}

void connection_core::start_wait(control_handler handler) {
    guard lock{mutex_};
    if (!set_waiter(end_waiter_, handler, true)) return make_calls(lock);
    if (has_finished_) calls_.complete(end_waiter_, end_code());
    make_calls(lock);
}

void connection_core::close() noexcept {
    guard lock{mutex_};
    if (is_shut_down_) return;
    note(step::disconnect, {}, 0, close_reason::closed_locally);
    // An orderly end that is cut short was none.
    if (!has_finished_) calls_.complete(disconnect_waiter_, asio::error::operation_aborted);
    if (setup_waiter_) {
        if (std::holds_alternative<connect>(setup_)) {
            resume(connect::event::abort, asio::error::operation_aborted);
        } else {
            resume(accept::event::abort, asio::error::operation_aborted);
        }
    } else if (auto* const machine = std::get_if<accept>(&setup_);
               machine != nullptr && machine->current() == accept::state::requested) {
        resume(accept::event::abort);
    }
    resume(teardown::event::close);
    make_calls(lock);
}

void connection_core::fail(failure what, close_reason reason) {
    guard lock{mutex_};
    if (is_shut_down_) return;
    note(what.where, what.code, what.status, reason);
    resume(teardown::event::close);
    make_calls(lock);
}

void connection_core::resume(teardown::event e) {
    switch (teardown_.resume(e)) {
    case teardown::action::stop:
        stop();
        return check_drained();
    case teardown::action::drain:
        arm(options_.drain_deadline);
        return check_drained();
    case teardown::action::finish:
    case teardown::action::give_up: return begin_finish();
    case teardown::action::none:
    case teardown::action::illegal: return;
    }
}

void connection_core::stop() {
    bool const was_open = std::exchange(is_open_, false);
    data_.take_back_built();
    bool const waits_for_peer = teardown_.current() == teardown::state::disconnecting;
    if (was_open && !is_out_of_band_) static_cast<void>(id_->disconnect());
    // librdmacm's disconnect does this, too, but not where nothing was connected; it does no harm twice.
    if (qp_.is_open()) static_cast<void>(qp_.break_off());
    arm(waits_for_peer ? options_.disconnect_deadline : options_.drain_deadline);
}

void connection_core::check_drained() {
    if (!is_live() && data_.is_drained()) resume(teardown::event::drained);
}

// The last steps take system calls and may run user code: not here, but on the executor, after the completion source
// has come to rest there.
void connection_core::begin_finish() {
    disarm();
    calls_.run([self = shared_from_this()] {
        std::shared_ptr<progress::completion_source> source;
        {
            guard const lock{self->mutex_};
            source = self->source_;
        }
        if (source != nullptr) {
            source->stop([self] { self->finish(); });
        } else {
            asio::post(self->executor_, [self] { self->finish(); });
        }
    });
}

void connection_core::finish() {
    guard lock{mutex_};
    if (is_shut_down_ || has_finished_) return;
    // What peers have sent is theirs, though this connection ends: devices may forget it with the queue pair.
    operation_list arrived;
    operation_list left = take_rest(arrived);
    error_code destroyed;
    if (qp_.is_open()) {
        auto const channel = registry_.channel().lock();
        destroyed = qp_.destroy();
    }
    if (destroyed) {
        // The device may still use the memory, so nothing of it is given back.
        // Whatever ended the connection, this is worse: nobody may take it for a good end.
        reason_ = close_reason::transport_error;
        failure_ = {step::drain, errc::not_drained, peer_, 0};
        keep_for_ever({source_, domain_, atomic_results_});
    } else if (source_ != nullptr) {
        static_cast<void>(source_->queue().destroy());
    }
    // Once its queue pair is destroyed the device has let go of everything, even of what it never returned.
    error_code const rest = destroyed ? make_error_code(errc::not_drained) : flush_error();
    operation_list unheard = data_.fail_all(rest, flush_error());
    left.append(unheard);
    name_flushed(left);
    source_.reset();
    atomic_results_.reset();
    id_.reset();
    place_.reset();
    has_finished_ = true;
    is_open_ = false;
    error_code const code = end_code();
    calls_.complete(setup_waiter_, code ? code : asio::error::operation_aborted);
    calls_.complete(disconnect_waiter_, code);
    calls_.complete(end_waiter_, code);
    calls made = std::exchange(calls_, {});
    std::shared_ptr<shared_receives> const shared = std::move(shared_);
    lock.unlock();
    if (shared != nullptr) {
        shared->complete(arrived, {});
        // One that could not be destroyed may still take from it.
        if (!destroyed) shared->detach();
    }
    if (!left.empty()) post_handlers(left);
    // The io_context's work ends when the last handler has been called.
    asio::post(
        executor_,
        [self = shared_from_this(), made = std::move(made), work = std::move(work_)]() mutable {
            made.make(self->executor_);
        }
    );
}

// What the device has said, and nobody has heard yet: also of work that had asked for no completion, and failed.
operation_list connection_core::take_rest(operation_list& arrived) noexcept {
    operation_list done;
    if (source_ == nullptr) return done;
    std::array<ibv_wc, 16> batch;
    for (int count = 0; (count = source_->queue().poll(batch)) > 0;) {
        completion_report report = data_.retire(std::span{batch}.first(static_cast<std::size_t>(count)));
        if (report.failed.failed()) on_failed(report);
        done.append(report.done);
        arrived.append(report.shared);
    }
    return done;
}

// What waiting for the end reports: an end by either side's disconnect is none of its business.
error_code connection_core::end_code() const noexcept {
    switch (reason_) {
    case close_reason::closed_locally:
    case close_reason::peer_disconnected:
    case close_reason::completed: return {};
    default: return failure_.code;
    }
}

// --- deadlines -----------------------------------------------------------------------------------------------

void connection_core::arm(std::chrono::milliseconds deadline) {
    std::uint64_t const use = ++timer_use_;
    timer_->expires_after(deadline);
    timer_->async_wait([weak = weak_from_this(), use](error_code const& ec) {
        auto const self = weak.lock();
        if (!ec && self != nullptr) self->on_deadline(use);
    });
}

void connection_core::disarm() noexcept {
    ++timer_use_;
    timer_->cancel();
}

void connection_core::on_deadline(std::uint64_t armed) {
    guard lock{mutex_};
    if (is_shut_down_ || has_finished_ || armed != timer_use_) return;
    if (!is_live()) {
        if (teardown_.current() != teardown::state::draining) {
            reason_ = close_reason::timed_out;
            failure_ = {step::disconnect, errc::timed_out, peer_, 0};
        }
        resume(teardown::event::deadline);
    } else if (is_open_) {
        look();
    } else if (std::holds_alternative<connect>(setup_)) {
        resume(connect::event::deadline, errc::timed_out);
    } else {
        resume(accept::event::deadline, errc::timed_out);
    }
    make_calls(lock);
}

// The first one counts: what follows from it would only hide it.
void connection_core::note(step where, error_code ec, int status, close_reason reason) {
    if (reason_ == close_reason::open) reason_ = reason;
    if (ec && !failure_.code && reason_ == reason) failure_ = {where, ec, peer_, status};
}

}  // namespace rcverbs::detail
