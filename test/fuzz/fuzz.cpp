// The libFuzzer entry point for the target named by FUZZ_TARGET.
#include "fuzz/targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    fuzz::FUZZ_TARGET({reinterpret_cast<std::byte const*>(data), size});  // characters are bytes
    return 0;
}
