// Which queue of an NVMe target makes room for another one: a table.
#include "admission.hpp"

#include <string>

#include "support/catch.hpp"

using namespace rcverbs::nvme::detail;
using boost::asio::ip::make_address;
using verdict = admission::verdict;

namespace {

// "a" to "d": the queue's address, in capitals if its host has proved itself. The oldest first.
admission decide(std::string const& present, char next, queue_limits limits) {
    auto const address = [](char letter) {
        return make_address("10.0.0." + std::to_string((letter | 0x20) - 'a' + 1));
    };
    std::vector<present_queue> all;
    for (char const letter : present)
        all.push_back({address(letter), letter >= 'A' && letter <= 'Z'});
    return admit(all, address(next), limits);
}

}  // namespace

TEST_CASE("nvme: queues without a proof make room, and others do not", "[nvme]") {
    struct expectation {
        char const* present;
        char next;
        verdict is;
        std::size_t replaced;
    };
    // Six queues, four of one address.
    for (expectation const& e : {
             expectation{"", 'a', verdict::admitted, 0},
             {"aaa", 'a', verdict::admitted, 0},
             {"abcAB", 'd', verdict::admitted, 0},
             // The address has its share: only its own queue makes room.
             {"aaaa", 'a', verdict::in_exchange, 0},
             {"AaAa", 'a', verdict::in_exchange, 1},
             {"bAAAA", 'a', verdict::too_many_of_address, 0},
             {"bAAAAb", 'a', verdict::too_many_of_address, 0},
             {"aaaabb", 'a', verdict::in_exchange, 0},
             // All are in use: the oldest queue of the address with most queues without a proof.
             {"baaabb", 'c', verdict::in_exchange, 0},
             {"baaaab", 'c', verdict::in_exchange, 1},
             {"CbCaac", 'd', verdict::in_exchange, 3},
             {"AAABBb", 'c', verdict::in_exchange, 5},
             {"AAABBB", 'c', verdict::too_many, 0},
             {"AAABBB", 'a', verdict::too_many, 0},
             {"abcdef", 'f', verdict::in_exchange, 0},
         }) {
        INFO(e.present << " and " << e.next);
        admission const got = decide(e.present, e.next, {6, 4});
        CHECK(got.is == e.is);
        CHECK(got.replaced == e.replaced);
    }
}

TEST_CASE("nvme: who proves nothing cannot keep out who does", "[nvme]") {
    // Hosts at c, a to e without a proof: whatever the order, c's host has its four queues.
    std::string present;
    queue_limits const limits{12, 9};
    for (int round = 0; round < 200; ++round) {
        char const next = "aabde"[round % 5];
        admission const got = decide(present, next, limits);
        if (got.is == verdict::in_exchange) present.erase(got.replaced, 1);
        if (got.is == verdict::admitted || got.is == verdict::in_exchange) present += next;
        if (round % 10 != 9 || std::ranges::count(present, 'C') == 4) continue;
        admission const host = decide(present, 'c', limits);
        REQUIRE((host.is == verdict::admitted || host.is == verdict::in_exchange));
        if (host.is == verdict::in_exchange) present.erase(host.replaced, 1);
        present += 'C';
    }
    CHECK(std::ranges::count(present, 'C') == 4);
    CHECK(present.size() == limits.in_all);
}
