// system_call.hpp — results of system calls for files.
#pragma once

#include <cerrno>
#include <ctime>

namespace copy {

/// The errno of a call that has returned `result`, or 0.
inline int error_of(int result) noexcept { return result < 0 ? errno : 0; }

inline bool is_same(timespec const& a, timespec const& b) noexcept {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace copy
