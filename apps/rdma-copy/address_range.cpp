#include "rdma-copy/address_range.hpp"

#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>

#include <charconv>

namespace copy {

namespace {

namespace ip = boost::asio::ip;

ip::address plain(ip::address const& a) {
    if (!a.is_v6()) return a;
    if (a.to_v6().is_v4_mapped()) return ip::make_address_v4(ip::v4_mapped, a.to_v6());
    return ip::address_v6{a.to_v6().to_bytes()};
}

// The address with all bits behind these zero.
ip::address beginning(ip::address const& a, unsigned short bits) {
    if (a.is_v4()) return ip::network_v4{a.to_v4(), bits}.network();
    return ip::network_v6{a.to_v6(), bits}.network();
}

}  // namespace

std::optional<address_range> address_range::parse(std::string const& text) {
    std::size_t const slash = text.find('/');
    boost::system::error_code ec;
    ip::address const a = ip::make_address(text.substr(0, slash), ec);
    if (ec || text.find('%') != std::string::npos) return {};
    unsigned short const bits_max = a.is_v4() ? 32 : 128;
    unsigned short bits = bits_max;
    if (slash != std::string::npos) {
        char const* const end = text.data() + text.size();
        auto const [behind, failed] = std::from_chars(text.data() + slash + 1, end, bits);
        if (failed != std::errc{} || behind != end || bits > bits_max) return {};
    }
    address_range r;
    r.first_ = beginning(a, bits);
    r.bits_ = bits;
    return r;
}

bool address_range::has(ip::address const& a) const {
    ip::address const known = plain(a);
    return known.is_v4() == first_.is_v4() && beginning(known, bits_) == first_;
}

}  // namespace copy
