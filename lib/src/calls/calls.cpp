#include <rcverbs/experimental/calls.hpp>

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include <rcverbs/acceptor.hpp>
#include <rcverbs/blocking.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/request_server.hpp>
#include <rcverbs/message_channel.hpp>
#include <rcverbs/poller.hpp>
#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/session.hpp>

namespace rcverbs::calls {

namespace {

using std::chrono::nanoseconds;

// The thread of all objects of this process.
class shared_thread {
public:
    // Of the process that calls: the child of a fork begins anew, and uses no lock of its parent's.
    static shared_thread& of_this_process() {
        static std::atomic<shared_thread*> last;
        shared_thread* found = last;
        while (found == nullptr || found->process_ != ::getpid()) {
            auto* const mine = new shared_thread;  // never destroyed: objects may be static
            error_code too_late;
            prepare_for_fork(too_late);
            if (last.compare_exchange_strong(found, mine)) return *mine;
            delete mine;
        }
        return *found;
    }

    std::shared_ptr<poller const> get() {
        std::lock_guard const lock{mutex_};
        std::shared_ptr<poller const> held = poller_.lock();
        if (held == nullptr) poller_ = held = std::make_shared<poller const>(poller::start());
        return held;
    }

private:
    pid_t const process_ = ::getpid();
    std::mutex mutex_;
    std::weak_ptr<poller const> poller_;
};

// What runs an object.
struct with_thread {
    std::shared_ptr<poller const> thread = shared_thread::of_this_process().get();
};

// Starts an operation with the token of this limit.
template <class Start>
auto wait(nanoseconds limit, Start start) {
    return limit == no_limit ? start(blocking) : start(blocking.within(limit));
}
template <class Start>
auto wait(nanoseconds limit, Start start, error_code& ec) {
    return limit == no_limit ? start(blocking(ec)) : start(blocking(ec).within(limit));
}

// The bytes of a message; a large one is fetched.
template <class Message>
std::vector<std::byte> bytes_of(Message& m) {
    if (m.size() > body_bytes_max) throw boost::system::system_error{errc::message_too_large};
    if (!m.is_large()) return {m.bytes().begin(), m.bytes().end()};
    registered_buffer into{
        m.domain(), static_cast<std::size_t>(m.size()), access_flags::local_write};
    m.async_take(into.slice(), blocking);
    return {into.bytes().begin(), into.bytes().end()};
}

}  // namespace

namespace detail {

struct client_state : with_thread {
    client_state(endpoint const& peer, request_client_options const& options)
        : handle{*thread, peer, options} {}
    request_client handle;
};
struct server_state : with_thread {
    server_state(endpoint const& local, request_server_options const& options)
        : handle{*thread, local, options} {}
    request_server handle;
};
struct request_state : with_thread {
    explicit request_state(rcverbs::request taken)
        : handle{std::move(taken)},
          is_large{handle.is_large()},
          peer_identity{handle.is_valid() ? handle.peer_identity() : std::string{}},
          head{handle.head().begin(), handle.head().end()} {}

    std::span<std::byte const> bytes() {
        if (!is_large) return handle.bytes();
        // Fetched when it is asked for; then the message is released.
        if (handle.is_valid()) body = bytes_of(handle);
        return body;
    }

    rcverbs::request handle;
    bool const is_large;
    // These stay when the message is released.
    std::string const peer_identity;
    std::vector<std::byte> const head;
    std::vector<std::byte> body;
};
struct channel_state : with_thread {
    explicit channel_state(message_channel_options const& options) : handle{*thread, options} {}
    channel_state(connection_request from, message_channel_options const& options)
        : handle{*thread, std::move(from), options} {}
    message_channel handle;
};
struct session_state : with_thread {
    explicit session_state(session_options const& options) : handle{*thread, options} {}
    session_state(connection_request from, session_options const& options)
        : handle{*thread, std::move(from), options} {}
    rcverbs::session handle;
};
struct listener_state : with_thread {
    listener_state(endpoint const& local, acceptor_options const& options)
        : handle{*thread, local, options} {}
    acceptor handle;
};

template <class State>
owner<State>::owner(std::unique_ptr<State> state) noexcept
    : state_{state.release()},
      process_{::getpid()} {}
template <class State>
owner<State>::owner(owner&& other) noexcept
    : state_{std::exchange(other.state_, nullptr)},
      process_{other.process_} {}
template <class State>
owner<State>& owner<State>::operator=(owner&& other) noexcept {
    owner last{std::move(other)};
    std::swap(state_, last.state_);
    std::swap(process_, last.process_);
    return *this;
}
template <class State>
owner<State>::~owner() {
    // The device's objects are those of the process that made them.
    delete find();
}
template <class State>
State* owner<State>::find() const noexcept {
    return process_ == ::getpid() ? state_ : nullptr;
}
template <class State>
State& owner<State>::get() const {
    State* const found = find();
    if (found != nullptr) return *found;
    throw boost::system::system_error{
        state_ == nullptr ? errc::not_connected : errc::would_deadlock};
}

template class owner<client_state>;
template class owner<server_state>;
template class owner<request_state>;
template class owner<channel_state>;
template class owner<session_state>;
template class owner<listener_state>;

}  // namespace detail

namespace {

template <class State>
void close(detail::owner<State> const& what) noexcept {
    if (State* const found = what.find()) found->handle.close();
}
template <class State>
void finish(detail::owner<State> const& what, nanoseconds limit) {
    State& s = what.get();
    wait(limit, [&](auto token) { s.handle.async_finish(token); });
}
template <class State>
failure last_failure(detail::owner<State> const& what) {
    State const* const found = what.find();
    return found != nullptr ? found->handle.last_failure() : failure{};
}

// Connects a new object.
template <class State, class Options>
detail::owner<State> connected(endpoint const& peer, Options const& options, nanoseconds limit) {
    auto state = std::make_unique<State>(options);
    wait(limit, [&](auto token) { state->handle.async_connect(peer, token); });
    return detail::owner<State>{std::move(state)};
}

// Takes a request and accepts it.
template <class State, class Options>
detail::owner<State> accepted(
    detail::owner<detail::listener_state> const& from, Options const& options, nanoseconds limit
) {
    acceptor& door = from.get().handle;
    auto asked = wait(limit, [&](auto token) { return door.async_get_request(token); });
    auto state = std::make_unique<State>(std::move(asked), options);
    state->handle.async_accept(blocking);
    return detail::owner<State>{std::move(state)};
}

}  // namespace

client::client() noexcept = default;
client::client(endpoint const& peer) : client{peer, request_client_options{}} {}
client::client(endpoint const& peer, request_client_options const& options)
    : state_{std::make_unique<detail::client_state>(peer, options)} {}
reply client::request(ask const& what) {
    request_client& handle = state_.get().handle;
    rcverbs::reply got = handle.async_request(what, blocking);
    reply r{
        got.status(),
        got.size(),
        {},
        {got.head().begin(), got.head().end()},
        got.connection_number()};
    if (!got.is_written()) r.bytes = bytes_of(got);
    return r;
}
void client::notify(ask const& what, nanoseconds limit) {
    request_client& handle = state_.get().handle;
    wait(limit, [&](auto token) { handle.async_notify(what, token); });
}
protection_domain client::domain() const { return state_.get().handle.domain(); }
failure client::last_failure() const { return calls::last_failure(state_); }
void client::finish(nanoseconds limit) { calls::finish(state_, limit); }
void client::close() noexcept { calls::close(state_); }

request::request() noexcept = default;
std::uint32_t request::operation() const { return state_.get().handle.operation(); }
std::span<std::byte const> request::head() const { return state_.get().head; }
std::span<std::byte const> request::bytes() const { return state_.get().bytes(); }
std::uint64_t request::target_bytes() const { return state_.get().handle.target_bytes(); }
bool request::wants_answer() const { return state_.get().handle.wants_answer(); }
bool request::is_cancelled() const { return state_.get().handle.is_cancelled(); }
std::string request::peer_identity() const { return state_.get().peer_identity; }
void request::answer(rcverbs::answer const& what, nanoseconds limit) {
    rcverbs::request& handle = state_.get().handle;
    wait(limit, [&](auto token) { handle.async_answer(what, token); });
}

server::server() noexcept = default;
server::server(endpoint const& local) : server{local, request_server_options{}} {}
server::server(endpoint const& local, request_server_options const& options)
    : state_{std::make_unique<detail::server_state>(local, options)} {}
request server::next(nanoseconds limit) {
    request_server& handle = state_.get().handle;
    error_code ec;
    auto taken = std::make_unique<detail::request_state>(wait(
        limit, [&](auto token) { return handle.async_next(token); }, ec
    ));
    request r;
    if (ec == boost::asio::error::operation_aborted || ec == boost::asio::error::eof) return r;
    if (ec) throw boost::system::system_error{ec};
    r.state_ = detail::owner<detail::request_state>{std::move(taken)};
    return r;
}
endpoint server::local_endpoint() const { return state_.get().handle.local_endpoint(); }
failure server::last_failure() const { return calls::last_failure(state_); }
void server::finish(nanoseconds limit) { calls::finish(state_, limit); }
void server::close() noexcept { calls::close(state_); }

channel::channel() noexcept = default;
channel::channel(endpoint const& peer, nanoseconds limit)
    : channel{peer, message_channel_options{}, limit} {}
channel::channel(endpoint const& peer, message_channel_options const& options, nanoseconds limit)
    : state_{connected<detail::channel_state>(peer, options, limit)} {}
void channel::send(bytes_view bytes, std::uint64_t tag, nanoseconds limit) {
    message_channel& handle = state_.get().handle;
    wait(limit, [&](auto token) { handle.async_send(bytes, tag, token); });
}
message channel::receive(nanoseconds limit) {
    message_channel& handle = state_.get().handle;
    rcverbs::message got = wait(limit, [&](auto token) { return handle.async_receive(token); });
    return {got.tag(), bytes_of(got)};
}
std::string channel::peer_identity() const { return state_.get().handle.peer_identity(); }
failure channel::last_failure() const { return calls::last_failure(state_); }
void channel::finish(nanoseconds limit) { calls::finish(state_, limit); }
void channel::close() noexcept { calls::close(state_); }

session::session() noexcept = default;
session::session(endpoint const& peer, nanoseconds limit)
    : session{peer, session_options{}, limit} {}
session::session(endpoint const& peer, session_options const& options, nanoseconds limit)
    : state_{connected<detail::session_state>(peer, options, limit)} {}
protection_domain session::domain() const { return state_.get().handle.domain(); }
std::string session::peer_identity() const { return state_.get().handle.peer_identity(); }
std::vector<region> session::exchange(std::vector<region> const& mine, nanoseconds limit) {
    rcverbs::session& handle = state_.get().handle;
    std::vector<named_region> given;
    given.reserve(mine.size());
    for (region const& each : mine) given.emplace_back(each.name, each.memory);
    peer_regions const theirs =
        wait(limit, [&](auto token) { return handle.async_exchange(std::move(given), token); });
    std::vector<region> all;
    for (named_region const& each : theirs.all()) all.push_back({each.name, each.region});
    return all;
}
void session::write(const_slices const& source, remote_region target, nanoseconds limit) {
    rcverbs::session& handle = state_.get().handle;
    wait(limit, [&](auto token) { return handle.async_write(source, target, token); });
}
void session::read(remote_region source, mutable_slices const& target, nanoseconds limit) {
    rcverbs::session& handle = state_.get().handle;
    wait(limit, [&](auto token) { return handle.async_read(source, target, token); });
}
std::uint64_t session::fetch_add(remote_atomic target, std::uint64_t add, nanoseconds limit) {
    rcverbs::session& handle = state_.get().handle;
    return wait(limit, [&](auto token) { return handle.async_fetch_add(target, add, token); });
}
std::uint64_t session::compare_swap(
    remote_atomic target, std::uint64_t expected, std::uint64_t desired, nanoseconds limit
) {
    rcverbs::session& handle = state_.get().handle;
    return wait(limit, [&](auto token) {
        return handle.async_compare_swap(target, expected, desired, token);
    });
}
failure session::last_failure() const { return calls::last_failure(state_); }
void session::finish(nanoseconds limit) { calls::finish(state_, limit); }
void session::close() noexcept { calls::close(state_); }

listener::listener() noexcept = default;
listener::listener(endpoint const& local) : listener{local, acceptor_options{}} {}
listener::listener(endpoint const& local, acceptor_options const& options)
    : state_{std::make_unique<detail::listener_state>(local, options)} {}
channel listener::accept_channel(nanoseconds limit) {
    return accept_channel(message_channel_options{}, limit);
}
channel listener::accept_channel(message_channel_options const& options, nanoseconds limit) {
    channel c;
    c.state_ = accepted<detail::channel_state>(state_, options, limit);
    return c;
}
session listener::accept_session(nanoseconds limit) {
    return accept_session(session_options{}, limit);
}
session listener::accept_session(session_options const& options, nanoseconds limit) {
    session s;
    s.state_ = accepted<detail::session_state>(state_, options, limit);
    return s;
}
endpoint listener::local_endpoint() const { return state_.get().handle.local_endpoint(); }
failure listener::last_failure() const { return calls::last_failure(state_); }
void listener::close() noexcept { calls::close(state_); }

}  // namespace rcverbs::calls
