// allocations.hpp — who allocates, for tests that count.
#pragma once

namespace test {

/// True if what this thread allocates now is not the program's doing but its device's. Null where there is no such thing.
inline bool (*allocates_for_others)() = nullptr;

}  // namespace test
