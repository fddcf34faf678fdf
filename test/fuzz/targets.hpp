// targets.hpp — fuzz targets: functions that take arbitrary bytes and check invariants. libFuzzer
// calls them with generated inputs (fuzz.cpp), a unit test with the inputs in corpus/
// (replay_test.cpp). A violation aborts the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace fuzz {

using bytes = std::span<std::byte const>;

/// Ends the program if an invariant is violated.
inline void must(bool is_so) {
    if (!is_so) std::abort();
}

/// Decodes and checks a hello.
void hello(bytes in);
/// Decodes a message; an accepted message must encode to the same bytes.
void message(bytes in);
/// Drives the session's state machine with messages and user requests.
void exchange(bytes in);
/// Decodes and checks the hello of a channel.
void channel_hello(bytes in);
/// Decodes a message of a channel; an accepted one must encode to the same bytes.
void channel_message(bytes in);
void region_message(bytes in);
void ring_message(bytes in);
/// Decodes a message of an authentication; an accepted one must encode to the same bytes.
void authentication_message(bytes in);
/// Parses a file of keys. What is accepted has identities and keys of the permitted lengths.
void key_file(bytes in);
/// Decodes what processes of a network of the fabric send each other. What is accepted and encoded is
/// accepted again, and then does not change.
void fabric_frame(bytes in);
/// Decodes what a bridge says of its network. What is accepted is consistent, and encodes to what is decoded to the same.
void network_state(bytes in);
/// Parses an endpoint.
void endpoint(bytes in);
/// Decodes a message of rdma-copy; an accepted one must encode to the same bytes.
void copy_message(bytes in);
/// Drives an NVMe controller with commands: 66 bytes each, the last two the size of its data.
void nvme_controller(bytes in);

struct target {
    char const* name;
    void (*run)(bytes in);
};
inline constexpr target targets[] = {
    {"hello", hello},
    {"message", message},
    {"exchange", exchange},
    {"channel_hello", channel_hello},
    {"channel_message", channel_message},
    {"region_message", region_message},
    {"ring_message", ring_message},
    {"authentication_message", authentication_message},
    {"key_file", key_file},
    {"fabric_frame", fabric_frame},
    {"network_state", network_state},
    {"endpoint", endpoint},
    {"copy_message", copy_message},
#if defined(RCVERBS_HAS_NVME)
    {"nvme_controller", nvme_controller},
#endif
};

}  // namespace fuzz
