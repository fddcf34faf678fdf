// device_address.hpp — where the device under test is.
#pragma once

#include <cstdlib>
#include <string>

namespace test {

/// The address of the device under test; the runner says which.
inline std::string device_address() {
    char const* const given = std::getenv("RCVERBS_TEST_ADDRESS");
    return given != nullptr ? given : "10.0.0.1";
}

}  // namespace test
