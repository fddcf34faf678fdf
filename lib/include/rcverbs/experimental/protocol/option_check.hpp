// option_check.hpp — what the library checks its own options with, for those of protocols. Experimental:
// it may change.
//
//     protocol::option_check check{"echo_options"};
//     check.within("receives", options.receives, 1, 64).from("timeout", options.timeout, 1ms);
//     protocol::throw_if_refused(check.problem());  // "echo_options::receives is 0, not 1 to 64"
#pragma once

#include <string>

#include <rcverbs/authentication.hpp>
#include <rcverbs/detail/option_check.hpp>
#include <rcverbs/detail/timeouts.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs::protocol {

/// Checks options against ranges; has the first violation as text.
using detail::option_check;
/// Throws errc::invalid_option with that text, unless it is empty.
using detail::throw_if_refused;
/// A time limit, or a year if it is longer, so that adding it to a time does not overflow.
using detail::bounded;
/// What is wrong with the options, for option_check::inside(); empty if nothing is.
RCVERBS_EXPORT std::string problem_of(authentication_options const& options);

}  // namespace rcverbs::protocol
