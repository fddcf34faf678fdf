// How many hosts a target counts apart, whatever names they choose.
#include "host_counters.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace rcverbs::nvme;
using namespace rcverbs::nvme::detail;

namespace {

constexpr std::size_t rows_max = host_counter_table::rows_max;

std::string host_name(std::size_t number) { return "nqn.host:" + std::to_string(number); }

void read(host_counters& counters) {
    command c;
    c.code = opcode::read;
    c.data.size_bytes = 512;
    counters.note(c, status::success, std::chrono::microseconds{3});
}

std::uint64_t reads_of(host_counter_table const& table, std::string const& name) {
    std::uint64_t reads = 0;
    for (host_statistics const& each : table.snapshot()) {
        if (each.host == name) reads += each.reads;
    }
    return reads;
}

}  // namespace

TEST_CASE("hosts beyond the limit are counted together", "[nvme]") {
    host_counter_table table;
    std::vector<std::shared_ptr<host_counters>> held;
    for (std::size_t i = 0; i < rows_max + 3; ++i) {
        held.push_back(table.find_or_add("nqn.s", 1, host_name(i)));
        read(*held.back());
    }
    CHECK(table.snapshot().size() == rows_max + 1);
    CHECK(reads_of(table, host_name(0)) == 1);
    CHECK(reads_of(table, host_name(rows_max)) == 0);
    CHECK(reads_of(table, "") == 3);
    // The same host has the same counters.
    CHECK(table.find_or_add("nqn.s", 1, host_name(7)) == held[7]);
    CHECK(table.find_or_add("nqn.s", 2, host_name(7)) != held[7]);
}

TEST_CASE("a host that has left makes room, and what it has counted stays", "[nvme]") {
    host_counter_table table;
    std::vector<std::shared_ptr<host_counters>> held;
    for (std::size_t i = 0; i < rows_max; ++i)
        held.push_back(table.find_or_add("nqn.s", 1, host_name(i)));
    read(*held[5]);
    // It may come back, as long as nobody needs the room.
    held[5].reset();
    CHECK(reads_of(table, host_name(5)) == 1);
    auto const next = table.find_or_add("nqn.s", 1, "nqn.next");
    read(*next);
    CHECK(reads_of(table, "nqn.next") == 1);
    CHECK(reads_of(table, host_name(5)) == 0);
    CHECK(reads_of(table, "") == 1);
    CHECK(table.snapshot().size() == rows_max + 1);
    for (host_statistics const& each : table.snapshot()) {
        if (!each.host.empty()) continue;
        CHECK(each.read_bytes == 512);
        CHECK(each.read_time == std::chrono::microseconds{3});
    }
}
