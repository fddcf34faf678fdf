#include <rcverbs/endpoint.hpp>

#include <rcverbs/error.hpp>

#include <ostream>

namespace rcverbs {

endpoint::endpoint(std::string_view address, std::uint16_t port)
    : address_{boost::asio::ip::make_address(std::string{address})},
      port_{port} {}

std::string endpoint::to_string() const {
    std::string const host = address_.to_string();
    if (is_infiniband_) return "ib[" + host + "]:" + std::to_string(port_);
    return (address_.is_v6() ? '[' + host + ']' : host) + ':' + std::to_string(port_);
}

std::ostream& operator<<(std::ostream& out, endpoint const& e) { return out << e.to_string(); }

boost::asio::ip::address const& endpoint::ip_address() const {
    if (is_infiniband_)
        throw boost::system::system_error{
            errc::address_family_unsupported, "an InfiniBand address as an IP address"};
    return address_;
}

}  // namespace rcverbs
