// version.hpp — which build of rcverbs a program is from.
#pragma once

namespace demo {

/// The version of the package: MAJOR.MINOR.PATCH.
char const* version() noexcept;

}  // namespace demo
