#include "behaviour/differences.hpp"
bool test::is_on_fabric() noexcept { return true; }
