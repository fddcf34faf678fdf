// calls.hpp — blocking calls, for programs that know no Asio. Experimental: it may change.
//
//     calls::client c{{"192.168.0.1", 7471}};
//     calls::reply const r = c.request(ask{get}.body(key).within(1s));
//
//     calls::session s{{"192.168.0.1", 7471}};
//     registered_buffer page{s.domain(), 4096, access_flags::local_write};
//     s.read(s.exchange({}).front().memory, page.slice());
//
// Options of the objects are those of the other interfaces, with keys for who may connect
// (authentication_options). The calls throw operation_failed where the object has failed, else boost::system::system_error. A thread of the
// library's, one for all objects of this file, does the work; it starts with the first of them and ends after the
// last.
//
// Threads: any number of threads may call functions of one object; one at a time moves or destroys it, and none
// calls anything meanwhile.
//
// fork: make objects after the process has forked into the background: nothing is started before the first one.
// In the child of a fork the objects of the parent are of no use: their functions fail with
// errc::would_deadlock, and their destruction does nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <rcverbs/ask.hpp>
#include <rcverbs/bytes_view.hpp>
#include <rcverbs/endpoint.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/remote_region.hpp>
#include <rcverbs/slice.hpp>

namespace rcverbs {

struct request_channel_options;
struct request_client_options;
struct request_server_options;
struct message_channel_options;
struct session_options;
struct acceptor_options;

}  // namespace rcverbs

namespace rcverbs::calls {

/// A limit that does not pass: the deadlines of the object's options remain. Any other limit cancels the call, as
/// blocking_t::within() does.
inline constexpr std::chrono::nanoseconds no_limit = std::chrono::nanoseconds::max();

namespace detail {

struct client_state;
struct server_state;
struct request_state;
struct channel_state;
struct session_state;
struct listener_state;

/// Owns what an object consists of, in the process that made it.
template <class State>
class RCVERBS_EXPORT owner {
public:
    owner() noexcept = default;
    explicit owner(std::unique_ptr<State> state) noexcept;
    owner(owner&& other) noexcept;
    owner& operator=(owner&& other) noexcept;
    ~owner();

    /// @throws boost::system::system_error: errc::not_connected (there is none), errc::would_deadlock (another
    ///         process made it).
    State& get() const;
    /// None in another process.
    State* find() const noexcept;

private:
    State* state_ = nullptr;
    int process_ = 0;
};

}  // namespace detail

/// An answer.
struct reply {
    /// The server's number.
    std::uint32_t status = 0;
    /// The size of the body in bytes.
    std::uint64_t size = 0;
    /// The body; empty if it was written into the memory of ask::into().
    std::vector<std::byte> bytes;
    /// What the server has put before the body.
    std::vector<std::byte> head;
    /// For ask::on_connection().
    std::uint64_t connection_number = 0;
};

/// The largest body that is received without memory of the program's; of a larger one the call fails with
/// errc::message_too_large.
inline constexpr std::uint64_t body_bytes_max = std::uint64_t{64} << 20;

/// Requests to one server, which is connected again after failures: see request_client.
class RCVERBS_EXPORT client {
public:
    /// Makes no client.
    client() noexcept;
    /// Makes a client; the first request connects.
    ///
    /// @param peer     The server's endpoint.
    /// @throws boost::system::system_error (errc::invalid_option), std::system_error (no thread).
    explicit client(endpoint const& peer);
    /// The same with other options, of experimental/request_client.hpp.
    client(endpoint const& peer, request_client_options const& options);

    /// Sends a request and waits for the answer: ask::within() limits that, and what ask::body() and ask::into()
    /// name must live until it returns.
    reply request(ask const& what);
    /// Sends a notice, and waits until the server's device has it.
    void notify(ask const& what, std::chrono::nanoseconds limit = no_limit);
    /// The protection domain of memory for ask::body() and ask::into(). Known after a request.
    protection_domain domain() const;
    /// Why the last connection ended, or could not be made. Of no object: no failure.
    failure last_failure() const;
    /// Waits until the server has answered, and ends.
    void finish(std::chrono::nanoseconds limit = no_limit);
    /// Ends at once: calls that wait fail.
    void close() noexcept;

private:
    detail::owner<detail::client_state> state_;
};

/// A request of a client's.
class RCVERBS_EXPORT request {
public:
    /// No request.
    request() noexcept;

    /// False if there is none.
    bool is_valid() const noexcept { return state_.find() != nullptr; }
    /// The client's number.
    std::uint32_t operation() const;
    /// What the client has put before the body.
    std::span<std::byte const> head() const;
    /// The body. A large one is fetched by the first call, before answer().
    std::span<std::byte const> bytes() const;
    /// Bytes that the client has memory for, of the answer.
    std::uint64_t target_bytes() const;
    /// False for a notice.
    bool wants_answer() const;
    /// True if the client no longer waits: it has cancelled the request, or its connection has ended.
    bool is_cancelled() const;
    /// The identity that the client has proved: see authentication_options. Empty without
    /// authentication.
    std::string peer_identity() const;
    /// Answers, and waits until the client's device has the answer. Without an answer the client gets
    /// channel_errc::request_dropped when this is destroyed.
    void answer(rcverbs::answer const& what, std::chrono::nanoseconds limit = no_limit);

private:
    friend class server;
    detail::owner<detail::request_state> state_;
};

/// The requests of all clients: see request_server.
class RCVERBS_EXPORT server {
public:
    /// Makes no server.
    server() noexcept;
    /// Listens.
    ///
    /// @param local    The endpoint; port 0 for any.
    /// @throws boost::system::system_error: as acceptor.
    explicit server(endpoint const& local);
    /// The same with other options, of experimental/request_server.hpp.
    server(endpoint const& local, request_server_options const& options);

    /// The next request, or none when the server has finished or was closed. Any number of threads may
    /// wait.
    request next(std::chrono::nanoseconds limit = no_limit);
    /// The address and port at which it listens.
    endpoint local_endpoint() const;
    /// As of request_server.
    failure last_failure() const;
    /// Accepts nobody any more, and waits until everything that was asked is answered.
    void finish(std::chrono::nanoseconds limit = no_limit);
    /// Ends at once: calls that wait fail, and next() gives none.
    void close() noexcept;

private:
    detail::owner<detail::server_state> state_;
};

/// A message.
struct message {
    /// The sender's number.
    std::uint64_t tag = 0;
    /// What was sent.
    std::vector<std::byte> bytes;
};

/// Messages to one peer and from it: see message_channel.
class RCVERBS_EXPORT channel {
public:
    /// Makes no channel.
    channel() noexcept;
    /// Connects.
    ///
    /// @param peer     The endpoint of a listener, or of any acceptor of message channels.
    /// @param limit    Of connecting.
    explicit channel(endpoint const& peer, std::chrono::nanoseconds limit = no_limit);
    /// The same with other options, of message_channel.hpp.
    channel(
        endpoint const& peer,
        message_channel_options const& options,
        std::chrono::nanoseconds limit = no_limit
    );

    /// Sends a message, and waits until the peer's device has it; of a large one, until the peer's program has
    /// fetched it. A limit that passes before it is sent leaves the channel as it is.
    ///
    /// @param bytes  0 bytes to 4 GiB.
    /// @param tag    For the receiver.
    /// @param limit  As for all calls: see no_limit.
    void send(bytes_view bytes, std::uint64_t tag = 0, std::chrono::nanoseconds limit = no_limit);
    /// Receives a message. Any number of threads may wait; each message comes to one.
    message receive(std::chrono::nanoseconds limit = no_limit);
    /// The identity that the connecting side has proved to this one: see authentication_options. Empty on
    /// the connecting side, and without authentication.
    std::string peer_identity() const;
    /// As of message_channel.
    failure last_failure() const;
    /// Waits until the peer has received everything and has finished, too.
    void finish(std::chrono::nanoseconds limit = no_limit);
    /// Ends at once: calls that wait fail.
    void close() noexcept;

private:
    friend class listener;
    detail::owner<detail::channel_state> state_;
};

/// A region of the peer's, with its name.
struct region {
    /// 0 to 24 bytes.
    std::string name;
    /// Its address, size, key and rights.
    remote_region memory;
};

/// Reads, writes and atomics in the memory of one peer: see session.
class RCVERBS_EXPORT session {
public:
    /// Makes no session.
    session() noexcept;
    /// Connects.
    ///
    /// @param peer     The endpoint of a listener, or of any acceptor of sessions.
    /// @param limit    Of connecting.
    explicit session(endpoint const& peer, std::chrono::nanoseconds limit = no_limit);
    /// The same with other options, of session.hpp.
    session(
        endpoint const& peer,
        session_options const& options,
        std::chrono::nanoseconds limit = no_limit
    );

    /// The protection domain for registered_buffer and memory_region.
    protection_domain domain() const;
    /// As of channel.
    std::string peer_identity() const;
    /// Gives the peer these regions, and waits for its own. Once.
    std::vector<region> exchange(
        std::vector<region> const& mine, std::chrono::nanoseconds limit = no_limit
    );
    /// Writes local memory to the peer's.
    void write(
        const_slices const& source, remote_region target, std::chrono::nanoseconds limit = no_limit
    );
    /// Reads the peer's memory.
    void read(
        remote_region source,
        mutable_slices const& target,
        std::chrono::nanoseconds limit = no_limit
    );
    /// Adds to a word of the peer's memory. Returns what was there before.
    std::uint64_t fetch_add(
        remote_atomic target, std::uint64_t add, std::chrono::nanoseconds limit = no_limit
    );
    /// Replaces a word of the peer's memory if it has the expected value. Returns what was there before.
    std::uint64_t compare_swap(
        remote_atomic target,
        std::uint64_t expected,
        std::uint64_t desired,
        std::chrono::nanoseconds limit = no_limit
    );
    /// As of session.
    failure last_failure() const;
    /// Waits until the peer has finished, too.
    void finish(std::chrono::nanoseconds limit = no_limit);
    /// Ends at once: calls that wait fail.
    void close() noexcept;

private:
    friend class listener;
    detail::owner<detail::session_state> state_;
};

/// Accepts channels and sessions.
class RCVERBS_EXPORT listener {
public:
    /// Makes no listener.
    listener() noexcept;
    /// Listens.
    ///
    /// @param local    The endpoint; port 0 for any.
    /// @throws boost::system::system_error: as acceptor.
    explicit listener(endpoint const& local);
    /// The same with other options, of acceptor.hpp.
    listener(endpoint const& local, acceptor_options const& options);

    /// Takes the next request and accepts it. A peer that fails meanwhile is this call's failure.
    ///
    /// @param limit    Of waiting for the request; accepting has the deadlines of the options.
    channel accept_channel(std::chrono::nanoseconds limit = no_limit);
    /// The same with other options, of message_channel.hpp.
    channel accept_channel(
        message_channel_options const& options, std::chrono::nanoseconds limit = no_limit
    );
    /// The same of a session.
    session accept_session(std::chrono::nanoseconds limit = no_limit);
    /// As above.
    session accept_session(
        session_options const& options, std::chrono::nanoseconds limit = no_limit
    );
    /// The address and port at which it listens.
    endpoint local_endpoint() const;
    /// As of acceptor.
    failure last_failure() const;
    /// Ends: calls that wait fail.
    void close() noexcept;

private:
    detail::owner<detail::listener_state> state_;
};

}  // namespace rcverbs::calls
