#include "behaviour/provider_quirks.hpp"
#include <cstdlib>
// In a program that `rcverbs-fabric run` has started, the device is the fabric's.
bool test::is_on_fabric() noexcept { return std::getenv("RCVERBS_FABRIC_NODE") != nullptr; }
