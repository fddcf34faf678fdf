// fabric_world.hpp — the current test case's world, in test programs that create one per test case.
#pragma once

#include <rcverbs/fabric.hpp>

namespace test {

rcverbs::fabric::world& the_world();

}  // namespace test
