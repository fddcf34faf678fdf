// The ways in: what the setup machines decide becomes calls of the connection manager, and its events become theirs.
#include <algorithm>
#include <random>

#include "connection/core.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

// --- the active side's way in --------------------------------------------------------------------------------

void connection_core::start_resolve(endpoint const& peer, bool and_connect, control_handler handler) {
    guard lock{mutex_};
    if (!set_waiter(setup_waiter_, handler, false)) return make_calls(lock);
    auto* const machine = std::get_if<connect>(&setup_);
    if (machine == nullptr || machine->current() != connect::state::idle || !is_live()) {
        calls_.complete(setup_waiter_, errc::already_connected);
        return make_calls(lock);
    }
    peer_ = peer;
    connects_at_once_ = and_connect;
    resume(connect::event::resolve);
    make_calls(lock);
}

void connection_core::start_establish(std::span<std::byte const> private_data, control_handler handler) {
    guard lock{mutex_};
    if (!set_waiter(setup_waiter_, handler, false)) return make_calls(lock);
    auto* const machine = std::get_if<connect>(&setup_);
    if (machine == nullptr || machine->current() != connect::state::ready || !is_live()) {
        calls_.complete(setup_waiter_, errc::not_connected);
    } else if (private_data.size() > connect_data_max) {
        calls_.complete(setup_waiter_, errc::private_data_too_large);
    } else {
        own_private_data_.assign(private_data.begin(), private_data.end());
        resume(connect::event::connect);
    }
    make_calls(lock);
}

void connection_core::resume(connect::event e, error_code ec, int status) {
    auto* const machine = std::get_if<connect>(&setup_);
    if (machine == nullptr) return;
    connect::state const before = machine->current();
    switch (machine->resume(e)) {
    case connect::action::resolve_address: {
        id_ = registry_.channel().make_id(ec);
        if (ec) return perform(step::open, ec);
        id_->set_sink(weak_from_this());
        // The connection manager has the deadline, too, and knows better what is wrong: it goes first.
        arm(options_.resolve_address_deadline * 9 / 8);
        asio::ip::address const* const from = options_.bind_address ? &*options_.bind_address : nullptr;
        return perform(
            step::resolve_address, id_->resolve_address(from, peer_, options_.resolve_address_deadline)
        );
    }
    case connect::action::resolve_route:
        notify_step(step::resolve_address);
        arm(options_.resolve_route_deadline * 9 / 8);
        return perform(step::resolve_route, id_->resolve_route(options_.resolve_route_deadline));
    case connect::action::make_queue_pair:
        notify_step(step::resolve_route);
        disarm();
        make_id_queue_pair(ec);
        perform(step::create_queue_pair, ec);
        if (!ec) resume(connect::event::queue_pair_made);
        return;
    case connect::action::report_ready:
        if (connects_at_once_) return resume(connect::event::connect);
        calls_.complete(setup_waiter_, {});
        return;
    case connect::action::connect:
        arm(options_.connect_deadline);
        return perform(step::connect, id_->connect(parameters(own_private_data_)));
    case connect::action::report_established: return established(step::connect);
    case connect::action::report_failure: {
        step const where = before == connect::state::resolving_address ? step::resolve_address
                           : before == connect::state::resolving_route ? step::resolve_route
                           : before == connect::state::making_queue_pair ? step::create_queue_pair
                                                                         : step::connect;
        note(where, ec, status, ec == errc::timed_out ? close_reason::timed_out : close_reason::refused);
        return setup_failed(ec);
    }
    case connect::action::none:
    case connect::action::illegal: return;
    }
}

// --- the passive side's way in -------------------------------------------------------------------------------

void connection_core::start_accept(std::span<std::byte const> private_data, control_handler handler) {
    guard lock{mutex_};
    if (!set_waiter(setup_waiter_, handler, false)) return make_calls(lock);
    auto* const machine = std::get_if<accept>(&setup_);
    if (machine == nullptr || machine->current() != accept::state::requested || !is_live()) {
        calls_.complete(setup_waiter_, failure_.code ? failure_.code : make_error_code(errc::not_connected));
    } else if (private_data.size() > accept_data_max) {
        calls_.complete(setup_waiter_, errc::private_data_too_large);
    } else {
        own_private_data_.assign(private_data.begin(), private_data.end());
        resume(accept::event::accept);
    }
    make_calls(lock);
}

error_code connection_core::reject(std::span<std::byte const> private_data) {
    guard lock{mutex_};
    auto* const machine = std::get_if<accept>(&setup_);
    if (machine == nullptr || machine->current() != accept::state::requested || !is_live()) {
        return errc::not_connected;
    }
    if (private_data.size() > reject_data_max) return errc::private_data_too_large;
    own_private_data_.assign(private_data.begin(), private_data.end());
    resume(accept::event::reject);
    make_calls(lock);
    return {};
}

void connection_core::resume(accept::event e, error_code ec, int status) {
    auto* const machine = std::get_if<accept>(&setup_);
    if (machine == nullptr) return;
    switch (machine->resume(e)) {
    case accept::action::accept:
        arm(options_.connect_deadline);
        ec = id_->accept(parameters(own_private_data_));
        // From here on the peer may send. It has to be told a sensible delay if it finds no receive: the connection
        // manager leaves 0 in the queue pair, which stands for 655 ms.
        if (!ec) ec = qp_.set_min_rnr_timer(verbs::encode_rnr_timer(options_.min_rnr_timer));
        return perform(step::accept, ec);
    case accept::action::reject:
        static_cast<void>(id_->reject(own_private_data_));
        note(step::accept, {}, 0, close_reason::refused);
        return resume(teardown::event::close);
    case accept::action::report_established: return established(step::accept);
    case accept::action::report_failure:
        note(step::accept, ec, status, ec == errc::timed_out ? close_reason::timed_out : close_reason::refused);
        return setup_failed(ec);
    case accept::action::none:
    case accept::action::illegal: return;
    }
}

// --- both sides' way in --------------------------------------------------------------------------------------

// Takes the result of a C call of a setup step: a failure ends the setup.
void connection_core::perform(step s, error_code ec) {
    if (!ec) return;
    // These two are how the kernel says that the way to that address has no RDMA device on it.
    if ((s == step::resolve_address || s == step::resolve_route) &&
        ec == boost::system::errc::no_such_device) {
        note(s, no_device(), -ec.value(), close_reason::refused);
        ec = no_device();
    }
    note(s, ec, 0, close_reason::refused);
    fail_setup(ec);
}

// What it means that there is no device that leads to the peer.
errc connection_core::no_device() const noexcept {
    return peer_.is_infiniband() ? errc::address_family_unsupported : errc::no_rdma_device;
}

void connection_core::fail_setup(error_code ec, int status) {
    if (std::holds_alternative<connect>(setup_)) {
        resume(connect::event::error, ec, status);
    } else {
        resume(accept::event::error, ec, status);
    }
}

// Whatever the connection was doing, its device or a queue of it failed.
void connection_core::break_down(errc why, int status, close_reason reason) {
    note(step::transfer, why, status, reason);
    fail_setup(why, status);
    resume(teardown::event::broken);
}

void connection_core::setup_failed(error_code ec) {
    calls_.complete(setup_waiter_, ec);
    resume(teardown::event::close);
}

// On the device that the connection manager has found.
void connection_core::make_id_queue_pair(error_code& ec) {
    local_ = id_->local();
    peer_ = id_->peer();
    port_ = id_->port();
    make_queue_pair(id_->device(), ec);
}

void connection_core::make_queue_pair(ibv_context* on, error_code& ec) {
    if (options_.domain.is_open()) {
        domain_ = options_.domain.impl();
        if (domain_->on().context() != on) ec = errc::foreign_domain;
    } else if (options_.private_domain) {
        verbs::device device = verbs::device::borrow(on, ec);
        if (!ec) domain_ = verbs::domain::create(std::move(device), ec);
    } else {
        domain_ = registry_.channel().shared_domain(on, ec);
    }
    if (ec) return;
    if (options_.shared_receives.is_valid()) {
        std::shared_ptr<shared_receives> const& queue = options_.shared_receives.queue();
        queue->attach(domain_, ec);
        if (ec) return;
        shared_ = queue;
    }
    device_limits const& device = domain_->on().limits();
    // Both queues complete into one.
    std::uint32_t const depth_max = std::min(device.queue_depth_max, device.completion_queue_depth_max / 2);
    verbs::queue_sizes sizes{
        std::min(options_.send_queue_depth, depth_max),
        shared_ != nullptr ? 0 : std::min(options_.receive_queue_depth, depth_max),
        std::min(options_.send_segments_max, device.segments_max),
        std::min(options_.receive_segments_max, device.segments_max),
        options_.inline_bytes_max,
        shared_ != nullptr ? shared_->get() : nullptr};
    std::uint32_t const receives = shared_ != nullptr ? shared_->depth() : sizes.receive_depth;
    limits_ = {sizes.send_depth,
               receives,
               std::min<std::uint32_t>(options_.initiator_depth, device.initiator_depth_max),
               std::min<std::uint32_t>(options_.responder_resources, device.responder_resources_max),
               sizes.send_segments,
               sizes.receive_segments,
               0,
               device.message_bytes_max};
    std::uint32_t const completions = sizes.send_depth + receives;
    // Everything that can be in the completion queue at a time fits: it cannot overflow.
    verbs::completion_queue queue{on, completions, ec};
    if (ec) return;
    if (options_.progress == progress_on::context) ec = registry_.descriptors().add(queue.descriptor());
    if (ec) return;
    auto const others = options_.shared_poller.is_open() ? progress::company::shared : progress::company::alone;
    auto source = std::make_shared<progress::completion_source>(executor_, options_.polling, others, std::move(queue));
    {
        auto const channel = registry_.channel().lock();
        qp_ = verbs::queue_pair{is_out_of_band_ ? nullptr : id_->raw(), domain_->get(), source->queue().get(), sizes, ec};
    }
    if (ec) return;
    limits_.inline_bytes_max = sizes.inline_bytes;
    if (!is_out_of_band_) ec = id_->set_ack_timeout(verbs::encode_ack_timeout(options_.ack_timeout));
    if (!ec && device.has_atomics && limits_.initiator_depth > 0) {
        std::size_t const results = sizes.send_depth * sizeof(std::uint64_t);
        atomic_results_ = std::make_shared<buffer>(protection_domain{domain_}, results, access_flags::local_write, ec);
    }
    data_ = data_path{
        {sizes, options_.waiting_operations_max, device.message_bytes_max, shared_.get()},
        atomic_results_ != nullptr ? atomic_results_->slice() : local_slice{}};
    if (!ec) registry_.channel().watch(on, std::shared_ptr<cm::device_event_sink>{shared_from_this(), this}, ec);
    source_ = std::move(source);
    poll_counters_ = source_->counters();
    source_->start(std::shared_ptr<progress::completion_sink>{shared_from_this(), this});
}

// --- without the connection manager --------------------------------------------------------------------------

queue_pair_address connection_core::prepare(
    std::string const& device, std::optional<std::uint8_t> gid_index, error_code& ec
) {
    guard lock{mutex_};
    auto* const machine = std::get_if<connect>(&setup_);
    if (machine == nullptr || machine->current() != connect::state::idle || !is_live()) {
        ec = errc::already_connected;
        return {};
    }
    // The way of the connecting side, in one go: there is nobody to be asked.
    for (auto const e : {connect::event::resolve, connect::event::address_resolved, connect::event::route_resolved}) {
        static_cast<void>(machine->resume(e));
    }
    is_out_of_band_ = true;
    ibv_context* const on = registry_.channel().find_device(device, ec);
    if (!ec) port_address_ = verbs::find_address(on, gid_index, ec);
    if (!ec) id_ = registry_.channel().make_id(ec);
    if (!ec) make_queue_pair(on, ec);
    if (!ec) ec = qp_.initialise(static_cast<std::uint8_t>(port_));
    if (ec) {
        perform(step::create_queue_pair, ec);
    } else {
        static_cast<void>(machine->resume(connect::event::queue_pair_made));
        own_address_ = {
            qp_.get()->qp_num,
            std::random_device{}() & 0xFFFFFFU,
            port_address_.gid,
            port_address_.lid,
            port_address_.mtu,
            static_cast<std::uint8_t>(limits_.initiator_depth),
            static_cast<std::uint8_t>(limits_.responder_resources),
            options_.rnr_retry_count};
        pump();
    }
    queue_pair_address const own = own_address_;
    make_calls(lock);
    return own;
}

error_code connection_core::establish(queue_pair_address const& peer) {
    guard lock{mutex_};
    auto* const machine = std::get_if<connect>(&setup_);
    bool const is_due = machine != nullptr && machine->current() == connect::state::ready && is_live();
    if (!is_due || !is_out_of_band_) return errc::not_connected;
    static_cast<void>(machine->resume(connect::event::connect));
    error_code const ec = qp_.connect(
        own_address_, peer,
        {static_cast<std::uint8_t>(port_), port_address_.gid_index, static_cast<std::uint8_t>(limits_.initiator_depth),
         static_cast<std::uint8_t>(limits_.responder_resources), verbs::encode_ack_timeout(options_.ack_timeout),
         options_.retry_count, verbs::encode_rnr_timer(options_.min_rnr_timer)}
    );
    if (ec) {
        perform(step::connect, ec);
    } else {
        resume(connect::event::established);
    }
    make_calls(lock);
    return ec;
}

cm::connection_parameters connection_core::parameters(std::span<std::byte const> private_data) const noexcept {
    return {static_cast<std::uint8_t>(limits_.initiator_depth),
            static_cast<std::uint8_t>(limits_.responder_resources),
            options_.retry_count,
            options_.rnr_retry_count,
            private_data};
}

void connection_core::established(step s) {
    if (!is_live()) return;  // it has ended before it began
    disarm();
    error_code ec;
    if (s == step::connect) ec = qp_.set_min_rnr_timer(verbs::encode_rnr_timer(options_.min_rnr_timer));
    verbs::read_depths depths;
    if (!ec) depths = qp_.query_depths(ec);
    if (ec) {
        // The peer may have gone already, and the queue pair with it.
        note(s, ec, 0, close_reason::transport_error);
        calls_.complete(setup_waiter_, ec);
        return resume(teardown::event::broken);
    }
    limits_.initiator_depth = depths.initiator;
    limits_.responder_resources = depths.responder;
    data_.set_read_depth(depths.initiator);
    is_open_ = true;
    for (auto const kind : {operation_kind::send, operation_kind::send_with_immediate, operation_kind::send_with_invalidate,
                            operation_kind::write, operation_kind::write_with_immediate, operation_kind::read,
                            operation_kind::fetch_add, operation_kind::compare_swap}) {
        request probe;
        probe.kind = kind;
        if (refusal(probe) == errc{}) kinds_ |= 1U << static_cast<unsigned>(kind);
    }
    pump();
    notify_step(s);
    calls_.complete(setup_waiter_, {});
}

// --- what the connection manager and the device say ----------------------------------------------------------

void connection_core::on_event(cm::event& e) {
    guard lock{mutex_};
    if (is_shut_down_ || has_finished_) return;
    error_code const code{e.type, connection_manager_category()};
    bool const is_active = std::holds_alternative<connect>(setup_);
    auto const setup_error = [&](error_code ec) { fail_setup(ec, e.status); };
    switch (e.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED: resume(connect::event::address_resolved); break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED: resume(connect::event::route_resolved); break;
    case RDMA_CM_EVENT_ESTABLISHED:
        if (is_active) {
            peer_private_data_ = std::move(e.private_data);
            resume(connect::event::established);
        } else {
            resume(accept::event::established);
        }
        break;
    case RDMA_CM_EVENT_REJECTED:
        peer_private_data_ = std::move(e.private_data);
        setup_error({1000 + e.status, connection_manager_category()});
        break;
    case RDMA_CM_EVENT_ADDR_ERROR:
        setup_error(e.status == -ENODEV ? make_error_code(no_device()) : code);
        break;
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE: setup_error(code); break;
    case RDMA_CM_EVENT_DISCONNECTED:
        if (!is_open_ && is_live()) {
            setup_error(errc::peer_disconnected);
        } else {
            if (is_live()) note(step::transfer, errc::peer_disconnected, e.status, close_reason::peer_disconnected);
            resume(teardown::event::peer_disconnected);
        }
        break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        break_down(errc::device_removed, e.status, close_reason::device_gone);
        break;
    default: break;  // nothing that changes anything for a reliable connection
    }
    make_calls(lock);
}

void connection_core::on_device_event(cm::device_event const& e) {
    using kind = cm::device_event::kind;
    guard lock{mutex_};
    if (is_shut_down_ || has_finished_ || source_ == nullptr) return;
    bool const is_ours = qp_.is_open() && e.object == qp_.get() && e.number == qp_.get()->qp_num;
    switch (e.what) {
    case kind::queue_pair_failed:
        if (is_ours) break_down(errc::queue_pair_failed, e.type, close_reason::transport_error);
        break;
    case kind::peer_violation:
        if (is_ours) break_down(errc::peer_violation, e.type, close_reason::transport_error);
        break;
    case kind::completion_queue_failed:
        if (e.object == source_->queue().get()) {
            break_down(errc::completion_queue_broken, e.type, close_reason::transport_error);
        }
        break;
    case kind::shared_queue_failed:
        if (shared_ != nullptr && e.object == shared_->get()) {
            break_down(errc::queue_pair_failed, e.type, close_reason::transport_error);
        }
        break;
    case kind::port_down:
        if (options_.ends_on_port_down && e.number == port_) {
            break_down(errc::port_down, e.type, close_reason::device_gone);
        }
        break;
    case kind::addresses_changed:
        // The event says no more than that some address came or went.
        if (e.number == port_ && qp_.is_open() && !qp_.goes_by(is_out_of_band_ ? port_address_.gid.data() : id_->source_gid())) {
            break_down(errc::address_gone, e.type, close_reason::device_gone);
        }
        break;
    case kind::device_failed: break_down(errc::device_removed, e.type, close_reason::device_gone); break;
    }
    make_calls(lock);
}

}  // namespace rcverbs::detail
