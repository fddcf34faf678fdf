// live_blocks.hpp — the number of memory blocks that are allocated, or have been, for tests that
// require it to stay constant.
#pragma once

#include <optional>

namespace test {

/// Blocks allocated by operator new and not yet freed, without the fabric's own. None under a
/// sanitizer, which has its own operators.
std::optional<long> live_blocks() noexcept;
/// Blocks allocated so far, counted as above.
std::optional<long> allocations() noexcept;
/// Bytes of the blocks that live_blocks() counts.
std::optional<long> live_bytes() noexcept;

}  // namespace test
