// connection_request.hpp — a peer's request for a connection, before anything is allocated for it.
//
//     connection_request r = co_await a.async_get_request(use_awaitable);
//     std::cout << r.remote_endpoint() << " asks\n";
//     connection c{io, std::move(r), options};
//     co_await c.async_accept({}, use_awaitable);
//
// acceptor::async_get_request() delivers it with the peer's address, its private data and the
// depths that it asks for. The program makes a connection of it, with options and an executor that
// suit this peer, or rejects it. A request that is destroyed, or kept for longer than
// acceptor_options::answer_timeout, is rejected. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

namespace detail {
struct access;
class waiting_request;
}  // namespace detail

/// A peer's request for a connection.
class RCVERBS_EXPORT connection_request {
public:
    /// Makes no request; only assignment and destruction are useful.
    connection_request() noexcept;
    connection_request(connection_request&&) noexcept;
    connection_request& operator=(connection_request&& other) noexcept;
    /// Rejects the request if no connection was made of it.
    ~connection_request();

    /// True unless default-constructed, moved from, used, rejected or expired.
    bool is_valid() const noexcept;
    /// The peer's endpoint. REQUIRES: not default-constructed, moved from or used, as for all
    /// functions below; they may be called when the request has expired.
    endpoint remote_endpoint() const;
    /// The local endpoint that the request arrived at.
    endpoint local_endpoint() const;
    /// The peer's private data, padded with zeros to 56 bytes. Valid as long as the request.
    std::span<std::byte const> private_data() const noexcept;
    /// Reads and atomics that the peer wants to have outstanding: an upper limit of the
    /// connection's responder_resources. 0 to 255.
    std::uint8_t responder_resources() const noexcept;
    /// Reads and atomics of this side that the peer serves at a time: an upper limit of the
    /// connection's initiator_depth. 0 to 255.
    std::uint8_t initiator_depth() const noexcept;

    /// Rejects the request.
    ///
    /// @param private_data  At most 148 bytes with the reason for the peer.
    /// @throws boost::system::system_error: errc::private_data_too_large; then it can be rejected
    ///         again. errc::not_connected (not is_valid()). Succeeds if the peer has already left.
    void reject(std::span<std::byte const> private_data = {});
    /// The same; reports through `ec` instead of throwing.
    void reject(std::span<std::byte const> private_data, error_code& ec);

private:
    friend struct detail::access;
    explicit connection_request(std::shared_ptr<detail::waiting_request> waiting) noexcept;

    std::shared_ptr<detail::waiting_request> core_;
};

}  // namespace rcverbs
