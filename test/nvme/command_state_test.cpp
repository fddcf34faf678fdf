// The order of a command's states, as a table.
#include "command_state.hpp"

#include <sstream>
#include <string>

#include "support/catch.hpp"

using namespace rcverbs::nvme::detail;

TEST_CASE("the states that a command may enter from each state", "[nvme]") {
    std::ostringstream table;
    for (std::size_t from = 0; from < command_states; ++from) {
        table << to_string(command_state(from)) << " ->";
        for (std::size_t to = 0; to < command_states; ++to) {
            if (may_follow(command_state(from), command_state(to)))
                table << ' ' << to_string(command_state(to));
        }
        table << '\n';
    }
    CHECK(table.str() == R"(idle -> arrived
arrived -> idle waiting_for_memory receiving_data in_store executing answering waiting_for_event
waiting_for_memory -> idle receiving_data in_store answering
receiving_data -> idle in_store executing answering
in_store -> executing answering
executing -> idle waiting_for_memory receiving_data in_store sending_data answering
sending_data -> idle in_store answering
answering -> idle
waiting_for_event -> idle answering
)");
}

TEST_CASE("old commands are counted in the state that they moved to last", "[nvme]") {
    old_command_counters counters;
    counters.move(command_state::idle, command_state::in_store);
    counters.move(command_state::idle, command_state::in_store);
    counters.move(command_state::idle, command_state::arrived);
    counters.move(command_state::idle, command_state::executing);
    counters.move(command_state::in_store, command_state::answering);
    CHECK(counters.snapshot().in_store == 1);
    CHECK(counters.snapshot().answering == 1);
    // A command that has waited for nothing waits for a thread.
    CHECK(counters.snapshot().executing == 2);
    counters.move(command_state::answering, command_state::idle);
    CHECK(counters.snapshot().answering == 0);
}
