// exit_code.hpp — the programs' exit codes, and the mapping from errors to them.
#pragma once

#include <rcverbs/failure.hpp>

namespace demo {

enum class exit_code : int {
    done = 0,
    other = 1,
    usage = 2,
    could_not_connect = 3,
    deadline_passed = 4,
    peer_gone = 5,
    refused = 6,
    not_verified = 7,
};

/// The exit code table that --help prints.
extern char const* const exit_code_help;

/// The exit code for an error that occurred at or after `where`.
exit_code exit_code_for(rcverbs::error_code const& ec, rcverbs::step where) noexcept;

}  // namespace demo
