// fabric_world.hpp — the world that the present test case runs in, where the test program makes one for each.
#pragma once

#include <rcverbs/fabric.hpp>

namespace test {

rcverbs::fabric::world& the_world();

}  // namespace test
