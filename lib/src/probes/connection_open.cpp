#include "probes/connection_open.hpp"

#ifdef RCVERBS_HAS_PROBES

// A probe with a semaphore, a counter that the kernel raises while somebody listens. All probes of a file have one, or none.
#define _SDT_HAS_SEMAPHORES 1  // NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
#include <sys/sdt.h>

#include <string>

extern "C" {
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): the kernel writes it.
[[gnu::section(".probes"),
  gnu::visibility("hidden")]] unsigned short volatile rcverbs_connection_open_semaphore = 0;
}

namespace rcverbs::detail {

void fire_connection_open(
    void const* connection, std::uint32_t queue_pair_number, endpoint const& peer
) {
    if (rcverbs_connection_open_semaphore == 0) return;
    std::string const text = peer.address().to_string();
    STAP_PROBE4(rcverbs, connection_open, connection, queue_pair_number, text.c_str(), peer.port());
}

}  // namespace rcverbs::detail

#else

namespace rcverbs::detail {

void fire_connection_open(void const*, std::uint32_t, endpoint const&) {}

}  // namespace rcverbs::detail

#endif
