// live_blocks.hpp — how many blocks of memory a program holds, for tests that want it flat.
#pragma once

#include <optional>

namespace test {

/// Blocks that operator new gave and operator delete did not take back, without the fabric's own. None under a
/// sanitizer, which has its own operators.
std::optional<long> live_blocks() noexcept;

}  // namespace test
