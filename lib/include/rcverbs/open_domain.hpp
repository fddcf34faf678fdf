// open_domain.hpp — opens a protection domain before there is a connection.
//
//     protection_domain const domain = open_domain(io, "rxe0");
//     registered_buffer blocks{domain, std::size_t{1} << 30, access_flags::remote_read};
//     acceptor_options options;
//     options.connection.placement.domain = domain;
//
// With it, a server registers its memory before it listens. A client need not know its own address:
//
//     protection_domain const domain = co_await async_open_domain(io, server, use_awaitable);
//
// Threads: any.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/compose.hpp>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <rcverbs/connection.hpp>
#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs {

/// The domain that connections of an execution context share on a device (domain_sharing::shared),
/// made if there is none. Connections of other contexts use it as placement_options::domain; those
/// of acceptors, which are isolated by default, do so, too:
///
///     auto const domain = open_domain(io, {"192.168.0.1", 0});
///     registered_buffer blocks{domain, 1 << 20, access_flags::remote_read};
///     acceptor_options options;
///     options.connection.placement.domain = domain;
///     acceptor a{io, {"192.168.0.1", 7471}, options};
///
/// @param where  The context; it need not be running.
/// @param local  An address of the device's; the port does not matter. Not a wildcard.
/// @throws boost::system::system_error: errc::no_rdma_device; errno (EADDRNOTAVAIL, ENOMEM …).
RCVERBS_EXPORT protection_domain
open_domain(runs_on<boost::asio::any_io_executor> const& where, endpoint const& local);
/// As above; reports through `ec` instead of throwing.
RCVERBS_EXPORT protection_domain open_domain(
    runs_on<boost::asio::any_io_executor> const& where, endpoint const& local, error_code& ec
);

namespace detail {

RCVERBS_EXPORT protection_domain open_domain_of(
    runs_on<boost::asio::any_io_executor> const& where, std::string const& device, error_code& ec
);

}  // namespace detail

/// The same, by the device's name, such as "rxe0" or "mlx5_0".
template <std::convertible_to<std::string> Name>
protection_domain open_domain(
    runs_on<boost::asio::any_io_executor> const& where, Name const& device, error_code& ec
) {
    return detail::open_domain_of(where, device, ec);
}
/// As above.
template <std::convertible_to<std::string> Name>
protection_domain open_domain(
    runs_on<boost::asio::any_io_executor> const& where, Name const& device
) {
    error_code ec;
    protection_domain found = detail::open_domain_of(where, device, ec);
    if (ec) throw boost::system::system_error{ec, "open_domain"};
    return found;
}

namespace detail {

/// A connection that only resolves the peer's address.
struct domain_search {
    std::shared_ptr<connection> way;
    endpoint peer;

    template <class Self>
    void operator()(Self& self) {
        connection& c = *way;
        c.async_resolve(peer, std::move(self));
    }
    template <class Self>
    void operator()(Self& self, error_code ec) {
        protection_domain found = ec ? protection_domain{} : way->domain();
        way.reset();
        self.complete(ec, std::move(found));
    }
};

}  // namespace detail

/// The domain that connections to a peer share, on the device that leads to it: for clients that register
/// memory before they connect. The peer is not asked; it need not be there.
///
/// @param where  As for open_domain(); it must be running.
/// @param peer   The peer's address; its port does not matter.
/// @param token  Completion token.
/// @par Completion signature  `void(error_code, protection_domain)`
/// @par Cancellation          terminal.
/// @par Errors                Those of connection::async_resolve().
template <class Token = boost::asio::deferred_t>
auto async_open_domain(
    runs_on<boost::asio::any_io_executor> const& where,
    endpoint const& peer,
    Token&& token = Token{}
) {
    connection_options options;
    options.placement.domain = domain_sharing::shared;
    auto way = std::make_shared<connection>(where, std::move(options));
    boost::asio::any_io_executor const executor = way->get_executor();
    return boost::asio::async_compose<Token, void(error_code, protection_domain)>(
        detail::domain_search{std::move(way), peer}, token, executor
    );
}

}  // namespace rcverbs
