#include "nbd_connection.hpp"

#include <algorithm>
#include <cerrno>

#include "error/detailed_error.hpp"

namespace rcverbs::nvme::detail {

namespace {

// Of a server that does not tell: what NBD demands of every server.
constexpr std::uint32_t default_transfer_bytes_max = 32U << 20;

// Throws what libnbd has said on this thread.
void require(bool is_right) {
    if (is_right) return;
    int const number = ::nbd_get_errno();
    char const* const text = ::nbd_get_error();
    error_code const ec{number != 0 ? number : EPROTO, boost::system::system_category()};
    throw rcverbs::detail::detailed_error{ec, text != nullptr ? text : "libnbd"};
}

}  // namespace

nbd_connection connect_nbd(
    std::string const& uri,
    std::chrono::steady_clock::time_point until,
    std::atomic<bool> const& stops
) {
    nbd_connection made{::nbd_create()};
    require(made != nullptr);
    nbd_handle* const h = made.get();
    // The URI is the administrator's: it may name a file with keys.
    require(::nbd_set_uri_allow_local_file(h, true) == 0);
    require(::nbd_aio_connect_uri(h, uri.c_str()) == 0);
    while (::nbd_aio_is_ready(h) != 1) {
        require(::nbd_aio_is_dead(h) != 1 && ::nbd_aio_is_closed(h) != 1);
        constexpr int poll_ms = 50;
        require(::nbd_poll(h, poll_ms) >= 0);
        if (stops || std::chrono::steady_clock::now() >= until)
            throw rcverbs::detail::detailed_error{
                error_code{ETIMEDOUT, boost::system::system_category()},
                "the server does not answer"};
    }
    return made;
}

nbd_features features_of(nbd_handle* h) noexcept {
    nbd_features f;
    f.size_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(::nbd_get_size(h), 0));
    auto const block = [h](int which, std::uint32_t otherwise) {
        std::int64_t const bytes = ::nbd_get_block_size(h, which);
        return bytes > 0 ? static_cast<std::uint32_t>(std::min<std::int64_t>(bytes, UINT32_MAX))
                         : otherwise;
    };
    f.block_bytes_min = block(LIBNBD_SIZE_MINIMUM, 1);
    f.transfer_bytes_max = block(LIBNBD_SIZE_MAXIMUM, default_transfer_bytes_max);
    f.is_read_only = ::nbd_is_read_only(h) == 1;
    f.can_flush = ::nbd_can_flush(h) == 1;
    f.can_write_durably = ::nbd_can_fua(h) == 1;
    f.can_zero = ::nbd_can_zero(h) == 1;
    f.can_have_several = ::nbd_can_multi_conn(h) == 1;
    return f;
}

std::string plain_nbd_uri(std::string const& uri) {
    std::size_t const scheme = uri.find("://");
    std::string rest = scheme == uri.npos ? uri : uri.substr(scheme + 3);
    std::string parameters;
    if (std::size_t const at = rest.find('?'); at != rest.npos) {
        parameters = rest.substr(at + 1) + '&';
        rest.resize(at);
    }
    std::size_t const path = rest.find('/');
    std::string host = rest.substr(0, path);
    std::string const name = path == rest.npos ? std::string{} : rest.substr(path);
    if (std::size_t const user = host.find('@'); user != host.npos) host.erase(0, user + 1);
    if (std::size_t const at = parameters.find("socket="); at != parameters.npos)
        host = "unix:" + parameters.substr(at + 7, parameters.find('&', at) - at - 7);
    return host + name;
}

bool is_on_this_machine(std::string const& plain_uri) {
    if (plain_uri.starts_with("unix:") || plain_uri.starts_with("[::1]")) return true;
    std::string const host = plain_uri.substr(0, plain_uri.find_first_of(":/"));
    return host == "localhost" || host.starts_with("127.");
}

}  // namespace rcverbs::nvme::detail
