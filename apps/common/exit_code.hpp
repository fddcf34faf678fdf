// exit_code.hpp — what the programs' exit codes mean, and which one an error leads to.
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

/// The table for --help.
extern char const* const exit_code_help;

/// The code for an error that was met at or after `where`.
exit_code exit_code_for(rcverbs::error_code const& ec, rcverbs::step where) noexcept;

}  // namespace demo
