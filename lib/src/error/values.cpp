#include <rcverbs/endpoint.hpp>
#include <rcverbs/local_slice.hpp>
#include <rcverbs/remote_region.hpp>

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

local_slice local_slice::slice(std::size_t offset_bytes, std::size_t size_bytes) const {
    if (offset_bytes > size() || size_bytes > size() - offset_bytes)
        throw boost::system::system_error{errc::out_of_range, "slice of a slice"};
    return {bytes().subspan(offset_bytes, size_bytes), key_, mark()};
}

remote_region remote_region::slice(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
    if (offset_bytes > size_bytes_ || size_bytes > size_bytes_ - offset_bytes) {
        throw boost::system::system_error{errc::out_of_range, "slice of a remote region"};
    }
    return {address_ + offset_bytes, size_bytes, key_, rights_};
}

remote_atomic remote_region::word(std::uint64_t offset_bytes) const {
    remote_region const cell = slice(offset_bytes, sizeof(std::uint64_t));
    return {cell.address(), cell.key(), cell.rights()};
}

}  // namespace rcverbs
