// allocations.hpp — attributes allocations, for tests that count them.
#pragma once

namespace test {

/// True if this thread's allocations currently belong to the device and not to the program. Null
/// where no such distinction exists.
inline bool (*allocates_for_others)() = nullptr;

}  // namespace test
