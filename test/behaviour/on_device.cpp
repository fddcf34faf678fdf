#include "behaviour/provider_quirks.hpp"
bool test::is_on_fabric() noexcept { return false; }
