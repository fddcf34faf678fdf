// The connection manager: addresses, routes, the three-way handshake and disconnecting, including
// librdmacm's part of it (its work inside rdma_get_cm_event). Source: rdma_cm(7), the behaviour of
// librdmacm and of the kernel's ib_cm.
#include "connection_manager.hpp"

#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "network.hpp"

namespace rcverbs::fabric::detail {

namespace {

using namespace std::chrono_literals;
using state = cm_id::state;

// The maximum private data of a program, and the length of the field that the peer receives.
// Source: rdma_connect(3), rdma_accept(3), rdma_reject(3).
constexpr std::size_t request_data_max = 56;
constexpr std::size_t reply_data_max = 196;
constexpr std::size_t rejection_data_max = 148;
// How long a request from another process waits for a listener. On adapters the resolution of a route takes as long, and some
// programs (perftest with -R) connect again before their server listens again.
constexpr std::chrono::milliseconds listener_patience{100};
constexpr std::chrono::milliseconds listener_pause{2};

// Rejection reasons. Source: InfiniBand specification, volume 1, table "REJ reasons".
constexpr int no_such_service = 8;
constexpr int refused_by_program = 28;

// How long the kernel retries if the peer does not answer: about 15 tries of 4 s.
constexpr nanoseconds handshake_patience = 64s;
constexpr nanoseconds time_wait = 2s;

// 0 for an address of another family, and for none.
std::size_t size_of(sockaddr const* a) noexcept {
    if (a == nullptr) return 0;
    switch (a->sa_family) {
    case AF_INET: return sizeof(sockaddr_in);
    case AF_INET6: return sizeof(sockaddr_in6);
    default: return 0;
    }
}

// The socket API permits these casts of sockaddr_storage.
sockaddr_in& v4(address& a) noexcept { return reinterpret_cast<sockaddr_in&>(a.raw); }
sockaddr_in6& v6(address& a) noexcept { return reinterpret_cast<sockaddr_in6&>(a.raw); }
sockaddr_in const& v4(address const& a) noexcept {
    return reinterpret_cast<sockaddr_in const&>(a.raw);
}
sockaddr_in6 const& v6(address const& a) noexcept {
    return reinterpret_cast<sockaddr_in6 const&>(a.raw);
}

address copy(sockaddr const* from) noexcept {
    address a;
    std::memcpy(&a.raw, from, size_of(from));
    return a;
}

std::uint16_t port_of(address const& a) noexcept {
    return ntohs(a.family() == AF_INET ? v4(a).sin_port : v6(a).sin6_port);
}

void give_port(address& a, std::uint16_t port) noexcept {
    (a.family() == AF_INET ? v4(a).sin_port : v6(a).sin6_port) = htons(port);
}

bool is_any(address const& a) noexcept {
    return a.family() == AF_INET ? v4(a).sin_addr.s_addr == INADDR_ANY
                                 : IN6_IS_ADDR_UNSPECIFIED(&v6(a).sin6_addr);
}

bool is_loopback(address const& a) noexcept {
    return a.family() == AF_INET ? (ntohl(v4(a).sin_addr.s_addr) >> 24) == 127
                                 : IN6_IS_ADDR_LOOPBACK(&v6(a).sin6_addr);
}

// True if the first `bytes` bytes of the addresses are the same.
bool agree(address const& a, address const& b, std::size_t bytes) noexcept {
    if (a.family() != b.family()) return false;
    if (a.family() == AF_INET)
        return std::memcmp(&v4(a).sin_addr, &v4(b).sin_addr, std::min<std::size_t>(bytes, 4)) == 0;
    return std::memcmp(&v6(a).sin6_addr, &v6(b).sin6_addr, bytes) == 0;
}
bool is_same(address const& a, address const& b) noexcept { return agree(a, b, 16); }
bool is_same_network(address const& a, address const& b) noexcept {
    return agree(a, b, a.family() == AF_INET ? 3 : 8);
}

std::vector<std::byte> bytes_of(void const* data, std::size_t size) {
    auto const* const first = static_cast<std::byte const*>(data);
    return first == nullptr ? std::vector<std::byte>{}
                            : std::vector<std::byte>(first, first + size);
}

// RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH stand for the limit of the device; so do missing
// parameters.
std::uint8_t depth_of(std::uint8_t asked, device const& on) noexcept {
    return asked == RDMA_MAX_RESP_RES ? static_cast<std::uint8_t>(on.options.read_depth_max)
                                      : asked;
}

terms terms_of(cm_id const& id, rdma_conn_param const* p) {
    terms t;
    t.qp_num = id.qp != nullptr ? id.qp->qp_num : p->qp_num;
    t.traffic_class = id.type_of_service;
    t.path_mtu_bytes = id.on->options.path_mtu_bytes;
    std::uint8_t const most = RDMA_MAX_RESP_RES;
    t.responder_resources = depth_of(p != nullptr ? p->responder_resources : most, *id.on);
    t.initiator_depth = depth_of(p != nullptr ? p->initiator_depth : most, *id.on);
    if (p == nullptr) return t;
    t.retry_count = p->retry_count;
    t.rnr_retry_count = p->rnr_retry_count;
    t.private_data = bytes_of(p->private_data, p->private_data_len);
    return t;
}

cm_message to_peer(cm_id const& id, cm_message::kind what) {
    cm_message m;
    m.what = what;
    m.from = id.local;
    m.to = id.remote;
    m.from_id = id.number;
    m.to_id = id.peer;
    return m;
}

// An answer of a side that has no id for the message.
cm_message answer_to(cm_message const& m, cm_message::kind what) {
    cm_message answer;
    answer.what = what;
    answer.from = m.to;
    answer.to = m.from;
    answer.to_id = m.from_id;
    return answer;
}

void store(sockaddr_storage& to, address const& from) noexcept { to = from.raw; }

void store_source(cm_id& id) noexcept {
    store(id.route.addr.src_storage, id.local);
    id.route.addr.addr.ibaddr.sgid = gid_of(id.local);
}

}  // namespace

// --- channels and ids ----------------------------------------------------------------------------

int connection_manager::create_channel(cm_channel*& out) {
    auto made = std::make_unique<cm_channel>();
    made->fd = made->ready.get();
    out = made.get();
    channels_.emplace(out, std::move(made));
    return 0;
}

int connection_manager::destroy_channel(rdma_event_channel* raw) {
    auto const found = channels_.find(raw);
    if (found == channels_.end()) return EINVAL;
    channels_.erase(found);
    return 0;
}

cm_id* connection_manager::find_id(std::uint64_t number) {
    auto const found = ids_.find(number);
    return found == ids_.end() ? nullptr : found->second.get();
}

cm_id* connection_manager::id_of(rdma_cm_id* raw) {
    // Only pointers that this network created may be dereferenced.
    auto const found = id_pointers_.find(raw);
    return found == id_pointers_.end() ? nullptr : found->second;
}

cm_id& connection_manager::make_id(cm_channel& channel, void* context, rdma_port_space space) {
    auto made = std::make_unique<cm_id>();
    static_cast<rdma_cm_id&>(*made) = {};
    made->channel = &channel;
    made->context = context;
    made->ps = space;
    made->qp_type = IBV_QPT_RC;
    made->number = next_id_++;
    cm_id& id = *made;
    id_pointers_.emplace(&id, &id);
    ids_.emplace(id.number, std::move(made));
    return id;
}

int connection_manager::create_id(
    rdma_event_channel* channel, void* context, rdma_port_space space, cm_id*& out
) {
    if (space != RDMA_PS_TCP) return EINVAL;
    if (channel == nullptr) {
        cm_channel* own = nullptr;
        create_channel(own);
        out = &make_id(*own, context, space);
        out->is_synchronous = 1;
        return 0;
    }
    auto const found = channels_.find(channel);
    if (found == channels_.end()) return EINVAL;
    out = &make_id(*found->second, context, space);
    return 0;
}

// Drops the events that were not taken, and rejects the requests that were not taken.
void connection_manager::drop_events(cm_id& id) {
    auto const found = channels_.find(id.channel);
    if (found == channels_.end()) return;
    cm_channel& channel = *found->second;
    channel.ready.drop(std::erase_if(channel.events, [&](auto const& e) {
        return e->owner == id.number;
    }));
    // Only a listener with requests that were not taken has children.
    if (id.waiting_requests == 0) return;
    std::vector<std::uint64_t> children;
    for (auto const& [number, other] : ids_) {
        if (other->listener == id.number) children.push_back(number);
    }
    for (std::uint64_t const number : children) {
        if (cm_id* const child = find_id(number)) forget(*child);
    }
}

void connection_manager::forget(cm_id& id) {
    say_goodbye(id);
    drop_events(id);
    id_pointers_.erase(&id);
    release_port(id);
    release_default_pd(id);
    device* const borrowed = id.borrowed;
    if (id.is_synchronous != 0) channels_.erase(id.channel);
    ids_.erase(id.number);
    if (borrowed != nullptr) give_back(*borrowed);
}

int connection_manager::destroy_id(rdma_cm_id* raw, std::unique_lock<std::mutex>& held) {
    cm_id* const id = id_of(raw);
    if (id == nullptr) return EINVAL;
    say_goodbye(*id);
    drop_events(*id);
    net_.wait_acknowledged(held, "rdma_destroy_id", [id] {
        return id->events_given == id->events_acknowledged;
    });
    forget(*id);
    return 0;
}

int connection_manager::set_option(
    rdma_cm_id* raw, int level, int name, void const* value, std::size_t size
) {
    cm_id* const id = id_of(raw);
    if (id == nullptr || level != RDMA_OPTION_ID) return EINVAL;
    auto const code = *static_cast<std::uint8_t const*>(value);
    if (name == RDMA_OPTION_ID_TOS) {
        if (size != 1) return EINVAL;
        id->type_of_service = code;
        return 0;
    }
    if (name != RDMA_OPTION_ID_ACK_TIMEOUT) return name <= RDMA_OPTION_ID_AFONLY ? 0 : ENOSYS;
    if (size != 1 || code > 31) return EINVAL;
    id->ack_timeout = code;
    return 0;
}

int connection_manager::migrate(rdma_cm_id* raw, rdma_event_channel* to) {
    cm_id* const id = id_of(raw);
    // Without a channel, the id waits for its events itself from now on; with one, it does not any more.
    bool const was_synchronous = id != nullptr && id->is_synchronous != 0;
    if (id != nullptr) id->is_synchronous = to == nullptr ? 1 : 0;
    if (id != nullptr && to == nullptr) {
        cm_channel* own = nullptr;
        create_channel(own);
        to = own;
    }
    auto const target = channels_.find(to);
    auto const source = id != nullptr ? channels_.find(id->channel) : channels_.end();
    if (target == channels_.end() || source == channels_.end()) return EINVAL;
    std::deque<std::unique_ptr<cm_event>>& from = source->second->events;
    for (auto it = from.begin(); it != from.end();) {
        if ((*it)->owner != id->number) {
            ++it;
            continue;
        }
        target->second->events.push_back(std::move(*it));
        target->second->ready.ring();
        source->second->ready.drop(1);
        it = from.erase(it);
    }
    if (was_synchronous) channels_.erase(source);
    id->channel = to;
    return 0;
}

// --- events --------------------------------------------------------------------------------------

void connection_manager::tell(
    cm_id& id, rdma_cm_event_type type, int status, terms const* with, std::uint64_t child
) {
    if (id.is_abandoned) return;
    auto event = std::make_unique<cm_event>();
    static_cast<rdma_cm_event&>(*event) = {};
    event->event = type;
    event->status = status;
    event->owner = id.number;
    event->child = child;
    if (with != nullptr) {
        std::size_t const field = type == RDMA_CM_EVENT_CONNECT_REQUEST    ? request_data_max
                                  : type == RDMA_CM_EVENT_REJECTED         ? rejection_data_max
                                  : type == RDMA_CM_EVENT_CONNECT_RESPONSE ? reply_data_max
                                                                           : 0;
        std::copy_n(
            with->private_data.begin(),
            std::min(field, with->private_data.size()),
            event->data.begin()
        );
        rdma_conn_param& p = event->param.conn;
        // Padded: the original length is not transmitted.
        p.private_data_len = static_cast<std::uint8_t>(field);
        p.private_data = field > 0 ? event->data.data() : nullptr;
        p.responder_resources = with->initiator_depth;
        p.initiator_depth = with->responder_resources;
        if (id.on != nullptr && id.on->options.is_soft_iwarp)
            std::swap(p.responder_resources, p.initiator_depth);
        p.retry_count = with->retry_count;
        p.rnr_retry_count = with->rnr_retry_count;
        p.qp_num = with->qp_num;
    }
    cm_event_fate fate;
    if (net_.faults.cm_decision)
        fate = net_.faults.cm_decision(
            {type, status, id.on != nullptr ? id.on->options.name : std::string_view{}}
        );
    if (fate.what == cm_event_fate::kind::lose) return;
    if (fate.what == cm_event_fate::kind::deliver) return give(std::move(event));
    net_.at(
        net_.now() + fate.by,
        [this, held = std::make_shared<std::unique_ptr<cm_event>>(std::move(event))] {
            give(std::move(*held));
        }
    );
}

void connection_manager::give(std::unique_ptr<cm_event> event) {
    cm_id* const id = find_id(event->owner);
    if (id == nullptr || id->is_abandoned) return;
    auto const found = channels_.find(id->channel);
    if (found == channels_.end()) return;
    found->second->events.push_back(std::move(event));
    found->second->ready.ring();
}

int connection_manager::take_event(rdma_event_channel* raw, rdma_cm_event** out) {
    auto const found = channels_.find(raw);
    if (found == channels_.end() || found->second->events.empty()) return EAGAIN;
    std::unique_ptr<cm_event> event = std::move(found->second->events.front());
    found->second->events.pop_front();
    cm_id& owner = *find_id(event->owner);  // exists: destroying an id drops its events
    ++owner.events_given;
    event->id = &owner;
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        event->listen_id = &owner;
        event->id = find_id(event->child);
        static_cast<cm_id*>(event->id)->listener = 0;
        --owner.waiting_requests;
        // Each id of a program that waits has its own channel.
        if (owner.is_synchronous != 0) migrate(event->id, nullptr);
    } else if (event->event == RDMA_CM_EVENT_CONNECT_RESPONSE && owner.qp != nullptr) {
        // librdmacm moves the queue pair to RTS and replies before the program receives the event.
        if (owner.at != state::reply_received || to_ready_to_send(owner) != 0) {
            event->event = RDMA_CM_EVENT_CONNECT_ERROR;
            event->status = -EINVAL;
        } else {
            event->event = RDMA_CM_EVENT_ESTABLISHED;
            owner.at = state::connected;
            send(*owner.on, to_peer(owner, cm_message::kind::ready));
        }
    } else if (event->event == RDMA_CM_EVENT_REJECTED && owner.qp != nullptr) {
        static_cast<queue_pair&>(*owner.qp).move_to_error();
    }
    *out = event.get();
    given_events_.emplace(event.get(), std::move(event));
    return 0;
}

void connection_manager::acknowledge(rdma_cm_event* raw) {
    auto const found = given_events_.find(static_cast<cm_event*>(raw));
    if (found == given_events_.end()) return;
    if (cm_id* const id = find_id(found->second->owner)) ++id->events_acknowledged;
    given_events_.erase(found);
    net_.notify_acknowledged();
}

// --- addresses and routes ------------------------------------------------------------------------

device* connection_manager::device_with(address const& a) {
    for (std::unique_ptr<device> const& d : net_.devices) {
        for (address const& own : d->addresses) {
            if (is_same(own, a)) return d.get();
        }
    }
    return nullptr;
}

device* connection_manager::device_of(address const& a) {
    device* const found = device_with(a);
    return found != nullptr && !found->is_removed ? found : nullptr;
}

// The outgoing device: the requested one; else another one than that of the target, if there is
// one, so that packets cross the network.
device* connection_manager::way_to(address const& to, address const* from) {
    if (from != nullptr) return device_of(*from);
    device* const target = device_of(to);
    device* way = nullptr;
    for (std::unique_ptr<device> const& d : net_.devices) {
        bool const speaks =
            std::any_of(d->addresses.begin(), d->addresses.end(), [&](address const& own) {
                return own.family() == to.family();
            });
        if (!speaks || d->is_removed) continue;
        bool const is_near =
            net_.others != nullptr && std::ranges::any_of(d->addresses, [&](address const& own) {
                return is_same_network(own, to);
            });
        if (is_near) return d.get();
        if (way == nullptr || way == target) way = d.get();
    }
    return way;
}

int connection_manager::borrow(device& from) {
    if (from.is_removed) return ENODEV;
    int const error = from.borrowed != nullptr ? 0 : net_.open_device(from, from.borrowed);
    if (error == 0) ++from.borrowers;
    return error;
}

void connection_manager::give_back(device& to) {
    if (to.borrowers == 0) return;  // a list of an earlier world
    --to.borrowers;
    close_if_forgotten(to);
}

void connection_manager::give_back(ibv_context* const* list) {
    for (; *list != nullptr; ++list) {
        for (std::unique_ptr<device> const& d : net_.devices) {
            bool const is_it = d->borrowed != nullptr && &d->borrowed->verbs.context == *list;
            if (is_it) give_back(*d);
        }
    }
}

void connection_manager::forget_removed_devices() {
    for (std::unique_ptr<device> const& d : net_.devices) {
        d->is_forgotten = d->is_removed;
        close_if_forgotten(*d);
    }
}

void connection_manager::close_if_forgotten(device& which) {
    if (!which.is_forgotten || which.borrowers > 0 || which.borrowed == nullptr) return;
    net_.close_device(&std::exchange(which.borrowed, nullptr)->verbs.context);
}

int connection_manager::attach(cm_id& id, device& to) {
    if (int const error = borrow(to)) return error;
    release_default_pd(id);
    if (device* const before = std::exchange(id.borrowed, &to)) give_back(*before);
    id.on = &to;
    id.verbs = &to.borrowed->verbs.context;
    id.port_num = 1;
    return use_default_pd(id);
}

// librdmacm's ids have a protection domain with their device.
int connection_manager::use_default_pd(cm_id& id) {
    device& on = *id.on;
    if (on.default_pd == nullptr) {
        if (int const error = net_.alloc_pd(id.verbs, on.default_pd)) return error;
    }
    ++on.default_pd_users;
    id.uses_default_pd = true;
    id.pd = on.default_pd;
    return 0;
}

void connection_manager::release_default_pd(cm_id& id) {
    if (!std::exchange(id.uses_default_pd, false)) return;
    id.pd = nullptr;
    // What the program still has of it keeps it.
    device& on = *id.on;
    if (--on.default_pd_users == 0 && net_.dealloc_pd(on.default_pd) == 0) on.default_pd = nullptr;
}

std::uint16_t connection_manager::free_port() {
    address any;
    any.raw.ss_family = AF_INET6;
    for (unsigned tries = 0; tries < ports_count; ++tries) {
        auto const port = static_cast<std::uint16_t>(first_port + next_port_);
        next_port_ = (next_port_ + 1) % ports_count;
        give_port(any, port);
        if (port_conflict(any) == 0) return port;
    }
    return 0;
}

// 0 if the port is free; else the error code of the kernel.
int connection_manager::port_conflict(address const& a) {
    for (cm_id const* const id : bound_) {
        if (id->at != state::bound && id->at != state::listening) continue;
        if (port_of(id->local) != port_of(a)) continue;
        if (is_any(id->local) || is_any(a)) return EADDRNOTAVAIL;
        if (is_same(id->local, a)) return EADDRINUSE;
    }
    return 0;
}

// Gives the address a free port if it has none. 0 if the port is this program's now; else the error
// code of the kernel.
int connection_manager::claim_port(address& a) {
    bool const is_chosen = port_of(a) != 0;
    for (int tries = 0; tries < 1000; ++tries) {
        if (!is_chosen) give_port(a, free_port());
        int error = port_conflict(a);
        if (error == 0 && net_.others != nullptr) error = net_.others->claim_port(port_of(a));
        if (error == 0 || is_chosen) return error;
    }
    return EADDRNOTAVAIL;
}

void connection_manager::release_port(cm_id& id) {
    if (bound_.erase(&id) > 0 && net_.others != nullptr)
        net_.others->release_port(port_of(id.local));
}

int connection_manager::bind(rdma_cm_id* raw, sockaddr const* to) {
    cm_id* const id = id_of(raw);
    if (id == nullptr || size_of(to) == 0 || id->at != state::idle) return EINVAL;
    address wanted = copy(to);
    if (int const error = claim_port(wanted)) return error;
    if (!is_any(wanted) && !is_loopback(wanted)) {
        device* const on = device_of(wanted);
        if (int const error = on == nullptr ? EADDRNOTAVAIL : attach(*id, *on)) {
            if (net_.others != nullptr) net_.others->release_port(port_of(wanted));
            return error;
        }
    }
    id->local = wanted;
    store(id->route.addr.src_storage, wanted);
    id->at = state::bound;
    bound_.insert(id);
    return 0;
}

int connection_manager::listen(rdma_cm_id* raw, int backlog) {
    cm_id* const id = id_of(raw);
    if (id == nullptr || id->at != state::bound) return EINVAL;
    id->backlog = backlog > 0 ? backlog : 1024;
    id->at = state::listening;
    if (net_.others != nullptr) net_.others->show_port(port_of(id->local));
    return 0;
}

int connection_manager::resolve_address(
    rdma_cm_id* raw, sockaddr const* from, sockaddr const* to, int timeout_ms
) {
    cm_id* const id = id_of(raw);
    if (to != nullptr && to->sa_family == AF_IB) return ENODEV;  // as Ethernet devices do
    if (id == nullptr || size_of(to) == 0 || (from != nullptr && size_of(from) == 0)) return EINVAL;
    if (id->at != state::idle && id->at != state::bound) return EINVAL;
    address const target = copy(to);
    bool const is_neighbour = net_.others != nullptr && net_.others->has_neighbour(target);
    bool const is_known_network =
        is_loopback(target) || is_neighbour ||
        std::any_of(net_.devices.begin(), net_.devices.end(), [&](auto const& d) {
            return std::any_of(d->addresses.begin(), d->addresses.end(), [&](address const& own) {
                return is_same_network(own, target);
            });
        });
    if (!is_known_network) return ENETUNREACH;
    address source;
    if (from != nullptr) source = copy(from);
    if (from == nullptr && id->at == state::bound) source = id->local;
    bool const is_bound = source.family() != AF_UNSPEC && !is_any(source);
    std::uint16_t const port = source.family() != AF_UNSPEC ? port_of(source) : std::uint16_t{0};
    device* const way = way_to(target, is_bound ? &source : nullptr);
    if (way == nullptr) return is_bound ? EADDRNOTAVAIL : ENODEV;
    for (address const& own : way->addresses) {
        if (!is_bound && own.family() == target.family()) source = own;
    }
    give_port(source, port != 0 ? port : free_port());
    id->at = state::resolving_address;
    id->on = way;  // from here on, faults of the device affect the id
    id->remote = target;
    id->local = source;
    store(id->route.addr.dst_storage, target);
    bool const has_neighbour = is_loopback(target) || is_neighbour || device_of(target) != nullptr;
    nanoseconds const delay =
        has_neighbour ? nanoseconds{net_.pick(1000, 20000)} : std::chrono::milliseconds{timeout_ms};
    net_.at(net_.now() + delay, [this, number = id->number, way, has_neighbour] {
        cm_id* const still = find_id(number);
        if (still == nullptr || still->at != state::resolving_address) return;
        int const error = has_neighbour ? attach(*still, *way) : ETIMEDOUT;
        still->at = error == 0 ? state::address_resolved : state::idle;
        if (error == 0) store_source(*still);
        tell(*still, error == 0 ? RDMA_CM_EVENT_ADDR_RESOLVED : RDMA_CM_EVENT_ADDR_ERROR, -error);
    });
    return 0;
}

int connection_manager::resolve_route(rdma_cm_id* raw, int) {
    cm_id* const id = id_of(raw);
    if (id == nullptr || id->at != state::address_resolved) return EINVAL;
    if (is_loopback(id->remote)) return ENODEV;  // there is no RDMA device behind "lo"
    id->at = state::resolving_route;
    net_.at(net_.now() + nanoseconds{net_.pick(500, 5000)}, [this, number = id->number] {
        cm_id* const still = find_id(number);
        if (still == nullptr || still->at != state::resolving_route) return;
        still->at = state::route_resolved;
        tell(*still, RDMA_CM_EVENT_ROUTE_RESOLVED);
    });
    return 0;
}

int connection_manager::create_queue_pair(
    rdma_cm_id* raw, ibv_pd* pd, ibv_qp_init_attr* attributes
) {
    cm_id* const id = id_of(raw);
    if (id == nullptr || id->qp != nullptr || id->verbs == nullptr || id->at == state::closed)
        return EINVAL;
    if (pd == nullptr) pd = id->pd;
    if (pd->context != id->verbs) return EINVAL;
    queue_pair* made = nullptr;
    if (int const error = net_.create_qp(pd, attributes, made)) return error;
    made->state = IBV_QPS_INIT;
    id->qp = made;
    id->pd = pd;
    return 0;
}

// --- the handshake -------------------------------------------------------------------------------

// Delivers messages in the order in which they were sent, or drops them.
void connection_manager::send(device& from, cm_message m) {
    if (!from.is_reachable()) return;
    if (net_.others != nullptr && net_.others->is_elsewhere(m.to, m.to_id)) {
        if (m.what != cm_message::kind::request) net_.others->send(m);
        else send_request(std::move(m), net_.now() + listener_patience);
        return;
    }
    device* const to = device_with(m.to);
    if (to == nullptr) return;
    // The latency includes two kernels: a message does not overtake packets that were sent before
    // it.
    nanoseconds const travel = net_.is_stepped()
                                   ? net_.options().latency_max + nanoseconds{net_.pick(500, 45000)}
                                   : nanoseconds{0};
    from.link_free = std::max(from.link_free + nanoseconds{1}, net_.now() + travel);
    net_.at(from.link_free, [this, to, m = std::move(m)] {
        if (to->is_reachable()) receive(m, *to);
    });
}

void connection_manager::send_request(cm_message m, nanoseconds until) {
    auto const from = ids_.find(m.from_id);
    if (from == ids_.end() || from->second->at != state::request_sent) return;  // it has given up
    if (net_.others->send(m)) return;
    if (net_.now() < until) {
        return net_.at(net_.now() + listener_pause, [this, m = std::move(m), until]() mutable {
            send_request(std::move(m), until);
        });
    }
    // As its kernel answers for a process that is not there.
    cm_message refusal = answer_to(m, cm_message::kind::rejection);
    refusal.reason = no_such_service;
    net_.at(net_.now(), [this, refusal = std::move(refusal)] { receive(refusal); });
}

void connection_manager::receive(cm_message const& m) {
    device* const at = device_with(m.to);
    if (at != nullptr && at->is_reachable()) receive(m, *at);
}

void connection_manager::lose_peers(
    std::function<bool(address const& remote, std::uint64_t id)> const& is_lost
) {
    std::vector<cm_message> last;  // ids_ changes while they are received
    for (auto const& [number, id] : ids_) {
        if (id->remote.family() == AF_UNSPEC || !is_lost(id->remote, id->peer)) continue;
        cm_message m;
        switch (id->at) {
        case state::request_sent:
        case state::request_received: m.what = cm_message::kind::rejection; break;
        case state::reply_sent:
        case state::reply_received:
        case state::connected: m.what = cm_message::kind::disconnect_request; break;
        case state::disconnect_sent: m.what = cm_message::kind::disconnect_reply; break;
        default: continue;
        }
        m.from = id->remote;
        m.to = id->local;
        m.from_id = id->peer;
        m.to_id = number;
        m.reason = refused_by_program;
        last.push_back(std::move(m));
    }
    for (cm_message const& m : last) receive(m);
}

void connection_manager::receive(cm_message const& m, device& at) {
    switch (m.what) {
    case cm_message::kind::request: return on_connect_request(m, at);
    case cm_message::kind::reply: return on_reply(m);
    case cm_message::kind::ready: return on_ready(m);
    case cm_message::kind::rejection: return on_rejection(m);
    case cm_message::kind::disconnect_request: return on_disconnect_request(m, at);
    case cm_message::kind::disconnect_reply: return on_disconnect_reply(m);
    }
}

cm_id* connection_manager::target_of(cm_message const& m) {
    cm_id* found = nullptr;
    if (m.to_id != 0) {
        found = find_id(m.to_id);
    } else {
        // The sender has heard no answer to its request.
        for (auto const& [number, id] : ids_) {
            if (id->peer == m.from_id && id->at == state::request_received) found = id.get();
        }
    }
    if (found == nullptr || !is_same(found->remote, m.from)) return nullptr;
    bool const is_from_peer = found->peer == 0 || m.from_id == 0 || found->peer == m.from_id;
    return is_from_peer ? found : nullptr;
}

// If the id is still in the same state after handshake_patience, closes it and delivers
// `otherwise`.
void connection_manager::expect_answer(
    cm_id& id, state while_in, rdma_cm_event_type otherwise, int status
) {
    net_.at(
        net_.now() + handshake_patience,
        [this, number = id.number, while_in, otherwise, status] {
            cm_id* const still = find_id(number);
            if (still == nullptr || still->at != while_in) return;
            still->at = state::closed;
            tell(*still, otherwise, status);
        }
    );
}

int connection_manager::connect(rdma_cm_id* raw, rdma_conn_param const* p) {
    cm_id* const id = id_of(raw);
    if (id == nullptr || id->at != state::route_resolved || (p == nullptr && id->qp == nullptr))
        return EINVAL;
    if (p != nullptr && p->private_data_len > request_data_max) return EINVAL;
    id->own = terms_of(*id, p);
    std::uint32_t const depth_max = id->on->options.read_depth_max;
    if (id->own.responder_resources > depth_max || id->own.initiator_depth > depth_max)
        return EINVAL;
    id->at = state::request_sent;
    id->is_active = true;
    cm_message request = to_peer(*id, cm_message::kind::request);
    request.with = id->own;
    send(*id->on, std::move(request));
    expect_answer(*id, state::request_sent, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
    return 0;
}

void connection_manager::on_connect_request(
    cm_message const& m, device& at, std::optional<nanoseconds> until
) {
    auto const refuse = [&](int reason) {
        cm_message answer = answer_to(m, cm_message::kind::rejection);
        answer.reason = reason;
        send(at, std::move(answer));
    };
    if (net_.faults.reject_with)
        return refuse(*std::exchange(net_.faults.reject_with, std::nullopt));
    // The oldest one, as a run must not depend on memory addresses.
    cm_id* found = nullptr;
    for (cm_id* const id : bound_) {
        bool const listens = id->at == state::listening && !id->is_abandoned &&
                             id->number >= at.killed_below && port_of(id->local) == port_of(m.to) &&
                             (is_any(id->local) || is_same(id->local, m.to));
        if (listens && (found == nullptr || id->number < found->number)) found = id;
    }
    if (found == nullptr) {
        auto const last =
            until.value_or(net_.others == nullptr ? net_.now() : net_.now() + listener_patience);
        if (net_.now() >= last) return refuse(no_such_service);
        return net_.at(net_.now() + listener_pause, [this, m, &at, last] {
            if (at.is_reachable()) on_connect_request(m, at, last);
        });
    }
    cm_id& listener = *found;
    if (listener.waiting_requests >= static_cast<std::size_t>(listener.backlog))
        return refuse(refused_by_program);
    ++listener.waiting_requests;
    cm_id& child =
        make_id(static_cast<cm_channel&>(*listener.channel), listener.context, listener.ps);
    if (attach(child, at) != 0) return forget(child);
    child.at = state::request_received;
    child.peer = m.from_id;
    child.listener = listener.number;
    child.theirs = m.with;
    child.local = m.to;
    child.remote = m.from;
    store_source(child);
    store(child.route.addr.dst_storage, child.remote);
    tell(listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0, &child.theirs, child.number);
}

// The attributes of a queue pair for the state in `a`, from what both sides have said. Source: cm_init_qp_*_attr in
// drivers/infiniband/core/cm.c.
void connection_manager::describe(cm_id const& id, ibv_qp_attr& a, int& mask) const {
    std::uint8_t const resources =
        id.is_active ? id.theirs.initiator_depth : id.own.responder_resources;
    if (a.qp_state == IBV_QPS_INIT) {
        mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        a.port_num = 1;
        a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        if (resources > 0) a.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    } else if (a.qp_state == IBV_QPS_RTR) {
        mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        a.dest_qp_num = id.theirs.qp_num;
        a.max_dest_rd_atomic = resources;
        // The request's path holds for both directions.
        a.path_mtu = mtu_code(id.is_active ? id.own.path_mtu_bytes : id.theirs.path_mtu_bytes);
        a.ah_attr = {};
        a.ah_attr.is_global = 1;
        a.ah_attr.port_num = 1;
        a.ah_attr.grh.dgid = gid_of(id.remote);
        a.ah_attr.grh.traffic_class = id.is_active ? id.own.traffic_class : id.theirs.traffic_class;
        ibv_gid const& own = id.route.addr.addr.ibaddr.sgid;
        for (std::size_t i = 0; i < id.on->addresses.size(); ++i) {
            ibv_gid const gid = gid_of(id.on->addresses[i]);
            if (std::memcmp(gid.raw, own.raw, sizeof gid.raw) == 0)
                a.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(i);
        }
    } else {
        mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
               IBV_QP_MAX_QP_RD_ATOMIC;
        a.max_rd_atomic = id.is_active ? id.theirs.responder_resources : id.own.initiator_depth;
        a.timeout = id.ack_timeout.value_or(19);
        a.retry_cnt = id.is_active ? id.own.retry_count : id.theirs.retry_count;
        a.rnr_retry = id.theirs.rnr_retry_count;
    }
}

int connection_manager::to_ready_to_send(cm_id& id) {
    if (id.qp == nullptr) return 0;
    ibv_qp_attr a{};
    int mask = 0;
    a.qp_state = IBV_QPS_INIT;
    describe(id, a, mask);
    a.qp_state = IBV_QPS_RTR;
    describe(id, a, mask);
    if (int const error = net_.modify_qp(id.qp, &a, mask | IBV_QP_ACCESS_FLAGS)) return error;
    a.qp_state = IBV_QPS_RTS;
    describe(id, a, mask);
    return net_.modify_qp(id.qp, &a, mask);
}

int connection_manager::init_qp_attr(rdma_cm_id* raw, ibv_qp_attr& attributes, int& mask) {
    cm_id const* const id = id_of(raw);
    if (id == nullptr || id->on == nullptr || id->at > state::connected) return EINVAL;
    if (id->at < state::request_sent) {
        // Without a peer, whatever the state. Source: cma_ib_init_qp_attr in drivers/infiniband/core/cma.c.
        mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        attributes.qp_access_flags = 0;
        attributes.port_num = 1;
        return 0;
    }
    bool const knows_peer = id->at != state::request_sent;
    switch (attributes.qp_state) {
    case IBV_QPS_INIT: break;
    case IBV_QPS_RTR:
        if (!knows_peer) return EINVAL;
        break;
    case IBV_QPS_RTS:
        if (!knows_peer || id->at == state::request_received) return EINVAL;
        break;
    default: return EINVAL;
    }
    describe(*id, attributes, mask);
    return 0;
}

// What a program with a queue pair of its own answers to RDMA_CM_EVENT_CONNECT_RESPONSE.
int connection_manager::establish(rdma_cm_id* raw) {
    cm_id* const id = id_of(raw);
    if (id == nullptr || id->qp != nullptr || id->at != state::reply_received) return EINVAL;
    id->at = state::connected;
    send(*id->on, to_peer(*id, cm_message::kind::ready));
    return 0;
}

int connection_manager::accept(rdma_cm_id* raw, rdma_conn_param const* p) {
    cm_id* const id = id_of(raw);
    if (id == nullptr) return EINVAL;
    if (id->is_abandoned) return 0;
    if (id->at != state::request_received || (p == nullptr && id->qp == nullptr)) return EINVAL;
    if (p != nullptr && p->private_data_len > reply_data_max) return EINVAL;
    id->own = terms_of(*id, p);
    std::uint32_t const depth_max = id->on->options.read_depth_max;
    if (id->own.responder_resources > depth_max || id->own.initiator_depth > depth_max)
        return EINVAL;
    if (int const error = to_ready_to_send(*id)) return error;
    id->at = state::reply_sent;
    expect_answer(*id, state::reply_sent, RDMA_CM_EVENT_CONNECT_ERROR, -ETIMEDOUT);
    cm_message reply = to_peer(*id, cm_message::kind::reply);
    reply.with = id->own;
    send(*id->on, std::move(reply));
    return 0;
}

void connection_manager::on_reply(cm_message const& m) {
    cm_id* const client = target_of(m);
    if (client == nullptr || client->at != state::request_sent) return;
    client->peer = m.from_id;
    client->theirs = m.with;
    client->at = state::reply_received;
    tell(*client, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, &client->theirs);
}

void connection_manager::on_ready(cm_message const& m) {
    cm_id* const server = target_of(m);
    if (server == nullptr || server->at != state::reply_sent) return;
    server->at = state::connected;
    tell(*server, RDMA_CM_EVENT_ESTABLISHED);
}

int connection_manager::reject(rdma_cm_id* raw, void const* data, std::size_t size) {
    cm_id* const id = id_of(raw);
    if (id == nullptr) return EINVAL;
    if (id->is_abandoned) return 0;
    if (id->at != state::request_received || size > rejection_data_max) return EINVAL;
    send_rejection(*id, refused_by_program, bytes_of(data, size));
    return 0;
}

void connection_manager::send_rejection(cm_id& id, int reason, std::vector<std::byte> data) {
    id.at = state::closed;
    cm_message rejection = to_peer(id, cm_message::kind::rejection);
    rejection.reason = reason;
    rejection.with.private_data = std::move(data);
    send(*id.on, std::move(rejection));
}

void connection_manager::on_rejection(cm_message const& m) {
    cm_id* const id = target_of(m);
    if (id == nullptr) return;
    bool const is_waiting = id->at == state::request_sent || id->at == state::request_received ||
                            id->at == state::reply_sent || id->at == state::reply_received;
    // The peer was destroyed before it had heard that this side is connected. Source: Linux,
    // cm_rej_handler() and cma_ib_handler().
    bool const is_late = id->at == state::connected;
    if (!is_waiting && !is_late) return;
    if (is_late && id->qp != nullptr) static_cast<queue_pair&>(*id->qp).move_to_error();
    // An id that its program has not accepted receives no event: the kernel does not know its owner
    // yet.
    bool const is_known = id->at != state::request_received;
    id->at = state::closed;
    if (!is_known) return;
    int status = m.reason;
    // As the kernel's: an errno instead of a reason.
    if (id->on->options.is_iwarp)
        status = m.reason == refused_by_program ? -ECONNRESET : -ECONNREFUSED;
    tell(*id, RDMA_CM_EVENT_REJECTED, status, &m.with);
}

// --- the end -------------------------------------------------------------------------------------

void connection_manager::send_disconnect_request(cm_id& id) {
    id.at = state::disconnect_sent;
    send(*id.on, to_peer(id, cm_message::kind::disconnect_request));
}

void connection_manager::send_disconnect_reply(cm_id& id) {
    id.at = state::closed;
    send(*id.on, to_peer(id, cm_message::kind::disconnect_reply));
    net_.at(net_.now() + time_wait, [this, number = id.number] {
        if (cm_id* const still = find_id(number)) tell(*still, RDMA_CM_EVENT_TIMEWAIT_EXIT);
    });
}

int connection_manager::disconnect(rdma_cm_id* raw) {
    cm_id* const id = id_of(raw);
    if (id == nullptr || id->on == nullptr) return EINVAL;
    if (id->qp != nullptr) {
        auto& qp = static_cast<queue_pair&>(*id->qp);
        qp.send_last();
        qp.move_to_error();
    }
    if (id->is_abandoned) return 0;
    switch (id->at) {
    case state::reply_sent: return 0;  // the kernel sends nothing during the handshake
    case state::connected:
        send_disconnect_request(*id);
        expect_answer(*id, state::disconnect_sent, RDMA_CM_EVENT_DISCONNECTED, 0);
        return 0;
    case state::disconnect_received: send_disconnect_reply(*id); return 0;
    case state::disconnect_sent:
    case state::closed: return 0;
    default: return EINVAL;
    }
}

void connection_manager::on_disconnect_request(cm_message const& m, device& at) {
    cm_id* const id = target_of(m);
    bool const is_known =
        id != nullptr && (id->at == state::connected || id->at == state::reply_sent ||
                          id->at == state::reply_received || id->at == state::disconnect_sent);
    if (!is_known) {
        // The kernel replies for an id that no longer exists.
        return send(at, answer_to(m, cm_message::kind::disconnect_reply));
    }
    id->at = state::disconnect_received;
    tell(*id, RDMA_CM_EVENT_DISCONNECTED);
}

void connection_manager::on_disconnect_reply(cm_message const& m) {
    cm_id* const id = target_of(m);
    if (id == nullptr || id->at != state::disconnect_sent) return;
    id->at = state::closed;
    tell(*id, RDMA_CM_EVENT_DISCONNECTED);
    net_.at(net_.now() + time_wait, [this, to = m.to_id] {
        if (cm_id* const still = find_id(to)) tell(*still, RDMA_CM_EVENT_TIMEWAIT_EXIT);
    });
}

// Sends the message that the kernel sends when an id in its present state is destroyed.
void connection_manager::say_goodbye(cm_id& id) {
    if (id.is_abandoned) return;
    switch (id.at) {
    case state::request_sent:
    case state::request_received:
    case state::reply_sent:
    case state::reply_received: send_rejection(id, refused_by_program, {}); break;
    case state::connected: send_disconnect_request(id); break;
    case state::disconnect_received: send_disconnect_reply(id); break;
    default: break;
    }
    id.at = state::closed;
}

// --- device failures -----------------------------------------------------------------------------

void connection_manager::abandon(device& on, bool tells_peers) {
    std::vector<std::uint64_t> numbers;  // drop_events() destroys requests, so ids_ changes
    for (auto const& [number, id] : ids_) {
        if (id->on == &on) numbers.push_back(number);
    }
    for (std::uint64_t const number : numbers) {
        cm_id* const id = find_id(number);
        if (id == nullptr) continue;
        if (tells_peers) say_goodbye(*id);
        drop_events(*id);
        id->is_abandoned = true;
    }
}

void connection_manager::tell_of_removal(device& on) {
    for (auto const& [number, id] : ids_) {
        if (id->on == &on) tell(*id, RDMA_CM_EVENT_DEVICE_REMOVAL);
    }
}

}  // namespace rcverbs::fabric::detail
