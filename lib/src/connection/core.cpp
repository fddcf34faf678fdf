// This file is long because it is one thing: the one place where a connection's events become actions. What is decided,
// the machines decide; what is posted, data_path knows.
#include "connection/core.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>

#include <algorithm>
#include <array>

#include "connection/quarantine.hpp"
#include "verbs/errno_map.hpp"
#include "verbs/region_record.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

// The connection manager's fields. Source: rdma_connect(3), rdma_accept(3), rdma_reject(3); measured.
constexpr std::size_t connect_data_max = 56;
constexpr std::size_t accept_data_max = 196;
constexpr std::size_t reject_data_max = 148;

// How many looks at the oldest posted work make up the stall timeout: it is noticed at most one look late.
constexpr int stall_looks = 8;

bool is_positive(std::chrono::milliseconds d) noexcept { return d > std::chrono::milliseconds{0}; }

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

error_code validate(connection_options const& o) noexcept {
    using std::chrono::nanoseconds;
    bool const deadlines = is_positive(o.resolve_address_deadline) && is_positive(o.resolve_route_deadline) &&
                           is_positive(o.connect_deadline) && is_positive(o.disconnect_deadline) &&
                           is_positive(o.drain_deadline) && o.stall_timeout >= std::chrono::milliseconds{0};
    bool const counts = o.rnr_retry_count <= 7 && o.retry_count <= 6 && o.send_queue_depth > 0 &&
                        o.receive_queue_depth > 0 && o.send_segments_max > 0 && o.receive_segments_max > 0;
    bool const times = o.ack_timeout >= nanoseconds{4096} && o.ack_timeout <= std::chrono::seconds{8800} &&
                       o.min_rnr_timer >= std::chrono::microseconds{10} &&
                       o.min_rnr_timer <= std::chrono::microseconds{655360} &&
                       o.polling.spin >= nanoseconds{0};
    bool const placement = (o.progress == progress_on::poller || !o.shared_poller.is_open()) &&
                           !(o.private_domain && o.shared_receives.is_valid());
    return deadlines && counts && times && placement ? error_code{} : make_error_code(errc::invalid_option);
}

// --- making and unmaking -----------------------------------------------------------------------------------------

connection_core::connection_core(asio::io_context& context, connection_options options)
    : context_{context},
      registry_{asio::use_service<registry>(context)},
      work_{context.get_executor()},
      options_{std::move(options)},
      poller_{poller_for(registry_, options_)},
      executor_{executor_for(context, options_, poller_.get())},
      timer_{context} {}

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
    asio::io_context& context, connection_options options, cm::event request, error_code& ec
) {
    std::shared_ptr<connection_core> core = make(context, std::move(options));
    guard lock{core->mutex_};
    core->setup_.emplace<accept>();
    core->id_ = std::move(request.incoming);
    core->id_->set_sink(core);
    core->peer_private_data_ = std::move(request.private_data);
    core->make_queue_pair(ec);
    // The peer's request bounds what is worth asking for: more would be refused or wasted.
    core->limits_.initiator_depth = std::min<std::uint32_t>(core->limits_.initiator_depth, request.initiator_depth);
    core->limits_.responder_resources =
        std::min<std::uint32_t>(core->limits_.responder_resources, request.responder_resources);
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
        make_queue_pair(ec);
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
        note(s, errc::no_rdma_device, -ec.value(), close_reason::refused);
        ec = errc::no_rdma_device;
    }
    note(s, ec, 0, close_reason::refused);
    if (std::holds_alternative<connect>(setup_)) {
        resume(connect::event::error, ec);
    } else {
        resume(accept::event::error, ec);
    }
}

void connection_core::setup_failed(error_code ec) {
    calls_.complete(setup_waiter_, ec);
    resume(teardown::event::close);
}

void connection_core::make_queue_pair(error_code& ec) {
    local_ = id_->local();
    peer_ = id_->peer();
    if (options_.private_domain) {
        verbs::device device = verbs::device::borrow(id_->device(), ec);
        if (!ec) domain_ = verbs::domain::create(std::move(device), ec);
    } else {
        domain_ = registry_.channel().shared_domain(id_->device(), ec);
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
    verbs::completion_queue queue{id_->device(), completions, ec};
    if (ec) return;
    auto source = std::make_shared<progress::completion_source>(executor_, options_.polling, std::move(queue));
    {
        auto const channel = registry_.channel().lock();
        qp_ = verbs::queue_pair{id_->raw(), domain_->get(), source->queue().get(), sizes, ec};
    }
    if (ec) return;
    limits_.inline_bytes_max = sizes.inline_bytes;
    ec = id_->set_ack_timeout(verbs::encode_ack_timeout(options_.ack_timeout));
    if (!ec && device.has_atomics && limits_.initiator_depth > 0) {
        std::size_t const results = sizes.send_depth * sizeof(std::uint64_t);
        atomic_results_ = std::make_shared<buffer>(protection_domain{domain_}, results, access_flags::local_write, ec);
    }
    data_ = data_path{
        {sizes, options_.waiting_operations_max, device.message_bytes_max, shared_.get()},
        atomic_results_ != nullptr ? atomic_results_->slice() : local_slice{}};
    source_ = std::move(source);
    poll_counters_ = source_->counters();
    source_->start(std::shared_ptr<progress::completion_sink>{shared_from_this(), this});
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

// --- what the connection manager says ------------------------------------------------------------------------

void connection_core::on_event(cm::event& e) {
    guard lock{mutex_};
    if (is_shut_down_ || has_finished_) return;
    error_code const code{e.type, connection_manager_category()};
    bool const is_active = std::holds_alternative<connect>(setup_);
    auto const setup_error = [&](error_code ec) {
        if (is_active) {
            resume(connect::event::error, ec, e.status);
        } else {
            resume(accept::event::error, ec, e.status);
        }
    };
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
        setup_error(e.status == -ENODEV ? make_error_code(errc::no_rdma_device) : code);
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
        note(step::transfer, errc::device_removed, e.status, close_reason::transport_error);
        setup_error(errc::device_removed);
        resume(teardown::event::broken);
        break;
    default: break;  // nothing that changes anything for a reliable connection
    }
    make_calls(lock);
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
    if (is_unusual || !data_.is_plain(first)) return start_specially(lock, what, when, source);
    if (errc const problem = plain_refusal(first); problem != errc{}) return problem;
    operation* const op = data_.take_free();
    if (op == nullptr) return when == turn::now ? errc::would_block : errc::queue_full;
    source.actions->place(source.handler, *op, executor_);
    data_.start_plain(*op, first);
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
        if (errc const problem = refusal(one); problem != errc{}) return problem;
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

[[gnu::flatten]] void connection_core::on_completions(std::span<ibv_wc const> batch) {
    guard lock{mutex_};
    if (is_shut_down_) return;
    completion_report report = data_.retire(batch);
    if (report.failed.failed()) on_failed(report);
    if (!is_live()) check_drained();
    round_thread_ = this_thread();
    make_calls(lock);
    if (!report.shared.empty()) return run_shared_round(report);
    run_round(report.done);
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

// --- work that is not answered -------------------------------------------------------------------------------

void connection_core::watch_for_stall() {
    if (!is_open_ || !data_.is_sending()) return;
    is_watching_ = true;
    if (options_.stall_timeout == std::chrono::milliseconds{0}) return;
    looks_ = 0;
    watched_send_ = data_.oldest_send();
    arm_look();
}

void connection_core::arm_look() { arm(std::max(options_.stall_timeout / stall_looks, std::chrono::milliseconds{1})); }

// Time is taken by looks and not by each operation's own clock: moving data costs nothing for it, and a process that was
// stopped for long does not take its own absence for the peer's.
void connection_core::check_stall() {
    is_watching_ = data_.is_sending();
    if (!is_watching_) return;
    if (watched_send_ != data_.oldest_send()) return watch_for_stall();
    if (++looks_ < stall_looks) return arm_look();
    note(step::transfer, errc::stalled, 0, close_reason::timed_out);
    resume(teardown::event::broken);
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
    resume(teardown::event::disconnect);
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
    if (was_open) static_cast<void>(id_->disconnect());
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
    operation_list arrived = take_shared();
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
    operation_list left = data_.fail_all(rest, flush_error());
    name_flushed(left);
    source_.reset();
    atomic_results_.reset();
    id_.reset();
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

operation_list connection_core::take_shared() noexcept {
    operation_list arrived;
    if (shared_ == nullptr || source_ == nullptr) return arrived;
    std::array<ibv_wc, 16> batch;
    for (int count = 0; (count = source_->queue().poll(batch)) > 0;) {
        for (ibv_wc const& wc : std::span{batch}.first(static_cast<std::size_t>(count))) {
            if (!verbs::is_shared_receive(wc.wr_id)) continue;
            if (operation* const op = shared_->take(wc)) arrived.push_back(*op);
        }
    }
    return arrived;
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

// --- deadlines, waiters, calls -------------------------------------------------------------------------------

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
        check_stall();
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
