// client_sessions.hpp — keeps the requests of a client that connects again in order.
//
//     request_channel_options options;
//     options.sessions.emplace();  // one for all channels that the server accepts
//     request_channel c{io, co_await acceptor.async_get_request(use_awaitable), options};
//     co_await c.async_accept(use_awaitable);
//
// A request_client repeats requests on its next channel (ask::may_repeat). The
// server may still be executing them on the channel before, whose end it has perhaps not noticed.
// With this object, a channel of a client is accepted only when nothing of its older channels can be
// executed any more: these are closed, request::is_cancelled() is true for what the program has of
// them, and async_accept() waits until all of it has been answered or destroyed. So no request is
// executed after a later one.
#pragma once

#include <memory>

#include <rcverbs/export.hpp>

namespace rcverbs {

namespace detail {

class session_table;

}  // namespace detail

/// The clients of a server, for request_channel_options::sessions. Copies refer to the same object.
/// Any thread.
///
/// Clients are told apart by request_channel_options::identity, which a request_client chooses at
/// random. Peers without one are accepted at once.
class RCVERBS_EXPORT client_sessions {
public:
    client_sessions();

private:
    friend class detail::session_table;

    std::shared_ptr<detail::session_table> table_;
};

}  // namespace rcverbs
