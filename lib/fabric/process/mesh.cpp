#include "mesh.hpp"

#include "pauses.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <tuple>

namespace rcverbs::fabric::detail {

namespace {

// The most bytes in a datagram: what a socket takes in any case, with its default buffer of 208 KiB.
constexpr std::size_t datagram_bytes_max = 64 * 1024;
// Packets for a process wait while more than this has not been taken by its socket.
constexpr std::size_t waiting_bytes_max = 256 * 1024;
// A program that polls this many times without preparing to wait polls all the time.
constexpr unsigned polls_of_a_poller = 64;
// How long the network's thread leaves the work to such a program before it looks again.
constexpr nanoseconds aside_max = std::chrono::microseconds{100};
// Datagrams that are read from one process before another one has its turn.
constexpr int datagrams_in_turn = 16;

[[noreturn]] void fail(char const* what) {
    throw std::system_error{errno, std::generic_category(), what};
}

void control_poller(
    descriptor const& poller,
    int operation,
    descriptor const& socket,
    std::uint32_t events,
    void* data
) {
    epoll_event e{};
    e.events = events;
    e.data.ptr = data;
    if (::epoll_ctl(poller.get(), operation, socket.get(), &e) != 0) fail("epoll_ctl");
}

std::uint32_t slot_of_qp(std::uint32_t qp_num) noexcept { return qp_num >> 16; }
// An id is the generation of its process (24 bits), its slot (8) and a number (32).
std::uint32_t slot_of_id(std::uint64_t id) noexcept { return id >> 32 & 0xff; }
std::uint32_t generation_of_id(std::uint64_t id) noexcept {
    return static_cast<std::uint32_t>(id >> 40);
}

std::uint16_t port_of(address const& a) noexcept {
    return ntohs(
        a.family() == AF_INET ? reinterpret_cast<sockaddr_in const&>(a.raw).sin_port
                              : reinterpret_cast<sockaddr_in6 const&>(a.raw).sin6_port
    );
}

void append(std::vector<std::byte>& to, std::vector<std::byte> const& frame) {
    to.insert(to.end(), frame.begin(), frame.end());
}

}  // namespace

std::uint32_t node_of(ibv_gid const& gid) noexcept {
    static constexpr std::uint8_t v4[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77};
    static constexpr std::uint8_t v6[] = {0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    if (std::memcmp(gid.raw, v4, sizeof v4) == 0) return gid.raw[15];
    if (std::memcmp(gid.raw, v6, sizeof v6) == 0 && gid.raw[14] == 0) return gid.raw[15];
    return 0;
}

mesh::mesh(network& net, directory where, std::uint32_t node, settings const& with)
    : net_{net},
      where_{std::move(where)},
      node_lock_{where_.join_node(node)},
      node_{node},
      slot_{where_.take_slot(node)},
      listener_{listen_at(where_.socket_path(node_, slot_.number))},
      waker_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)},
      poller_{::epoll_create1(EPOLL_CLOEXEC)},
      datagram_(datagram_bytes_max),
      // Processes that lose packets do not all lose the same.
      random_{net.seed() + (std::uint64_t{node} << 32) + slot_.number},
      loss_{with.loss},
      delay_{std::chrono::microseconds{with.delay_us}} {
    if (!with.kill.empty()) kill_ = parse_kill(with.kill);
    if (!with.capture.empty()) capture_.emplace(with.capture);
    net_.faults.packet_decision = [this](packet_info const&) { return decide(); };
    if (!node_lock_) throw std::runtime_error{"node " + std::to_string(node) + " cannot be joined"};
    if (!listener_ || !waker_ || !poller_) fail("a descriptor for the network");
    control_poller(poller_, EPOLL_CTL_ADD, listener_, EPOLLIN, &listener_);
    control_poller(poller_, EPOLL_CTL_ADD, waker_, EPOLLIN, &waker_);
    if (loss_ > 0) show_faults();
    if (with.is_stepped) join_stepper();
}

mesh::~mesh() { where_.remove_socket(node_, slot_.number); }

// --- who is where --------------------------------------------------------------------------------

bool mesh::is_elsewhere(ibv_gid const& gid, std::uint32_t qp_num) const noexcept {
    return node_of(gid) != node_ || slot_of_qp(qp_num) != slot_.number;
}

bool mesh::is_elsewhere(address const& to, std::uint64_t id) {
    if (node_of(gid_of(to)) != node_) return true;
    if (id != 0) return slot_of_id(id) != slot_.number;
    return !ports_.contains(port_of(to)) && where_.find_port(node_, port_of(to)).has_value();
}

bool mesh::has_neighbour(address const& to) const noexcept {
    std::uint32_t const node = node_of(gid_of(to));
    if (node == 0) return false;
    std::vector<std::uint32_t> const nodes = where_.nodes();
    return std::ranges::find(nodes, node) != nodes.end();
}

std::uint32_t mesh::first_qp_num() const noexcept { return (slot_.number << 16) + 0x11; }

std::uint64_t mesh::first_id() const noexcept {
    return (std::uint64_t{slot_.generation} << 40) + (std::uint64_t{slot_.number} << 32) + 1;
}

int mesh::claim_port(std::uint16_t port) {
    claimed_port& p = ports_[port];
    if (p.users == 0) p.lock = where_.take_port(node_, slot_.number, port);
    if (!p.lock) {
        ports_.erase(port);
        return EADDRINUSE;
    }
    ++p.users;
    return 0;
}

void mesh::show_port(std::uint16_t port) noexcept {
    where_.show_port(ports_[port].lock, slot_.number);
}

void mesh::release_port(std::uint16_t port) noexcept {
    auto const found = ports_.find(port);
    if (found != ports_.end() && --found->second.users == 0) ports_.erase(found);
}

// --- sending -------------------------------------------------------------------------------------

mesh::peer* mesh::add(descriptor socket, bool is_outgoing) {
    auto made = std::make_unique<peer>();
    made->socket = std::move(socket);
    made->is_outgoing = is_outgoing;
    peer* const p = made.get();
    peers_.emplace(p, std::move(made));
    watch(*p, EPOLL_CTL_ADD);
    return p;
}

// In stepped time, the stepper asks what can be done.
void mesh::watch(peer& which, int operation) {
    std::uint32_t const events = which.waiting.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
    if (!is_stepped_) control_poller(poller_, operation, which.socket, events, &which);
}

// The connection to a process, which is made if there is none; null if nobody is there.
mesh::peer* mesh::reach(place const& to) {
    auto const known = places_.find(to);
    if (known != places_.end()) return known->second;
    descriptor socket = connect_to(where_.socket_path(to.first, to.second));
    if (!socket) return nullptr;
    peer* const p = add(std::move(socket), true);
    p->who = to;
    p->generation = where_.generation_of(to.first, to.second);
    places_.emplace(to, p);
    append(p->collected, hello{node_, slot_.number});
    return p;
}

bool mesh::has_room(ibv_gid const& to, std::uint32_t qp_num) noexcept {
    auto const known = places_.find({node_of(to), slot_of_qp(qp_num)});
    if (known == places_.end() || known->second->waiting_bytes < waiting_bytes_max) return true;
    had_full_ = true;
    return false;
}

// A datagram is sent when no other frame is sure to fit.
void mesh::collect(peer& to, auto const& what) {
    to.collected.reserve(datagram_bytes_max);
    append(to.collected, what);
    if (to.collected.size() > datagram_bytes_max - frame_bytes_max) send_collected(to);
    if (!std::exchange(to.is_dirty, true)) dirty_.push_back(&to);
}

nanoseconds mesh::capture_time() const {
    return time().value_or(std::chrono::system_clock::now().time_since_epoch());
}

void mesh::send(packet const& p) {
    if (capture_) capture_->write(roce_frame(p), capture_time());
    peer* const to = reach({node_of(p.to), slot_of_qp(p.target)});
    if (to == nullptr) return;  // lost, as on any network
    collect(*to, p);
}

bool mesh::send(cm_message const& m) {
    if (capture_) capture_->write(roce_frame(m, gid_of(m.from), gid_of(m.to)), capture_time());
    std::uint32_t const node = node_of(gid_of(m.to));
    std::optional<std::uint32_t> slot = slot_of_id(m.to_id);
    if (m.to_id == 0) slot = where_.find_port(node, port_of(m.to));
    peer* const to = node != 0 && slot ? reach({node, *slot}) : nullptr;
    if (to == nullptr) return false;
    collect(*to, m);
    return true;
}

// False if the socket is full. What a process that has ended does not get is lost, as on any network; what
// it has sent before may still be unread, so that only read() finds its end.
bool mesh::send_now(peer& to, std::vector<std::byte> const& datagram) {
    ssize_t const sent =
        ::send(to.socket.get(), datagram.data(), datagram.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent >= 0 ||
           (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ENOBUFS);
}

void mesh::send_collected(peer& to) {
    if (to.is_ended) to.collected.clear();
    if (to.collected.empty()) return;
    if (to.waiting.empty() && send_now(to, to.collected)) {
        to.collected.clear();
        return;
    }
    to.waiting_bytes += to.collected.size();
    to.waiting.push_back(std::exchange(to.collected, {}));
    if (to.waiting.size() == 1) watch(to, EPOLL_CTL_MOD);
}

void mesh::send_waiting(peer& to) {
    while (!to.waiting.empty() && send_now(to, to.waiting.front())) {
        to.waiting_bytes -= to.waiting.front().size();
        to.waiting.pop_front();
    }
    if (to.waiting.empty()) watch(to, EPOLL_CTL_MOD);
    if (to.waiting_bytes < waiting_bytes_max && std::exchange(had_full_, false)) net_.on_room();
}

void mesh::flush() {
    bool const has_changed = is_stepped_ && !dirty_.empty();
    for (peer* const p : std::exchange(dirty_, {})) {
        p->is_dirty = false;
        send_collected(*p);
    }
    if (has_changed) tell_change();
}

bool mesh::has_unsent() const noexcept {
    return std::ranges::any_of(peers_, [](auto const& entry) {
        return !entry.second->waiting.empty();
    });
}

// --- receiving -----------------------------------------------------------------------------------

void mesh::accept_all() {
    for (;;) {
        descriptor socket{
            ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
        if (!socket) return;
        add(std::move(socket), false);
    }
}

// False if the frame may not come from there.
bool mesh::take(peer& from, std::span<std::byte const> datagram) {
    while (!datagram.empty()) {
        std::optional<frame> const next = take_frame(datagram);
        if (!next) return false;
        if (auto const* const h = std::get_if<hello>(&*next)) {
            place const who{h->node, h->slot};
            // The kernel says which process connected, and the lock of its slot which process it is of.
            if (from.who || !where_.is_end_of(from.socket.get(), who.first, who.second))
                return false;
            from.who = who;
            from.generation = where_.generation_of(who.first, who.second);
            // The one before may have ended unread.
            peer*& known = places_[who];
            if (known == nullptr || known->generation != from.generation) known = &from;
            continue;
        }
        if (auto const* const c = std::get_if<control>(&*next)) {
            if (from.who) {
                if (!hear(from, *c)) return false;
            } else {
                obey(*c);  // of rcverbs-fabric, which is no member
            }
            continue;
        }
        if (!from.who) return false;
        if (auto const* const p = std::get_if<packet>(&*next)) {
            place const source{node_of(p->from), slot_of_qp(p->source)};
            if (source != *from.who || node_of(p->to) != node_) return false;
            net_.deliver(*p);
        } else {
            auto const& m = std::get<cm_message>(*next);
            bool const is_its = node_of(gid_of(m.from)) == from.who->first &&
                                (m.from_id == 0 || slot_of_id(m.from_id) == from.who->second);
            if (!is_its || node_of(gid_of(m.to)) != node_) return false;
            net_.cm.receive(m);
        }
    }
    return true;
}

// True if there may be more.
bool mesh::read(peer& from, int datagrams_max) {
    for (int i = 0; i < datagrams_max && !from.is_ended; ++i) {
        ssize_t const size =
            ::recv(from.socket.get(), datagram_.data(), datagram_.size(), MSG_DONTWAIT | MSG_TRUNC);
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
        // It has ended before it had read all. What it had sent follows.
        if (size < 0 && errno == ECONNRESET) continue;
        bool const is_whole = size > 0 && static_cast<std::size_t>(size) <= datagram_.size();
        if (!is_whole || !take(from, std::span{datagram_}.first(static_cast<std::size_t>(size)))) {
            end(from);
        }
    }
    return true;
}

std::optional<nanoseconds> mesh::time() const noexcept {
    if (!is_stepped_) return std::nullopt;
    // Relaxed: the number orders nothing.
    return nanoseconds{stepped_ns_.load(std::memory_order_relaxed)};
}

bool mesh::may_run_timers() noexcept { return !is_stepped_ || std::exchange(runs_timers_, false); }

bool mesh::receive() {
    epoll_event events[16];
    int const count = ::epoll_wait(poller_.get(), events, std::size(events), 0);
    bool any = false;
    for (int i = 0; i < count; ++i) {
        void* const data = events[i].data.ptr;
        // A thread that polls leaves it to the network's thread, which could sleep on otherwise: wait().
        if (data == &waker_) {
            if (is_stepped_) {
                take_wake();
                tell_change();
            }
            continue;
        }
        any = true;
        if (data == &stepper_) {
            any = obey_stepper() || any;
            continue;
        }
        if (data == &listener_) {
            accept_all();
            if (is_stepped_) tell_change();
            continue;
        }
        auto& from = *static_cast<peer*>(data);
        if ((events[i].events & EPOLLOUT) != 0) send_waiting(from);
        if ((events[i].events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0)
            read(from, datagrams_in_turn);
    }
    if (any) remove_ended();
    return any;
}

// --- the end of a process ------------------------------------------------------------------------

void mesh::end(peer& which) {
    if (std::exchange(which.is_ended, true)) return;
    has_ended_ = true;
    which.waiting.clear();
    which.waiting_bytes = 0;
    watch(which, EPOLL_CTL_DEL);
}

// Later than end(): whoever found the end still uses the peer.
void mesh::remove_ended() {
    while (std::exchange(has_ended_, false)) {
        struct lost_peer {
            place who;
            std::uint32_t generation;
        };
        std::vector<lost_peer> lost;
        std::erase_if(peers_, [&](auto const& entry) {
            peer& p = *entry.second;
            if (!p.is_ended) return false;
            std::erase(dirty_, &p);
            if (!p.who) return true;
            auto const known = places_.find(*p.who);
            if (known != places_.end() && known->second == &p) places_.erase(known);
            if (!p.is_silent) lost.push_back({*p.who, p.generation});
            return true;
        });
        for (auto const& [who, generation] : lost) {
            // Two processes may have connected to each other at once: the other connection lives.
            bool const is_alive = std::ranges::any_of(peers_, [&](auto const& entry) {
                peer const& p = *entry.second;
                return p.who == who && p.generation == generation && !p.is_ended;
            });
            if (is_alive) continue;
            net_.cm.lose_peers([&](address const& remote, std::uint64_t id) {
                if (node_of(gid_of(remote)) != who.first) return false;
                if (id == 0) {
                    return where_.find_port(who.first, port_of(remote)).value_or(who.second) ==
                           who.second;
                }
                return slot_of_id(id) == who.second &&
                       (generation == 0 || generation_of_id(id) == generation);
            });
        }
    }
}

// --- steps ---------------------------------------------------------------------------------------

void mesh::join_stepper() {
    stepper_ = connect_to(where_.stepper_path());
    if (!stepper_) throw std::runtime_error{"the stepper of the network has ended"};
    is_stepped_ = true;
    control_poller(poller_, EPOLL_CTL_ADD, stepper_, EPOLLIN, &stepper_);
    step_message m;
    m.what = step_word::hello;
    m.source = {node_, slot_.number, 0};
    tell_stepper(m);
    pauses::instance().start();
}

void mesh::tell_stepper(step_message const& m) noexcept {
    static_cast<void>(::send(stepper_.get(), &m, sizeof m, MSG_NOSIGNAL));
}

void mesh::tell_change() noexcept {
    if (has_told_change_.exchange(true)) return;
    step_message m;
    m.what = step_word::changed;
    tell_stepper(m);
}

// True if there was an order that changes anything.
bool mesh::obey_stepper() {
    step_message order;
    ssize_t const size = ::recv(stepper_.get(), &order, sizeof order, MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN) return false;
    if (size != sizeof order) {
        std::fputs("rcverbs-fabric: the stepper has ended; nothing arrives any more\n", stderr);
        control_poller(poller_, EPOLL_CTL_DEL, stepper_, 0, nullptr);
        return false;
    }
    stepped_ns_ = order.now_ns;
    if (order.what == step_word::query) {
        answer_stepper();
        return false;
    }
    take_step(order);
    return true;
}

// Who has the other end of a connection. Before it was introduced, its first datagram says so; of one that says
// nothing, such as rcverbs-fabric, it is 0.
step_source mesh::place_of(peer const& which) {
    step_source s;
    s.is_outgoing = which.is_outgoing ? 1 : 0;
    if (which.who) {
        std::tie(s.node, s.slot) = *which.who;
        return s;
    }
    ssize_t const size =
        ::recv(which.socket.get(), datagram_.data(), datagram_.size(), MSG_DONTWAIT | MSG_PEEK);
    std::span<std::byte const> rest = std::span{datagram_}.first(size > 0 ? std::size_t(size) : 0);
    if (auto const first = take_frame(rest)) {
        if (auto const* const h = std::get_if<hello>(&*first)) {
            s.node = h->node;
            s.slot = h->slot;
        }
    }
    return s;
}

// All that can be done now.
std::vector<std::pair<step_source, mesh::peer*>> mesh::step_sources() {
    std::vector<std::pair<step_source, peer*>> all;
    for (auto const& [p, owned] : peers_) {
        short const wanted = owned->waiting.empty() ? POLLIN : POLLIN | POLLOUT;
        pollfd can{owned->socket.get(), wanted, 0};
        if (owned->is_ended || ::poll(&can, 1, 0) != 1) continue;
        step_source s = place_of(*owned);
        if ((can.revents & ~POLLOUT) != 0) all.emplace_back(s, owned.get());
        s.is_sending = 1;
        if ((can.revents & POLLOUT) != 0) all.emplace_back(s, owned.get());
    }
    return all;
}

void mesh::answer_stepper() {
    has_told_change_ = false;
    accept_all();
    std::vector<step_source> ready;
    for (auto const& [source, p] : step_sources()) {
        if (ready.size() < step_sources_max) ready.push_back(source);
    }
    step_message m;
    m.what = step_word::answer;
    m.is_restless = pauses::instance().is_restless();
    m.thread = ::gettid();
    m.count = static_cast<std::uint32_t>(ready.size());
    if (auto const next = net_.next_event()) m.next_ns = next->count();
    iovec parts[] = {{&m, sizeof m}, {ready.data(), ready.size() * sizeof(step_source)}};
    msghdr all{};
    all.msg_iov = parts;
    all.msg_iovlen = 2;
    static_cast<void>(::sendmsg(stepper_.get(), &all, MSG_NOSIGNAL));
}

void mesh::take_step(step_message const& order) {
    step_ = order.step;
    owes_done_ = true;
    if (order.what == step_word::run) {
        runs_timers_ = true;
        return;
    }
    for (auto const& [source, p] : step_sources()) {
        if (source != order.source) continue;
        if (source.is_sending != 0) send_waiting(*p);
        else read(*p, 1);
        return;
    }
}

// --- faults --------------------------------------------------------------------------------------

packet_fate mesh::decide() {
    ++packets_;
    if (kill_ && packets_ == kill_->packet) kill(kill_->node);
    if (loss_ > 0 && std::uniform_real_distribution<>{}(random_) < loss_)
        return {packet_fate::kind::drop};
    if (delay_ > nanoseconds{0}) return {packet_fate::kind::delay, delay_};
    return {};
}

void mesh::kill(std::uint32_t node) {
    for (std::uint32_t const slot : where_.slots(node)) {
        pid_t const process = where_.process_of(node, slot);
        if (process > 0 && (node != node_ || slot != slot_.number)) ::kill(process, SIGKILL);
    }
    if (node == node_) ::kill(::getpid(), SIGKILL);
}

void mesh::obey(control const& c) {
    bool const is_down = c.text == "link down";
    if (is_down || c.text == "link up") {
        is_link_down_ = is_down;
        for (auto const& d : net_.devices) net_.set_port(*d, !is_down);
        announce_link(!is_down);
    } else if (c.text.starts_with("loss ")) {
        loss_ = std::strtod(c.text.c_str() + 5, nullptr);
    }
    show_faults();
}

// For `rcverbs-fabric list`.
void mesh::show_faults() const {
    std::string all = is_link_down_ ? "link down" : "";
    if (loss_ > 0) {
        char text[32];
        std::snprintf(text, sizeof text, "%sloss %g", is_link_down_ ? ", " : "", loss_);
        all += text;
    }
    where_.show_faults(slot_, all);
}

// A process whose link is down could not tell that it ends, and neither could its kernel.
void mesh::announce_link(bool is_up) {
    std::vector<std::byte> const words = control_frame(is_up ? "heard" : "silent");
    for (auto const& [who, to] : places_) {
        collect(*to, words);
    }
}

bool mesh::hear(peer& from, control const& c) {
    from.is_silent = c.text == "silent";
    return from.is_silent || c.text == "heard";
}

// --- the network's thread ------------------------------------------------------------------------

void mesh::wait(std::unique_lock<std::mutex>& held, std::optional<nanoseconds> timeout) {
    held.unlock();
    // In stepped time the stepper knows when a timer is due.
    nanoseconds limit = nanoseconds::max();
    if (timeout && !is_stepped_) limit = *timeout;
    if (is_stepped_ && std::exchange(owes_done_, false)) {
        pauses::instance().end_step(step_);
        step_message m;
        m.what = step_word::done;
        tell_stepper(m);
    }
    bool const leaves_work =
        // Relaxed, as all of it: how often polling was in vain.
        !is_stepped_ && empty_polls_.load(std::memory_order_relaxed) >= polls_of_a_poller;
    if (leaves_work) {
        // Only wake() ends this wait early.
        is_aside_ = true;
        empty_polls_.store(0, std::memory_order_relaxed);
        timespec const t{0, std::min(limit, aside_max).count()};
        pollfd p{waker_.get(), POLLIN, 0};
        ::ppoll(&p, 1, &t, nullptr);
        is_aside_ = false;
    } else {
        epoll_event e;
        timespec const t{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
        bool const is_limited = limit != nanoseconds::max();
        // Level-triggered: receive() sees the same events again.
        ::epoll_pwait2(poller_.get(), &e, 1, is_limited ? &t : nullptr, nullptr);
    }
    if (!is_stepped_) take_wake();
    held.lock();
}

void mesh::take_wake() noexcept {
    eventfd_t ignored = 0;
    static_cast<void>(::eventfd_read(waker_.get(), &ignored));
}

void mesh::wake() noexcept { static_cast<void>(::eventfd_write(waker_.get(), 1)); }

bool mesh::note_poll() noexcept {
    if (is_stepped_) {
        pauses::instance().on_empty_poll();
        return false;
    }
    // Relaxed: a lost count only delays the decision.
    return empty_polls_.fetch_add(1, std::memory_order_relaxed) + 1 >= polls_of_a_poller ||
           is_aside_.load(std::memory_order_relaxed);
}

void mesh::note_arm() noexcept {
    empty_polls_.store(0, std::memory_order_relaxed);
    if (is_aside_.load(std::memory_order_relaxed)) wake();
}

}  // namespace rcverbs::fabric::detail
