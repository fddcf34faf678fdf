// address_range.hpp — addresses of clients that a server accepts.
#pragma once

#include <boost/asio/ip/address.hpp>

#include <optional>
#include <string>

namespace copy {

/// An IP address, or all that begin with the same bits.
class address_range {
public:
    /// Of `10.0.0.7`, `10.0.0.0/24`, `fd00::/8`; none for another text, also for an address with a scope.
    static std::optional<address_range> parse(std::string const& text);

    /// An IPv4 address that is written as an IPv6 one (`::ffff:10.0.0.7`) is the same address; a scope has no meaning.
    bool has(boost::asio::ip::address const& a) const;

private:
    boost::asio::ip::address first_;
    unsigned short bits_ = 0;
};

}  // namespace copy
