#include <rcverbs/endpoint.hpp>
#include <rcverbs/remote_region.hpp>

#include <rcverbs/error.hpp>

namespace rcverbs {

endpoint::endpoint(std::string_view address, std::uint16_t port)
    : address_{boost::asio::ip::make_address(std::string{address})}, port_{port} {}

std::string endpoint::to_string() const {
    std::string const host = address_.to_string();
    if (is_infiniband_) return "ib[" + host + "]:" + std::to_string(port_);
    return (address_.is_v6() ? '[' + host + ']' : host) + ':' + std::to_string(port_);
}

remote_region remote_region::slice(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
    if (offset_bytes > size_bytes_ || size_bytes > size_bytes_ - offset_bytes) {
        throw boost::system::system_error{errc::out_of_range, "slice of a remote region"};
    }
    return {address_ + offset_bytes, size_bytes, key_, rights_};
}

remote_word remote_region::word(std::uint64_t offset_bytes) const {
    remote_region const cell = slice(offset_bytes, sizeof(std::uint64_t));
    return {cell.address(), cell.key(), cell.rights()};
}

}  // namespace rcverbs
