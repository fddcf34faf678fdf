// device_address.hpp — the address of the device under test.
#pragma once

#include <cstdlib>
#include <string>

namespace test {

/// The address of the device under test, set by the runner.
inline std::string device_address() {
    char const* const given = std::getenv("RCVERBS_TEST_ADDRESS");
    return given != nullptr ? given : "10.0.0.1";
}

}  // namespace test
