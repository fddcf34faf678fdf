#include "common/version.hpp"

namespace demo {

char const* version() noexcept { return RCVERBS_VERSION; }

}  // namespace demo
