#include "verbs/errno_map.hpp"

#include <fcntl.h>

#include <cerrno>

namespace rcverbs::verbs {

namespace {

// A failure without a number still has to be an error.
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

error_code set_non_blocking(int descriptor) noexcept {
    int const flags = ::fcntl(descriptor, F_GETFL);
    return from_minus_one(::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK));
}

error_code from_event_status(int status) noexcept {
    return status >= 0 ? error_code{} : from_number(-status);
}

}  // namespace rcverbs::verbs
