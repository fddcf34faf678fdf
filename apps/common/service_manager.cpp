#include "common/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace demo {

namespace {

// One datagram. What does not arrive is no failure of the program.
void notify(char const* text) noexcept {
    char const* const place = std::getenv("NOTIFY_SOCKET");
    sockaddr_un to{};
    std::size_t const size = place == nullptr ? 0 : std::strlen(place);
    if (size < 2 || size >= sizeof to.sun_path) return;
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, place, size);
    // The name of an abstract socket.
    if (place[0] == '@') to.sun_path[0] = '\0';
    int const s = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0) return;
    auto const bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the address of any family
    auto const* const address = reinterpret_cast<sockaddr const*>(&to);
    [[maybe_unused]] auto const sent =
        ::sendto(s, text, std::strlen(text), MSG_NOSIGNAL, address, bytes);
    ::close(s);
}

}  // namespace

void notify_ready() noexcept { notify("READY=1"); }

void notify_reloading() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    char text[64];
    std::snprintf(
        text,
        sizeof text,
        "RELOADING=1\nMONOTONIC_USEC=%lld",
        static_cast<long long>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000
    );
    notify(text);
}

void notify_stopping() noexcept { notify("STOPPING=1"); }

}  // namespace demo
