// option_problems.hpp — range checks of the connection options.
#pragma once

#include <string>

#include <rcverbs/error.hpp>
#include <rcverbs/options.hpp>

#include "machines/liveness.hpp"

namespace rcverbs::detail {

/// Describes the first field that is out of its range, with value and range; empty if there is
/// none.
std::string problem_of(connection_options const& options);
/// errc::invalid_option if a field is out of its range.
error_code validate(connection_options const& options);
/// The limits, where 0 is none.
machines::liveness::limits limits_of(liveness_options const& options) noexcept;
/// True if the protection domain is chosen by `how`.
bool has_domain(placement_options const& options, domain_sharing how) noexcept;

}  // namespace rcverbs::detail
