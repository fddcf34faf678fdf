#include "connection/link.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <random>

#include <rcverbs/detail/start.hpp>

#include "cm/device_list.hpp"
#include "connection/option_problems.hpp"
#include "connection/leaked_resources.hpp"
#include "progress/poller_core.hpp"
#include "verbs/errno_map.hpp"
#include "verbs/rights.hpp"

namespace rcverbs::detail {

namespace {

// InfiniBand and RoCE number the reasons of a rejection. iWARP has errno: ECONNREFUSED if nobody listens, ECONNRESET if
// the program has refused. Source: cma_iw_handler() in drivers/infiniband/core/cma.c.
error_code rejection(int status) noexcept {
    if (status >= 0) return {1000 + status, connection_manager_category()};
    return status == -ECONNREFUSED ? cm_errc::rejected_no_listener : cm_errc::rejected_by_peer;
}

struct read_depths {
    std::uint32_t initiator;
    std::uint32_t responder;
};
// iWARP's drivers do not agree which of the two is which, and a host of NVMe has one of 0. The devices negotiate
// them and wait by themselves. Source: siw_query_qp() in drivers/infiniband/sw/siw.
read_depths depths_of(
    verbs::device const& on, std::uint32_t initiator, std::uint32_t responder
) noexcept {
    if (!on.is_iwarp()) return {initiator, responder};
    return {std::max(initiator, responder), std::max(initiator, responder)};
}

}  // namespace

link::link(connection_services& on, connection_options const& options, place const& where)
    : services_{on},
      options_{options},
      poller_{where.poller},
      timer_{where.executor} {}

// --- setup ---------------------------------------------------------------------------------------

void link::aim(std::string device, verbs::wanted_address const& wanted) {
    out_of_band_.emplace(named_device{std::move(device), wanted});
    auto const& from = options_.placement.bind_address;
    if (!from || wanted.index) return;
    namespace ip = boost::asio::ip;
    out_of_band_->address.exactly =
        (from->is_v4() ? ip::make_address_v6(ip::v4_mapped, from->to_v4()) : from->to_v6())
            .to_bytes();
}

link::next link::take(waiting_request::parts request, listener const& who) {
    peer_private_data_ = std::move(request.event.private_data);
    admitted_ = std::move(request.admitted);
    asked_initiator_depth_ = request.event.initiator_depth;
    asked_responder_resources_ = request.event.responder_resources;
    id_ = std::move(request.event.incoming);
    id_->set_sink(who.manager);
    if (error_code const ec = services_.channel().take_over(*id_))
        return failed(step::create_queue_pair, ec);
    return failed(step::create_queue_pair, mark_packets());
}

// The connection manager has an option for the traffic class, and none for the others.
error_code link::mark_packets() {
    placement_options const& asked = options_.placement;
    bool const is_managed = asked.flow_label || asked.service_level || asked.hop_limit;
    if (is_managed || asked.path_mtu_bytes) return errc::invalid_option;
    return asked.traffic_class ? id_->set_type_of_service(*asked.traffic_class) : error_code{};
}

link::next link::resolve_address(std::weak_ptr<cm::event_sink> sink) {
    error_code ec;
    id_ = services_.channel().make_id(ec);
    if (ec) return failed(step::open, ec);
    id_->set_sink(std::move(sink));
    if (error_code const refused = mark_packets()) return failed(step::open, refused);
    std::optional<boost::asio::ip::address> const& from = options_.placement.bind_address;
    return failed(
        step::resolve_address,
        id_->resolve_address(from ? &*from : nullptr, peer_, options_.timeouts.resolve_address)
    );
}

link::next link::resolve_route() {
    return failed(step::resolve_route, id_->resolve_route(options_.timeouts.resolve_route));
}

// --- making the queues, without the connection's lock --------------------------------------------

link::queues link::make_queues(bool is_passive, listener const& who) const {
    queues made;
    made.result = {event_kind::queue_pair_made};
    error_code ec;
    try {
        verbs::device_context on;
        ec = find_device(made, on);
        if (!ec && is_passive && !out_of_band_) ec = check_path(made, on);
        if (!ec) ec = make_queues(made, on, is_passive, who);
        if (!ec) made.path = make_data_path(made);
    } catch (std::bad_alloc const&) {
        ec = make_error_code(boost::system::errc::not_enough_memory);
    }
    if (!ec && out_of_band_) ec = made.qp.initialise(static_cast<std::uint8_t>(made.port));
    if (ec) {
        made.result = *failed(step::create_queue_pair, ec);
        made.path = {};
        return made;
    }
    // The peer's request bounds both depths: more would be refused or wasted.
    auto const [reads, served] =
        depths_of(made.domain->on(), asked_initiator_depth_, asked_responder_resources_);
    made.limits.initiator_depth = std::min(made.limits.initiator_depth, reads);
    made.limits.responder_resources = std::min(made.limits.responder_resources, served);
    if (out_of_band_) {
        made.own_address = {
            made.qp.get()->qp_num,
            std::random_device{}() & 0xFFFFFFU,
            made.port_address.gid,
            made.port_address.lid,
            options_.placement.path_mtu_bytes
                ? std::min(
                      made.port_address.mtu, verbs::encode_mtu(*options_.placement.path_mtu_bytes)
                  )
                : made.port_address.mtu,
            static_cast<std::uint8_t>(made.limits.initiator_depth),
            static_cast<std::uint8_t>(made.limits.responder_resources),
            options_.queue_pair.rnr_retry_count};
        made.qp.offer_enhancements(made.own_address);
    }
    return made;
}

// Finds the device: the one that the connection manager resolved, or the one that the program
// named.
error_code link::find_device(queues& made, verbs::device_context& on) const {
    error_code ec;
    if (!out_of_band_) {
        made.local = id_->local();
        made.peer = id_->peer();
        made.port = id_->port();
        on = cm::keep_open(id_->device(), ec);
        return ec;
    }
    on = cm::find_device(out_of_band_->name, ec);
    if (!ec) made.port_address = verbs::find_address(on.get(), out_of_band_->address, ec);
    made.port = made.port_address.port;
    if (!ec) made.id = services_.channel().make_id(ec);
    return ec;
}

// On Ethernet the connecting side chooses the path MTU by its own network interface. This side's port drops
// larger packets, so a connection would look well until the first long message; and a device of SoftRoCE whose
// packets are refused at once sends them for ever, in a thread that cannot be killed.
error_code link::check_path(queues const& made, verbs::device_context const& on) const {
    error_code ec;
    auto const most = verbs::path_mtu_max(on.get(), made.port, ec);
    if (!ec && most && id_->asked_path_mtu() > *most) ec = errc::path_mtu_too_large;
    return ec;
}

error_code link::find_domain(queues& made, verbs::device_context const& on, bool is_passive) const {
    placement_options const& placed = options_.placement;
    bool const is_isolated = has_domain(placed, domain_sharing::isolated) ||
                             (has_domain(placed, domain_sharing::automatic) && is_passive &&
                              !placed.shared_receives.is_valid());
    error_code ec;
    if (auto const* const given = std::get_if<protection_domain>(&placed.domain)) {
        made.domain = detail::access::impl_of(*given);
        if (made.domain->on().context() != on) ec = errc::foreign_domain;
    } else if (is_isolated) {
        verbs::device device = verbs::device::query(on, ec);
        if (!ec) made.domain = verbs::domain::create(std::move(device), ec);
    } else {
        made.domain = services_.channel().shared_domain(on, ec);
    }
    if (ec || !placed.shared_receives.is_valid()) return ec;
    std::shared_ptr<shared_receives> const queue = access::core_of(placed.shared_receives);
    queue->attach(made.domain, ec);
    if (!ec) made.shared = queue;
    return ec;
}

std::shared_ptr<progress::cq_poller> link::make_poller(
    verbs::domain const& domain, listener const& who
) const {
    device_limits const& device = domain.on().limits();
    auto const vector = [count = device.completion_vectors,
                         given = poller_ != nullptr ? poller_->completion_vector() : std::nullopt] {
        static std::atomic<std::uint32_t> turn{0};
        return (given ? *given : turn.fetch_add(1, std::memory_order_relaxed)) % count;
    };
    return std::make_shared<progress::cq_poller>(
        who.executor,
        who.order,
        progress::cq_poller::settings{
            domain.on().context(),
            device.completion_queue_depth_max,
            poller_ != nullptr ? poller_->polling() : polling_options{},
            vector},
        services_.sources(),
        services_.descriptors()
    );
}

// Finds a completion queue with room for all completions that can be outstanding: it cannot overflow.
error_code link::find_place(queues& made, verbs::device_context const& on, listener const& who)
    const {
    machines::completion_share const share{
        made.sizes.send_depth + made.sizes.receive_depth,
        made.sizes.shared_receives,
        made.shared != nullptr ? made.shared->depth() : 0};
    auto const make = [&] { return make_poller(*made.domain, who); };
    error_code ec;
    std::shared_ptr<progress::cq_poller> from;
    // A poller whose last connection has just left makes no more places.
    while (!made.completions && !ec) {
        from = poller_ != nullptr ? poller_->queues_on(on.get(), from.get(), make) : make();
        made.completions = from->reserve(share, ec);
    }
    return ec;
}

error_code link::make_queues(
    queues& made, verbs::device_context const& on, bool is_passive, listener const& who
) const {
    if (error_code const ec = find_domain(made, on, is_passive)) return ec;
    queue_pair_options const& asked = options_.queue_pair;
    device_limits const& device = made.domain->on().limits();
    // Both work queues share one completion queue.
    std::uint32_t const depth_max =
        std::min(device.queue_depth_max, device.completion_queue_depth_max / 2);
    made.sizes = {
        std::min(asked.send_queue_depth, depth_max),
        made.shared != nullptr ? 0 : std::min(asked.receive_queue_depth, depth_max),
        std::min(asked.send_segments_max, device.segments_max),
        std::min(asked.receive_segments_max, device.segments_max),
        asked.inline_bytes_max,
        made.shared != nullptr ? made.shared->get() : nullptr};
    std::uint32_t const receives =
        made.shared != nullptr ? made.shared->depth() : made.sizes.receive_depth;
    made.limits = {
        made.sizes.send_depth,
        receives,
        std::min<std::uint32_t>(asked.initiator_depth, device.initiator_depth_max),
        std::min<std::uint32_t>(asked.responder_resources, device.responder_resources_max),
        made.sizes.send_segments,
        made.sizes.receive_segments,
        0,
        std::min(device.message_bytes_max, verbs::segment_bytes_max),
        0};
    error_code ec = find_place(made, on, who);
    if (ec) return ec;
    made.limits.completion_vector = made.completions.vector();
    {
        auto const channel = services_.channel().lock();
        rdma_cm_id* const id = out_of_band_ ? nullptr : id_->raw();
        ibv_cq* const completions = made.completions.queue();
        made.qp = verbs::queue_pair{id, made.domain->get(), completions, made.sizes, ec};
        if (ec == boost::system::errc::invalid_argument && is_passive) {
            // The connection manager also returns EINVAL if the peer has withdrawn its request.
            // Then the device can create a queue pair without an id.
            error_code refused;
            verbs::queue_pair const probe{
                nullptr, made.domain->get(), completions, made.sizes, refused};
            if (!refused) ec = errc::peer_disconnected;
        }
    }
    if (ec) return ec;
    made.limits.inline_bytes_max = made.sizes.inline_bytes;
    if (!out_of_band_) ec = id_->set_ack_timeout(verbs::encode_ack_timeout(asked.ack_timeout));
    if (!ec && device.has_atomics && made.limits.initiator_depth > 0) {
        std::size_t const results = made.sizes.send_depth * sizeof(std::uint64_t);
        made.atomic_results = made.domain->results().take(
            detail::access::make<protection_domain>(made.domain), results, ec
        );
    }
    if (!ec) services_.channel().watch(on, who.device, ec);
    return ec;
}

data_path link::make_data_path(queues const& made) const {
    return data_path{
        {made.sizes,
         options_.queue_pair.waiting_operations_max,
         made.limits.message_bytes_max,
         made.shared.get(),
         made.domain.get()},
        made.atomic_results != nullptr ? made.atomic_results->slice() : mutable_slice{}};
}

// --- connecting ----------------------------------------------------------------------------------

void link::adopt(queues made) {
    if (made.id != nullptr) id_ = std::move(made.id);
    if (!out_of_band_) {
        local_ = made.local;
        peer_ = made.peer;
    }
    queues_ = std::move(made);
}

link::next link::connect(std::span<std::byte const> private_data) {
    error_code const ec = id_->connect(parameters(private_data));
    // On iWARP the TCP connection is made at once.
    bool const is_refused = ec == boost::system::errc::connection_refused;
    return failed(step::connect, is_refused ? rejection(-ECONNREFUSED) : ec);
}

link::next link::accept(std::span<std::byte const> private_data) {
    error_code ec = id_->accept(parameters(private_data));
    // From here on the peer may send. Set the RNR NAK delay: the connection manager leaves 0 in the
    // queue pair, which means 655 ms.
    if (!ec)
        ec = queues_.qp.set_min_rnr_timer(verbs::encode_rnr_timer(options_.queue_pair.min_rnr_timer)
        );
    if (!ec && remote_access_)
        ec = queues_.qp.set_remote_access(verbs::to_ibv_access(*remote_access_));
    return failed(step::accept, explained(ec));
}

link::next link::open(bool is_passive) {
    queue_pair_options const& asked = options_.queue_pair;
    std::uint8_t const rnr_code = verbs::encode_rnr_timer(asked.min_rnr_timer);
    error_code ec;
    if (out_of_band_) {
        ec = queues_.qp.connect(
            queues_.own_address,
            peer_address_,
            {static_cast<std::uint8_t>(queues_.port),
             queues_.port_address.gid_index,
             static_cast<std::uint8_t>(queues_.limits.initiator_depth),
             static_cast<std::uint8_t>(queues_.limits.responder_resources),
             verbs::encode_ack_timeout(asked.ack_timeout),
             asked.retry_count,
             rnr_code,
             options_.placement.traffic_class.value_or(0),
             options_.placement.flow_label.value_or(0),
             options_.placement.service_level.value_or(0),
             options_.placement.hop_limit.value_or(verbs::hop_limit_default)}
        );
        if (ec) return failed(step::connect, ec);
    }
    verbs::queue_pair_state const now = queues_.qp.query(ec);
    // In the error state: the device has rejected a request of the peer's that arrived before the
    // event, or between these calls, which then fail.
    if (!ec && now.is_error) return event{event_kind::stopped};
    if (!ec && !is_passive) ec = queues_.qp.set_min_rnr_timer(rnr_code);
    if (!ec && remote_access_)
        ec = queues_.qp.set_remote_access(verbs::to_ibv_access(*remote_access_));
    if (ec && queues_.qp.is_in_error_state()) return event{event_kind::stopped};
    if (ec) return event{event_kind::failed, ec};
    auto const [reads, served] =
        depths_of(queues_.domain->on(), now.initiator_depth, now.responder_resources);
    queues_.limits.initiator_depth = std::min(queues_.limits.initiator_depth, reads);
    queues_.limits.responder_resources = std::min(queues_.limits.responder_resources, served);
    return event{event_kind::opened};
}

cm::connection_parameters link::parameters(std::span<std::byte const> private_data) const noexcept {
    return {
        static_cast<std::uint8_t>(queues_.limits.initiator_depth),
        static_cast<std::uint8_t>(queues_.limits.responder_resources),
        options_.queue_pair.retry_count,
        options_.queue_pair.rnr_retry_count,
        private_data};
}

errc link::no_device() const noexcept {
    return peer_.is_infiniband() ? errc::address_family_unsupported : errc::no_rdma_device;
}

// Empty if there is no error.
link::next link::failed(step where, error_code ec) const {
    if (!ec) return std::nullopt;
    // In these two steps the kernel returns ENODEV if no RDMA device leads to the address.
    bool const is_resolving = where == step::resolve_address || where == step::resolve_route;
    if (is_resolving && ec == boost::system::errc::no_such_device)
        return event{event_kind::failed, no_device(), -ec.value(), close_reason::open, where};
    return event{event_kind::failed, ec, 0, close_reason::open, where};
}

// While a request is being accepted, a call fails with EINVAL if the peer has withdrawn the
// request, or if the peer's first messages have moved the queue pair to the error state. The state
// of the queue pair distinguishes the two.
error_code link::explained(error_code ec) const {
    if (ec != boost::system::errc::invalid_argument || !queues_.qp.is_open()) return ec;
    if (!queues_.qp.is_in_error_state()) return errc::peer_disconnected;
    return queues_.domain->on().is_iwarp() ? errc::peer_disconnected : errc::peer_violation;
}

// --- while open ----------------------------------------------------------------------------------

// The connection manager itself sets the queue pair's access rights while it connects. So rights
// that were set earlier are applied again afterwards.
error_code link::set_remote_access(access_flags rights, bool is_now) {
    remote_access_ = rights;
    return is_now ? queues_.qp.set_remote_access(verbs::to_ibv_access(rights)) : error_code{};
}

link::next link::describe(cm::event& e, bool is_passive, bool is_open) {
    error_code const code{e.type, connection_manager_category()};
    auto const failed = [&](error_code ec) { return event{event_kind::failed, ec, e.status}; };
    switch (e.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED: return event{event_kind::address_resolved};
    case RDMA_CM_EVENT_ROUTE_RESOLVED: return event{event_kind::route_resolved};
    case RDMA_CM_EVENT_ESTABLISHED:
        if (!is_passive) peer_private_data_ = std::move(e.private_data);
        return event{event_kind::established};
    case RDMA_CM_EVENT_REJECTED:
        // The peer has left before it had heard that this side is connected.
        if (is_open) return event{event_kind::peer_gone, {}, e.status};
        // The client has left before the handshake was over.
        if (is_passive) return failed(errc::peer_disconnected);
        peer_private_data_ = std::move(e.private_data);
        return failed(rejection(e.status));
    case RDMA_CM_EVENT_ADDR_ERROR:
        // ENODEV and EPERM are of this machine: no device, or one whose file may not be opened.
        if (e.status == -EPERM || e.status == -EACCES)
            return failed(verbs::or_out_of_descriptors(verbs::from_event_status(e.status)));
        return failed(
            verbs::or_out_of_descriptors(e.status == -ENODEV ? make_error_code(no_device()) : code)
        );
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE: return failed(code);
    case RDMA_CM_EVENT_DISCONNECTED: return event{event_kind::peer_gone, {}, e.status};
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return event{event_kind::broken, errc::device_removed, e.status, close_reason::device_gone};
    default: return std::nullopt;
    }
}

link::next link::describe(cm::device_event const& e) noexcept {
    using kind = cm::device_event::kind;
    if (!queues_.completions) return std::nullopt;
    auto const broken = [&](errc why, close_reason reason = close_reason::transport_error) {
        return event{event_kind::broken, why, e.type, reason};
    };
    bool const is_ours = queues_.qp.is_open() && e.object == queues_.qp.get() &&
                         e.number == queues_.qp.get()->qp_num;
    switch (e.what) {
    case kind::queue_pair_failed:
        if (is_ours) return broken(errc::queue_pair_failed);
        break;
    case kind::peer_violation:
        if (is_ours) return broken(errc::peer_violation);
        break;
    case kind::completion_queue_failed:
        if (e.object == queues_.completions.queue()) return broken(errc::completion_queue_broken);
        break;
    case kind::shared_queue_failed:
        if (queues_.shared != nullptr && e.object == queues_.shared->get())
            return broken(errc::queue_pair_failed);
        break;
    case kind::port_down:
        if (options_.liveness.ends_on_port_down && e.number == queues_.port)
            return broken(errc::port_down, close_reason::device_gone);
        break;
    case kind::addresses_changed:
        // The event does not name the address that was added or removed.
        if (e.number == queues_.port && queues_.qp.is_open() &&
            !queues_.qp.has_gid(
                out_of_band_ ? queues_.port_address.gid.data() : id_->source_gid()
            )) {
            return broken(errc::address_gone, close_reason::device_gone);
        }
        break;
    case kind::device_failed: return broken(errc::device_removed, close_reason::device_gone);
    }
    return std::nullopt;
}

// --- teardown ------------------------------------------------------------------------------------

void link::reject(std::span<std::byte const> private_data) {
    static_cast<void>(id_->reject(private_data));
}

void link::stop(bool tells_peer) {
    bool const is_told = tells_peer && !out_of_band_ && !id_->disconnect();
    if (!queues_.qp.is_open()) return;
    // librdmacm's disconnect does this itself, except on iWARP.
    if (!is_told || queues_.domain->on().is_iwarp()) static_cast<void>(queues_.qp.move_to_error());
}

verbs::memory_window::handle link::drop_window(verbs::memory_window& window) noexcept {
    windows_.erase(&window);
    return window.release();
}

bool link::destroy_queue_pair(progress::cq_place::take_function const& take) {
    // First, because SoftRoCE waits 50 s for a window that is bound.
    for (verbs::memory_window* const window : windows_) static_cast<void>(window->release());
    windows_.clear();
    auto const destroy = [this] {
        auto const channel = services_.channel().lock();
        return !queues_.qp.destroy();
    };
    if (!queues_.qp.is_open()) {
        queues_.completions = {};
        return true;
    }
    bool const is_destroyed =
        queues_.completions ? queues_.completions.leave(destroy, take) : destroy();
    // Otherwise the device may still use the memory, so none of it is freed.
    if (!is_destroyed) leak({queues_.domain, queues_.atomic_results});
    return is_destroyed;
}

void link::give_back(connection_statistics const& counted, bool is_violated) {
    queues_.atomic_results.reset();
    id_.reset();
    if (admitted_ != nullptr) admitted_->end(counted, is_violated);
    admitted_.reset();
}

bool link::abandon() noexcept {
    timer_.reset();
    admitted_.reset();
    bool const is_destroyed = destroy_queue_pair([](auto) {});
    id_.reset();
    return is_destroyed;
}

}  // namespace rcverbs::detail
