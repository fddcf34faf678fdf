// targets.hpp — what is done with arbitrary bytes, and what must be so whatever they are. One function for each target: libFuzzer calls
// it with what it makes up (fuzz.cpp), a unit test with what is kept in corpus/ (replay_test.cpp). What is not so ends the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fuzz {

using bytes = std::span<std::byte const>;

/// Decodes a hello and judges it.
void hello(bytes in);
/// Decodes a message; what it takes for one encodes to the same bytes again.
void message(bytes in);
/// Feeds the session's machine with a sequence of messages and of the user's requests.
void exchange(bytes in);
/// Reads an endpoint from text.
void endpoint(bytes in);

struct target {
    char const* name;
    void (*run)(bytes in);
};
inline constexpr target targets[] = {{"hello", hello}, {"message", message}, {"exchange", exchange}, {"endpoint", endpoint}};

}  // namespace fuzz
