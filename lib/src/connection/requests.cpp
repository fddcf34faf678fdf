// A connection's control functions and observers.
#include <boost/asio/error.hpp>

#include <cassert>

#include "connection/core.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

void connection_core::start_resolve(
    endpoint const& peer, bool and_connect, control_handler handler
) {
    RCVERBS_PROBE1(connect_begin, this);
    control_waiter waiter{std::move(handler), executor_};
    asio::any_io_executor work = tracked();
    entry const inside{*this};
    if (!add(waiters::kind::setup, waiter)) return;
    if (life_.current() == lifecycle::state::idle) {
        link_.aim(peer);
        std::swap(work_, work);
    }
    resume({and_connect ? event_kind::resolve_and_connect : event_kind::resolve});
}

void connection_core::start_establish(
    std::span<std::byte const> private_data, control_handler handler
) {
    control_waiter waiter{std::move(handler), executor_};
    entry const inside{*this};
    if (!add(waiters::kind::setup, waiter)) return;
    if (life_.current() == lifecycle::state::ready) {
        if (private_data.size() > connect_data_max)
            return waiters_.tell(waiters::kind::setup, errc::private_data_too_large);
        own_private_data_.assign(private_data.begin(), private_data.end());
    }
    resume({event_kind::connect});
}

void connection_core::start_accept(
    std::span<std::byte const> private_data, control_handler handler
) {
    control_waiter waiter{std::move(handler), executor_};
    entry const inside{*this};
    if (!add(waiters::kind::setup, waiter)) return;
    if (life_.current() == lifecycle::state::requested) {
        if (private_data.size() > accept_data_max)
            return waiters_.tell(waiters::kind::setup, errc::private_data_too_large);
        own_private_data_.assign(private_data.begin(), private_data.end());
    }
    resume({event_kind::accept});
}

error_code connection_core::reject(std::span<std::byte const> private_data) {
    entry const inside{*this};
    if (life_.current() != lifecycle::state::requested) return errc::not_connected;
    if (private_data.size() > reject_data_max) return errc::private_data_too_large;
    own_private_data_.assign(private_data.begin(), private_data.end());
    resume({event_kind::reject});
    return {};
}

queue_pair_address connection_core::prepare(
    std::string const& device, verbs::wanted_address const& wanted, error_code& ec
) {
    {
        asio::any_io_executor work = tracked();
        entry const inside{*this};
        if (life_.current() != lifecycle::state::idle) {
            ec = errc::already_connected;
            return {};
        }
        std::swap(work_, work);
        link_.aim(device, wanted);
        resume({event_kind::prepare});
    }
    static_cast<void>(make_queues());
    return seen([&] {
        ec = life_.failure().code;
        return link_.own_address();
    });
}

error_code connection_core::establish(queue_pair_address const& peer) {
    entry const inside{*this};
    if (life_.current() != lifecycle::state::ready || !link_.is_out_of_band())
        return errc::not_connected;
    link_.aim(peer);
    resume({event_kind::establish});
    return life_.failure().code;
}

void connection_core::start_disconnect(control_handler handler) {
    control_waiter waiter{std::move(handler), executor_};
    entry const inside{*this};
    if (add(waiters::kind::disconnect, waiter)) resume({event_kind::disconnect});
}

void connection_core::start_wait(control_handler handler) {
    control_waiter waiter{std::move(handler), executor_};
    entry const inside{*this};
    if (add(waiters::kind::end, waiter) && life_.has_ended())
        waiters_.tell(waiters::kind::end, life_.end_code());
}

void connection_core::call_at_end(std::function<void()> of_layer) {
    entry const inside{*this};
    waiters_.add_layer(std::move(of_layer));
    if (life_.has_ended()) waiters_.tell_layers();
}

void connection_core::close() noexcept {
    entry const inside{*this};
    if (!is_shut_down_) resume({event_kind::close});
}

void connection_core::close_for(error_code violation) noexcept {
    entry const inside{*this};
    if (!is_shut_down_) resume({event_kind::violated, violation});
}

bool connection_core::add(waiters::kind of, control_waiter& waiter) {
    assert(!is_context_gone_ && "an operation was started after its io_context had been destroyed");
    return waiters_.add(
        of,
        waiter,
        [weak = weak_from_this(
         )](waiters::kind cancelled, std::uint64_t serial, asio::cancellation_type type) {
            if (auto const self = weak.lock()) self->cancel(cancelled, serial, type);
        }
    );
}

void connection_core::cancel(waiters::kind of, std::uint64_t serial, asio::cancellation_type type) {
    entry const inside{*this};
    // After completion a cancellation has no effect.
    if (!waiters_.is_waiting(of, serial) || type == asio::cancellation_type::none) return;
    if (of == waiters::kind::end) {
        waiters_.tell(of, asio::error::operation_aborted);
    } else if ((type & asio::cancellation_type::terminal) != asio::cancellation_type::none) {
        resume({event_kind::close});
    }
}

// --- observers -----------------------------------------------------------------------------------

data_phase connection_core::phase() const noexcept {
    if (!life_.is_live() || !link_.queue_pair().is_open()) return data_phase::closed;
    if (life_.is_open()) return data_phase::open;
    return life_.is_joining() ? data_phase::joining : data_phase::receiving;
}

link::listener connection_core::listener() {
    auto const self = shared_from_this();
    return {self, self, executor_, order_};
}

failure connection_core::present_failure() const {
    lifecycle::cause const& why = life_.failure();
    if (!why.code) return {{}, {}, {}, 0, life_.reason()};
    return {why.where, why.code, link_.peer(), why.status, life_.reason()};
}

connection_statistics connection_core::counted() const noexcept {
    connection_statistics now = data_.statistics();
    now.keepalives_sent = keepalives_sent_;
    link_.completions().read(now);
    return now;
}

std::optional<std::chrono::milliseconds> connection_core::keepalive_interval() const {
    return seen([this] { return keepalive_interval_; });
}

std::uint32_t connection_core::queue_pair_number() const {
    return seen([this] {
        ibv_qp const* const qp = link_.queue_pair().get();
        return qp != nullptr ? qp->qp_num : 0;
    });
}

std::shared_ptr<window_core> connection_core::make_window(error_code& ec) {
    std::shared_ptr<verbs::domain> const domain =
        seen([this] { return link_.queue_pair().is_open() ? link_.domain() : nullptr; });
    if (domain == nullptr) {
        ec = errc::not_connected;
        return nullptr;
    }
    verbs::memory_window made{domain, &data_, ec};
    if (ec) return nullptr;
    auto core = std::make_shared<window_core>(shared_from_this(), std::move(made));
    guard const lock{mutex_};
    if (link_.queue_pair().is_open()) {
        link_.add_window(core->window);
    } else {
        static_cast<void>(core->window.release());
    }
    return core;
}

void connection_core::drop_window(verbs::memory_window& window) noexcept {
    // Freed without the lock, because that is a system call.
    verbs::memory_window::handle freed;
    guard const lock{mutex_};
    freed = link_.drop_window(window);
}

error_code connection_core::set_remote_access(access_flags rights) {
    constexpr access_flags remote_all =
        access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;
    if (!allows(remote_all, rights)) return errc::invalid_option;
    entry const inside{*this};
    if (!life_.is_live() || !link_.queue_pair().is_open()) return errc::not_connected;
    // The peer can use an accepted queue pair before the established event arrives here.
    bool const is_now = life_.is_open() || life_.current() == lifecycle::state::accepting;
    error_code const ec = link_.set_remote_access(rights, is_now);
    // A queue pair that the device has stopped has no rights to change.
    return ec && link_.has_stopped() ? make_error_code(errc::not_connected) : ec;
}

}  // namespace rcverbs::detail
