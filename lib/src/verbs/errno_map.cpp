#include "verbs/errno_map.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace rcverbs::verbs {

namespace {

// A failure without an errno is reported as EIO.
error_code from_number(int number) noexcept {
    return {number > 0 ? number : EIO, boost::system::system_category()};
}

}  // namespace

error_code from_pointer(void const* returned) noexcept {
    return returned != nullptr ? error_code{} : from_number(errno);
}

error_code from_returned_code(int returned) noexcept {
    if (returned == 0) return {};
    if (returned == -1) return from_number(errno);
    return from_number(returned < 0 ? -returned : returned);
}

error_code from_minus_one(int returned) noexcept {
    return returned >= 0 ? error_code{} : from_number(errno);
}

bool has_free_descriptors(unsigned count) noexcept {
    if (count == 0) return true;
    int const probe = ::open("/", O_PATH | O_CLOEXEC);
    bool const has_more = probe >= 0 ? has_free_descriptors(count - 1) : errno != EMFILE;
    if (probe >= 0) ::close(probe);
    return has_more;
}

error_code or_out_of_descriptors(error_code ec) noexcept {
    // 3: the number of descriptors that opening a device takes. A failed attempt has closed its own
    // by now.
    return !ec || has_free_descriptors(3) ? ec : from_number(EMFILE);
}

error_code or_unavailable(error_code ec) noexcept {
    using namespace boost::system::errc;
    bool const has_none =
        ec == no_such_device || ec == no_such_file_or_directory || ec == function_not_supported;
    return has_none ? make_error_code(errc::rdma_unavailable) : ec;
}

error_code set_non_blocking(int descriptor) noexcept {
    int const flags = ::fcntl(descriptor, F_GETFL);
    return from_minus_one(::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK));
}

error_code from_event_status(int status) noexcept {
    return status >= 0 ? error_code{} : from_number(-status);
}

}  // namespace rcverbs::verbs
