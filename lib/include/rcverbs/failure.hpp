// failure.hpp — the step and the cause of a connection's failure.
//
//     failure const f = c.last_failure();
//     if (f.code) std::cerr << f.message() << '\n';
//
// An error_code has no room for addresses and numbers; a failure has. Its text is for people.
// Values; no threading rule.
#pragma once

#include <boost/system/system_error.hpp>

#include <string>

#include <rcverbs/close_reason.hpp>
#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

/// The steps of a connection's life, in the order in which they come.
enum class step {
    /// Opening the connection manager's event channel or an id of it.
    open,
    /// Binding to a local address and listening.
    listen,
    /// Finding the RDMA device and the neighbour that lead to the peer.
    resolve_address,
    /// Finding the path to the peer.
    resolve_route,
    /// Making the protection domain, completion queue and queue pair.
    create_queue_pair,
    /// Asking the peer and waiting for its answer (active side).
    connect,
    /// Answering the peer's request and waiting until it is established (passive side).
    accept,
    /// Checking the peer's hello.
    handshake,
    /// Exchanging memory keys (MSG_MR).
    exchange,
    /// Moving data over the established connection.
    transfer,
    /// Finishing: MSG_DONE both ways.
    finish,
    /// Disconnecting gracefully.
    disconnect,
    /// Waiting until the device has returned all work.
    drain,
};

/// The step's name in text, such as "resolve address".
RCVERBS_EXPORT char const* to_string(step s) noexcept;

/// The first failure of a connection, acceptor or protocol, and why it ended.
struct RCVERBS_EXPORT failure {
    /// The step that failed.
    step where = step::open;
    /// The cause; empty if nothing failed.
    error_code code;
    /// The peer's address; the local address for a step that has no peer.
    endpoint address;
    /// The number that the kernel or the device reported: a connection manager event's status (a
    /// negative errno or a rejection's reason) or a completion's vendor error; 0 if there was none.
    int status = 0;
    /// Why the connection, or the protocol on it, ended; close_reason::open if it has not. An end
    /// without a failure has a reason, too.
    close_reason reason = close_reason::open;

    /// One line: step, address, cause, status and remedy. "no failure" without a code.
    std::string message() const;
};

/// Thrown for an operation that failed as its object did: what() is the failure's message.
class RCVERBS_EXPORT operation_failed : public boost::system::system_error {
public:
    explicit operation_failed(failure why);
    operation_failed(operation_failed const&) = default;
    operation_failed& operator=(operation_failed const&) = default;
    ~operation_failed() noexcept override;

    /// failure::message().
    char const* what() const noexcept override { return text_.c_str(); }
    /// The object's last_failure() after the operation.
    failure const& why() const noexcept { return why_; }

private:
    failure why_;
    std::string text_;
};

}  // namespace rcverbs
