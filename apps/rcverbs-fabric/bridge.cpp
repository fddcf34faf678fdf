#include "bridge.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

#include "background.hpp"
#include "frame.hpp"
#include "messages.hpp"

namespace rcverbs::fabric {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using detail::descriptor;
using detail::directory;
using stream = asio::posix::stream_descriptor;

constexpr auto awaiting = asio::as_tuple(asio::use_awaitable);
constexpr std::string_view greeting = "rcverbs-fabric " RCVERBS_VERSION;
// What one side may make the other one keep.
constexpr std::size_t channels_max = 1024;
constexpr std::size_t unsent_bytes_max = std::size_t{64} << 20U;
constexpr std::size_t places_max = 1024;
constexpr std::size_t machines_max = 64;
// A process has ended a moment after inotify has told of its files.
constexpr std::chrono::milliseconds after_change{20};
constexpr std::chrono::seconds between_looks{1};
constexpr std::chrono::seconds answer_timeout{10};

// A stream with the descriptor.
stream make_stream(asio::io_context& io, descriptor const& of) {
    return stream{io, ::fcntl(of.get(), F_DUPFD_CLOEXEC, 0)};
}

class runner;

// Holds back a coroutine until notify().
class signal_flag {
public:
    explicit signal_flag(asio::io_context& io)
        : timer_{io, asio::steady_timer::time_point::max()} {}
    void notify() { timer_.cancel(); }
    asio::awaitable<void> wait() { co_await timer_.async_wait(awaiting); }

private:
    asio::steady_timer timer_;
};

// A connection between a process of this machine and one of the other.
struct channel {
    channel(asio::io_context& io, std::uint32_t number, descriptor const& socket)
        : id{number},
          local{make_stream(io, socket)},
          has_window{io},
          has_data{io} {}

    std::uint32_t const id;
    stream local;
    // Who sends the first datagram here says who it is.
    bool is_introduced = false;
    std::size_t untaken = 0;  // sent to the other side
    signal_flag has_window;
    std::deque<std::vector<std::byte>> waiting;  // for the process
    std::size_t waiting_bytes = 0;
    signal_flag has_data;
    bool is_closing = false;  // nothing more comes from the other side
    bool is_ended = false;
};

// What stands here for a process of the other machine.
struct stand_in {
    stand_in(asio::io_context& io, descriptor held, descriptor const& socket)
        : lock{std::move(held)},
          listener{make_stream(io, socket)} {}

    descriptor lock;
    stream listener;
};

// The other machine.
class link : public std::enable_shared_from_this<link> {
public:
    link(runner& of, tcp::socket socket, bool gives_numbers);

    void start();
    void end(std::string const& why);
    bool has_ended() const noexcept { return is_ended_; }
    // Tells the other side what there is here, if that has changed.
    void show(network_state const& all);
    // Asks the other side for a node.
    void want_node(std::function<void(std::uint32_t)> then);
    bool has_node(std::uint32_t node) const {
        return theirs_.nodes.contains(node) || reserved_.contains(node);
    }
    bool has_heard() const noexcept { return has_heard_; }

private:
    void send(std::vector<std::byte> message);
    asio::awaitable<void> write_all();
    asio::awaitable<void> read_all();
    bool take(message_type what, std::span<std::byte const> content);
    bool take_state(std::string_view text);
    bool add(place const& who);
    asio::awaitable<void> accept_all(place who);
    bool open(std::uint32_t id, place const& to);
    void run(std::shared_ptr<channel> const& c);
    asio::awaitable<void> from_process(std::shared_ptr<channel> c);
    asio::awaitable<void> to_process(std::shared_ptr<channel> c);
    bool is_allowed(channel& c, std::span<std::byte const> datagram);
    void close(channel& c);

    runner& runner_;
    tcp::socket socket_;
    bool const gives_numbers_;
    std::deque<std::vector<std::byte>> outgoing_;
    std::size_t unsent_bytes_ = 0;
    signal_flag has_outgoing_;
    bool is_ended_ = false;
    bool has_heard_ = false;
    std::optional<std::string> shown_;
    network_state theirs_;
    std::map<std::uint32_t, descriptor> nodes_;
    std::map<std::uint32_t, descriptor> reserved_;  // given to the other side
    std::map<place, std::unique_ptr<stand_in>> places_;
    std::map<network_state::port, descriptor> ports_;
    std::map<std::uint32_t, std::shared_ptr<channel>> channels_;
    std::uint32_t next_channel_;
    std::map<std::uint32_t, std::function<void(std::uint32_t)>> wanted_;
    std::uint32_t next_token_ = 1;
};

// The process of a bridge.
class runner {
public:
    runner(directory in, background& of)
        : where{std::move(in)},
          background_{of},
          life_{make_stream(io, of.life())},
          inotify_{make_stream(io, descriptor{::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)})},
          look_again_{io} {}

    void listen(tcp::acceptor acceptor) {
        acceptor_.emplace(std::move(acceptor));
        asio::co_spawn(io, accept_all(), asio::detached);
        background_.report("ready");
    }
    void join(tcp::socket socket) {
        lock_ = where.take_bridge();
        if (!lock_) throw std::runtime_error{"this network has been joined meanwhile"};
        give_numbers();
        add(std::move(socket), false);
    }
    void run() {
        asio::co_spawn(io, watch_life(), asio::detached);
        asio::co_spawn(io, watch_directory(), asio::detached);
        asio::co_spawn(io, look_from_time_to_time(), asio::detached);
        io.run();
        for (auto const& l : links_) l->end("");
        if (numbers_) ::unlink(where.bridge_path().c_str());
    }
    void on_state() { background_.report("ready"); }
    // @param why  Empty if the other machine has left in order.
    void on_end(std::string const& why) {
        bool const is_said =
            background_.report("error " + (why.empty() ? "the other machine has left" : why));
        if (!is_said && !why.empty()) complain("the other machine: " + why);
        if (!acceptor_) io.stop();
    }
    // What there is here, except for what is the link's.
    network_state state_for(link const& l) const {
        network_state s;
        for (std::uint32_t const node : where.nodes()) {
            if (l.has_node(node)) continue;
            s.nodes.insert(node);
            for (std::uint32_t const slot : where.slots(node)) s.places.insert({node, slot});
            for (std::uint32_t const port : where.ports(node)) {
                auto const number = static_cast<std::uint16_t>(port);
                if (auto const slot = where.find_port(node, number))
                    s.ports.insert({node, number, *slot});
            }
        }
        return s;
    }

    asio::io_context io{1};
    directory const where;

private:
    std::shared_ptr<link> add(tcp::socket socket, bool gives_numbers) {
        auto made = std::make_shared<link>(*this, std::move(socket), gives_numbers);
        links_.push_back(made);
        made->start();
        made->show(state_for(*made));
        return made;
    }
    asio::awaitable<void> accept_all() {
        for (;;) {
            auto [ec, socket] = co_await acceptor_->async_accept(awaiting);
            std::erase_if(links_, [](auto const& l) { return l->has_ended(); });
            if (!ec) {
                if (links_.size() < machines_max) add(std::move(socket), true);
                continue;
            }
            // Without descriptors it would fail again at once.
            asio::steady_timer pause{io, between_looks};
            co_await pause.async_wait(awaiting);
        }
    }
    // Programs of this machine ask here for nodes, whose numbers the other side gives.
    void give_numbers() {
        descriptor const socket = detail::listen_at(where.bridge_path());
        if (!socket) throw std::runtime_error{where.bridge_path() + ": no socket can be made"};
        numbers_.emplace(make_stream(io, socket));
        asio::co_spawn(io, give_numbers_to_all(), asio::detached);
    }
    asio::awaitable<void> give_numbers_to_all() {
        for (;;) {
            auto const [ec] = co_await numbers_->async_wait(stream::wait_read, awaiting);
            if (ec) co_return;
            auto const who = std::make_shared<descriptor>(
                ::accept4(numbers_->native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)
            );
            if (!*who || links_.empty()) continue;
            links_.front()->want_node([who](std::uint32_t node) {
                static_cast<void>(::send(who->get(), &node, sizeof node, MSG_NOSIGNAL));
            });
        }
    }
    // The other ends of the descriptor are those of the command and its children.
    asio::awaitable<void> watch_life() {
        static_cast<void>(co_await life_.async_wait(stream::wait_read, awaiting));
        is_command_over_ = true;
        look();
    }
    asio::awaitable<void> watch_directory() {
        ::inotify_add_watch(
            inotify_.native_handle(),
            where.path().c_str(),
            IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE | IN_DELETE
        );
        std::array<std::byte, 16384> events;
        for (;;) {
            auto const [ec, size] =
                co_await inotify_.async_read_some(asio::buffer(events), awaiting);
            if (ec) co_return;
            look();
            look_again_.expires_after(after_change);
            look_again_.async_wait([this](error_code failed) {
                if (!failed) look();
            });
        }
    }
    asio::awaitable<void> look_from_time_to_time() {
        asio::steady_timer timer{io};
        for (;;) {
            timer.expires_after(between_looks);
            co_await timer.async_wait(awaiting);
            look();
        }
    }
    void look() {
        bool has_own = false;
        for (std::uint32_t const node : where.nodes()) {
            bool is_theirs = false;
            for (auto const& l : links_) is_theirs |= !l->has_ended() && l->has_node(node);
            has_own |= !is_theirs;
        }
        if (is_command_over_ && !has_own) return io.stop();
        for (auto const& l : links_) {
            if (!l->has_ended()) l->show(state_for(*l));
        }
    }

    background& background_;
    stream life_;
    stream inotify_;
    asio::steady_timer look_again_;
    std::optional<tcp::acceptor> acceptor_;
    descriptor lock_;
    std::optional<stream> numbers_;
    std::vector<std::shared_ptr<link>> links_;
    bool is_command_over_ = false;
};

// --- links ---------------------------------------------------------------------------------------

link::link(runner& of, tcp::socket socket, bool gives_numbers)
    : runner_{of},
      socket_{std::move(socket)},
      gives_numbers_{gives_numbers},
      has_outgoing_{of.io},
      next_channel_{gives_numbers ? 2U : 1U} {
    error_code ignored;
    socket_.set_option(tcp::no_delay{true}, ignored);
    // A machine that does not answer is gone.
    socket_.set_option(asio::socket_base::keep_alive{true}, ignored);
    int const idle_s = 10;
    int const silent_ms = 30'000;
    int const fd = socket_.native_handle();
    static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s));
    static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof idle_s));
    static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms)
    );
}

void link::start() {
    send(encode(message_type::hello, {}, std::as_bytes(std::span{greeting})));
    auto const self = shared_from_this();
    asio::co_spawn(
        runner_.io,
        [self]() -> asio::awaitable<void> { co_await self->write_all(); },
        asio::detached
    );
    asio::co_spawn(
        runner_.io, [self]() -> asio::awaitable<void> { co_await self->read_all(); }, asio::detached
    );
    asio::co_spawn(
        runner_.io,
        [self]() -> asio::awaitable<void> {
            asio::steady_timer limit{self->runner_.io, answer_timeout};
            co_await limit.async_wait(awaiting);
            if (!self->has_heard_) self->end("it says nothing");
        },
        asio::detached
    );
}

void link::end(std::string const& why) {
    if (std::exchange(is_ended_, true)) return;
    error_code ignored;
    socket_.close(ignored);
    has_outgoing_.notify();
    for (auto const& [id, c] : std::exchange(channels_, {})) close(*c);
    ports_.clear();
    for (auto const& [who, s] : std::exchange(places_, {})) {
        runner_.where.remove_socket(who.first, who.second);
        s->listener.close(ignored);
    }
    nodes_.clear();
    reserved_.clear();
    theirs_ = {};
    for (auto const& [token, then] : std::exchange(wanted_, {})) then(0);
    runner_.on_end(why);
}

void link::show(network_state const& all) {
    std::string text = all.encode();
    if (text == shown_) return;
    send(encode(message_type::state, {}, std::as_bytes(std::span{text})));
    shown_ = std::move(text);
}

void link::want_node(std::function<void(std::uint32_t)> then) {
    if (is_ended_) return then(0);
    wanted_.emplace(next_token_, std::move(then));
    send(encode(message_type::want_node, {next_token_++}));
}

void link::send(std::vector<std::byte> message) {
    if (is_ended_) return;
    unsent_bytes_ += message.size();
    if (unsent_bytes_ > unsent_bytes_max) return end("it does not read");
    outgoing_.push_back(std::move(message));
    has_outgoing_.notify();
}

asio::awaitable<void> link::write_all() {
    while (!is_ended_) {
        if (outgoing_.empty()) {
            co_await has_outgoing_.wait();
            continue;
        }
        std::deque<std::vector<std::byte>> const now = std::exchange(outgoing_, {});
        std::vector<asio::const_buffer> all;
        for (auto const& m : now) all.push_back(asio::buffer(m));
        auto const [ec, size] = co_await asio::async_write(socket_, all, awaiting);
        if (ec) co_return end("");
        unsent_bytes_ -= size;
    }
}

asio::awaitable<void> link::read_all() {
    std::vector<std::byte> content;
    while (!is_ended_) {
        std::array<std::byte, 5> head;
        auto const [failed, n] = co_await asio::async_read(socket_, asio::buffer(head), awaiting);
        if (failed) co_return end("");
        std::span<std::byte const> rest{head};
        std::uint32_t const size = *take_number(rest);
        if (size < 1 || size > content_bytes_max)
            co_return end("it is no bridge of rcverbs-fabric");
        content.resize(size - 1);
        auto const [ec, m] = co_await asio::async_read(socket_, asio::buffer(content), awaiting);
        if (ec) co_return end("");
        bool is_right = false;
        try {
            is_right = take(static_cast<message_type>(rest[0]), content);
        } catch (std::exception const& e) {
            co_return end(e.what());
        }
        if (!is_right) end("it has sent what it may not");
    }
}

bool link::take(message_type what, std::span<std::byte const> content) {
    std::string_view const text{reinterpret_cast<char const*>(content.data()), content.size()};
    if (!has_heard_) {
        if (what != message_type::hello) return false;
        if (text != greeting)
            throw std::runtime_error{
                "it is " + std::string{text.substr(0, 64)} + ", not of this version"};
        has_heard_ = true;
        return true;
    }
    if (what == message_type::state) return take_state(text);
    auto const number = take_number(content);
    if (!number) return false;
    auto const found = channels_.find(*number);
    switch (what) {
    case message_type::want_node: {
        if (!gives_numbers_ || reserved_.size() > detail::nodes_max) return false;
        std::uint32_t given = 0;
        try {
            directory::member one = runner_.where.take_node();
            static_cast<void>(::fcntl(one.lock.get(), F_SETFD, FD_CLOEXEC));
            given = one.number;
            reserved_.emplace(given, std::move(one.lock));
        } catch (std::exception const&) {
            // All are in use.
        }
        send(encode(message_type::node, {*number, given}));
        return true;
    }
    case message_type::node: {
        auto const given = take_number(content);
        auto const who = wanted_.extract(*number);
        if (!given || who.empty() || *given > detail::nodes_max) return false;
        who.mapped()(*given);
        return true;
    }
    case message_type::open: {
        auto const node = take_number(content);
        auto const slot = take_number(content);
        bool const is_theirs = *number % 2 == (gives_numbers_ ? 1 : 0);
        if (!node || !slot || !is_theirs || found != channels_.end()) return false;
        return open(*number, {*node, *slot});
    }
    case message_type::data: {
        if (found == channels_.end()) return true;  // it has ended here meanwhile
        channel& c = *found->second;
        if (content.size() > datagram_bytes_max || c.is_closing ||
            c.waiting_bytes + content.size() > window_bytes + datagram_bytes_max)
            return false;
        if (!c.is_introduced && !is_allowed(c, content)) {
            close(c);
            return true;
        }
        c.waiting.emplace_back(content.begin(), content.end());
        c.waiting_bytes += content.size();
        c.has_data.notify();
        return true;
    }
    case message_type::taken: {
        auto const bytes = take_number(content);
        if (!bytes) return false;
        if (found == channels_.end()) return true;
        channel& c = *found->second;
        if (*bytes > c.untaken) return false;
        c.untaken -= *bytes;
        c.has_window.notify();
        return true;
    }
    case message_type::close:
        if (found == channels_.end()) return true;
        found->second->is_closing = true;
        found->second->has_data.notify();
        return true;
    case message_type::hello:
    case message_type::state: break;
    }
    return false;
}

// --- what stands for the other side --------------------------------------------------------------

bool link::take_state(std::string_view text) {
    auto next = network_state::decode(text);
    if (!next || next->places.size() > places_max) return false;
    for (std::uint32_t const node : next->nodes) {
        if (theirs_.nodes.contains(node)) continue;
        auto const present = runner_.where.nodes();
        bool const is_taken = std::ranges::find(present, node) != present.end();
        if (is_taken && !reserved_.contains(node))
            throw std::runtime_error{"both networks have a node " + std::to_string(node)};
        nodes_[node] = runner_.where.hold_remote_node(node);
    }
    std::erase_if(ports_, [&](auto const& p) { return !next->ports.contains(p.first); });
    std::erase_if(places_, [&](auto& p) {
        if (next->places.contains(p.first)) return false;
        runner_.where.remove_socket(p.first.first, p.first.second);
        error_code ignored;
        p.second->listener.close(ignored);
        return true;
    });
    std::erase_if(next->places, [&](place const& who) {
        return !places_.contains(who) && !add(who);
    });
    for (network_state::port const& p : next->ports) {
        if (ports_.contains(p)) continue;
        descriptor lock = runner_.where.take_port(p.node, p.slot, p.number);
        if (lock) runner_.where.show_port(lock, p.slot);
        ports_.emplace(p, std::move(lock));
    }
    for (std::uint32_t const node : theirs_.nodes) {
        if (next->nodes.contains(node)) continue;
        nodes_.erase(node);
        reserved_.erase(node);
    }
    theirs_ = std::move(*next);
    runner_.on_state();
    return true;
}

bool link::add(place const& who) {
    descriptor lock = runner_.where.take_remote_slot(who.first, who.second);
    if (!lock) return false;
    descriptor const socket = detail::listen_at(runner_.where.socket_path(who.first, who.second));
    if (!socket) return false;
    places_.emplace(who, std::make_unique<stand_in>(runner_.io, std::move(lock), socket));
    auto const self = shared_from_this();
    asio::co_spawn(
        runner_.io,
        [self, who]() -> asio::awaitable<void> { co_await self->accept_all(who); },
        asio::detached
    );
    return true;
}

// Processes of this machine that connect to one of the other.
asio::awaitable<void> link::accept_all(place who) {
    for (;;) {
        auto const found = places_.find(who);
        if (found == places_.end()) co_return;
        stream& listener = found->second->listener;
        auto const [ec] = co_await listener.async_wait(stream::wait_read, awaiting);
        if (ec || is_ended_ || !places_.contains(who)) co_return;
        descriptor const socket{
            ::accept4(listener.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
        if (!socket || channels_.size() >= channels_max) continue;
        auto const c = std::make_shared<channel>(runner_.io, next_channel_, socket);
        next_channel_ += 2;
        channels_.emplace(c->id, c);
        send(encode(message_type::open, {c->id, who.first, who.second}));
        c->is_introduced = true;  // what comes back is from the process that was asked for
        run(c);
    }
}

// A process of the other machine connects to one of this machine.
bool link::open(std::uint32_t id, place const& to) {
    if (channels_.size() >= channels_max || has_node(to.first)) return false;
    descriptor const socket = detail::connect_to(runner_.where.socket_path(to.first, to.second));
    if (!socket) {
        send(encode(message_type::close, {id}));
        return true;
    }
    auto const c = std::make_shared<channel>(runner_.io, id, socket);
    channels_.emplace(id, c);
    run(c);
    return true;
}

// --- channels ------------------------------------------------------------------------------------

void link::run(std::shared_ptr<channel> const& c) {
    auto const self = shared_from_this();
    asio::co_spawn(
        runner_.io,
        [self, c]() -> asio::awaitable<void> { co_await self->from_process(c); },
        asio::detached
    );
    asio::co_spawn(
        runner_.io,
        [self, c]() -> asio::awaitable<void> { co_await self->to_process(c); },
        asio::detached
    );
}

// The process must be of the other machine: the one that is asked believes this process.
bool link::is_allowed(channel& c, std::span<std::byte const> datagram) {
    auto const first = detail::take_frame(datagram);
    auto const* const h = first ? std::get_if<detail::hello>(&*first) : nullptr;
    c.is_introduced = h != nullptr && places_.contains({h->node, h->slot});
    return c.is_introduced;
}

asio::awaitable<void> link::from_process(std::shared_ptr<channel> c) {
    bool is_first = c->id % 2 == (gives_numbers_ ? 0 : 1);  // it has connected
    std::vector<std::byte> datagram(datagram_bytes_max);
    while (!c->is_ended) {
        if (c->untaken >= window_bytes) {
            co_await c->has_window.wait();
            continue;
        }
        ssize_t const size = ::recv(
            c->local.native_handle(), datagram.data(), datagram.size(), MSG_DONTWAIT | MSG_TRUNC
        );
        if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
            auto const [ec] = co_await c->local.async_wait(stream::wait_read, awaiting);
            if (ec) break;
            continue;
        }
        // It has ended before it had read all. What it had sent follows.
        if (size < 0 && errno == ECONNRESET) continue;
        auto const bytes = static_cast<std::size_t>(size);
        if (size <= 0 || bytes > datagram.size()) break;
        std::span<std::byte const> all = std::span{datagram}.first(bytes);
        if (std::exchange(is_first, false)) {
            auto rest = all;
            auto const first = detail::take_frame(rest);
            auto const* const h = first ? std::get_if<detail::hello>(&*first) : nullptr;
            if (h == nullptr ||
                !runner_.where.is_end_of(c->local.native_handle(), h->node, h->slot))
                break;
        }
        c->untaken += bytes;
        send(encode(message_type::data, {c->id}, all));
    }
    close(*c);
}

asio::awaitable<void> link::to_process(std::shared_ptr<channel> c) {
    while (!c->is_ended) {
        if (c->waiting.empty()) {
            if (c->is_closing) break;
            co_await c->has_data.wait();
            continue;
        }
        std::vector<std::byte> const& next = c->waiting.front();
        ssize_t const sent =
            ::send(c->local.native_handle(), next.data(), next.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS)) {
            auto const [ec] = co_await c->local.async_wait(stream::wait_write, awaiting);
            if (ec) break;
            continue;
        }
        // What a process that has ended does not get is lost. What it has sent before may still be unread:
        // only from_process() finds its end.
        send(encode(message_type::taken, {c->id, static_cast<std::uint32_t>(next.size())}));
        c->waiting_bytes -= next.size();
        c->waiting.pop_front();
    }
    close(*c);
}

void link::close(channel& c) {
    if (std::exchange(c.is_ended, true)) return;
    error_code ignored;
    c.local.close(ignored);
    c.has_data.notify();
    c.has_window.notify();
    if (!is_ended_) send(encode(message_type::close, {c.id}));
    channels_.erase(c.id);
}

// --- the process ---------------------------------------------------------------------------------

[[noreturn]] void fail(tcp_address const& at, std::string const& report) {
    std::string_view why = report;
    if (why.starts_with("error ")) why.remove_prefix(6);
    throw std::runtime_error{
        "tcp:" + at.host + ':' + at.port + ": " +
        (why.empty() ? "the bridge has ended" : std::string{why})};
}

}  // namespace

tcp_address tcp_address::parse(std::string const& text) {
    std::size_t const colon = text.rfind(':');
    bool const is_address = text.starts_with("tcp:") && colon > 4 && colon + 1 < text.size();
    if (!is_address) throw std::runtime_error{"'" + text + "' is not tcp:HOST:PORT"};
    tcp_address a{text.substr(4, colon - 4), text.substr(colon + 1)};
    // Asio takes such a number modulo 65536.
    bool const is_number = a.port.find_first_not_of("0123456789") == a.port.npos;
    if (is_number && (a.port.size() > 5 || std::stoul(a.port) > 65535))
        throw std::runtime_error{"'" + text + "': there is no port " + a.port};
    if (a.host.starts_with('[') && a.host.ends_with(']'))
        a.host = a.host.substr(1, a.host.size() - 2);
    return a;
}

detail::descriptor bridge::listen(directory const& where, tcp_address const& at) {
    auto [report, life] = start_background([&](background& self) {
        runner r{directory{where.path()}, self};
        tcp::resolver resolver{r.io};
        tcp::endpoint const to =
            resolver.resolve(at.host, at.port, tcp::resolver::passive)->endpoint();
        tcp::acceptor acceptor{r.io, to};
        r.listen(std::move(acceptor));
        r.run();
    });
    if (report != "ready") fail(at, report);
    return std::move(life);
}

detail::descriptor bridge::join(directory const& where, tcp_address const& to) {
    auto [report, life] = start_background([&](background& self) {
        runner r{directory{where.path()}, self};
        tcp::resolver resolver{r.io};
        tcp::socket socket{r.io};
        asio::connect(socket, resolver.resolve(to.host, to.port));
        r.join(std::move(socket));
        r.run();
    });
    if (report != "ready") fail(to, report);
    return std::move(life);
}

}  // namespace rcverbs::fabric
