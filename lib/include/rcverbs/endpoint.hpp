// endpoint.hpp — an IP address and a port of the RDMA TCP port space.
//
//     endpoint const server{"192.168.0.1", 7471};
//     std::cout << server << '\n';
//     std::unordered_set<endpoint> known{server};
//
// RDMA connections are addressed like TCP connections, but have port numbers of their own: a TCP
// socket may use the same number. Values; no threading rule.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/basic_endpoint.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

#include <rcverbs/export.hpp>

namespace rcverbs {

/// Where a connection goes to or comes from.
class RCVERBS_EXPORT endpoint {
public:
    /// The IPv4 wildcard address, port 0: "any address, a port of the system's choice".
    endpoint() = default;

    /// An address and a port (0 to 65535; 0 lets the system choose, when listening).
    endpoint(boost::asio::ip::address address, std::uint16_t port) noexcept
        : address_{std::move(address)},
          port_{port} {}

    /// An address in text, such as "192.168.0.1", "fd00::1" or "fe80::1%eth0". No name look-up
    /// takes place.
    ///
    /// @throws boost::system::system_error (EINVAL) if `address` is not an IP address.
    endpoint(std::string_view address, std::uint16_t port);
    /// As above, for a string literal.
    endpoint(char const* address, std::uint16_t port) : endpoint(std::string_view{address}, port) {}

    /// Converts an endpoint of Asio's, such as ip::tcp::endpoint.
    template <class Protocol>
    endpoint(boost::asio::ip::basic_endpoint<Protocol> const& e)
        : endpoint{e.address(), e.port()} {}
    /// Converts to an endpoint of Asio's: `ip::tcp::endpoint{e}`.
    ///
    /// @throws boost::system::system_error (errc::address_family_unsupported) if is_infiniband().
    template <class Protocol>
    explicit operator boost::asio::ip::basic_endpoint<Protocol>() const {
        return {ip_address(), port_};
    }

    /// A port of an InfiniBand device by its GID, for networks without IP addresses (AF_IB).
    /// Devices on Ethernet do not support it: connecting fails with
    /// errc::address_family_unsupported.
    static endpoint infiniband(
        std::array<std::uint8_t, 16> const& gid, std::uint16_t port
    ) noexcept {
        endpoint e{boost::asio::ip::address_v6{gid}, port};
        e.is_infiniband_ = true;
        return e;
    }
    /// True if address() is a GID.
    bool is_infiniband() const noexcept { return is_infiniband_; }

    /// The IP address, with its scope if it is a link-local IPv6 address.
    boost::asio::ip::address const& address() const noexcept { return address_; }
    /// The port in host byte order.
    std::uint16_t port() const noexcept { return port_; }

    /// "192.168.0.1:7471", "[fd00::1]:7471" or "ib[fe80::1]:7471".
    std::string to_string() const;

    friend bool operator==(endpoint const&, endpoint const&) = default;
    /// Prints to_string().
    friend RCVERBS_EXPORT std::ostream& operator<<(std::ostream& out, endpoint const& e);

private:
    boost::asio::ip::address const& ip_address() const;

    boost::asio::ip::address address_;
    std::uint16_t port_ = 0;
    bool is_infiniband_ = false;
};

}  // namespace rcverbs

/// Endpoints as keys of unordered containers.
template <>
struct std::hash<rcverbs::endpoint> {
    std::size_t operator()(rcverbs::endpoint const& e) const noexcept {
        std::size_t const address = std::hash<boost::asio::ip::address>{}(e.address());
        return address * 31 + std::size_t{e.port()} * 2 + (e.is_infiniband() ? 1 : 0);
    }
};
