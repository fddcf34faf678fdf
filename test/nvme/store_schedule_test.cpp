// In which order the requests of a store are carried out: tables, and a model.
#include "store_schedule.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace rcverbs::nvme::detail;

namespace {

struct job : scheduled<job> {
    job* next = nullptr;
    unsigned pieces = 1;
    unsigned number = 0;
};

// A letter is a job of that host; in capitals a long one, of three pieces. One worker carries them out.
std::string order_of(std::string const& waiting) {
    std::deque<job> jobs;
    store_schedule<job> schedule{1};
    for (char const letter : waiting) {
        job& j = jobs.emplace_back();
        j.host = static_cast<unsigned char>(letter | 0x20);
        j.is_long = letter < 'a';
        j.pieces = j.is_long ? 3 : 1;
        schedule.push(j);
    }
    std::string order;
    while (job* const j = schedule.take()) {
        order += static_cast<char>(j->is_long ? j->host & ~0x20U : j->host);
        schedule.on_carried_out(*j);
        if (--j->pieces > 0) schedule.push(*j);
    }
    CHECK(schedule.is_empty());
    return order;
}

}  // namespace

TEST_CASE("nvme: hosts have turns at a store, and long requests go to the back", "[nvme]") {
    CHECK(order_of("").empty());
    CHECK(order_of("aaa") == "aaa");
    CHECK(order_of("aaaabb") == "ababaa");
    CHECK(order_of("aaabbc") == "abcaba");
    // A host's own short request waits for one piece.
    CHECK(order_of("Aa") == "AaAA");
    CHECK(order_of("Ab") == "AbAA");
    CHECK(order_of("AAb") == "AbAAAAA");
    CHECK(order_of("ABcc") == "ABcABcAB");
}

TEST_CASE("nvme: only some long requests run at a time", "[nvme]") {
    std::vector<job> jobs(5);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        jobs[i].host = i + 1;
        jobs[i].is_long = i < 4;
    }
    store_schedule<job> schedule{2};
    for (job& each : jobs) schedule.push(each);
    CHECK(schedule.take() == &jobs[0]);
    CHECK(schedule.take() == &jobs[1]);
    CHECK(schedule.take() == &jobs[4]);
    CHECK(schedule.take() == nullptr);
    CHECK_FALSE(schedule.is_empty());
    schedule.on_carried_out(jobs[1]);
    CHECK(schedule.take() == &jobs[2]);
    CHECK(schedule.take() == nullptr);
    schedule.on_carried_out(jobs[0]);
    CHECK(schedule.take() == &jobs[3]);
    CHECK(schedule.is_empty());
}

TEST_CASE("nvme: a long request is cut at multiples of a MiB", "[nvme]") {
    constexpr std::uint64_t mib = 1U << 20;
    CHECK(piece_bytes(0, 10 * mib) == mib);
    CHECK(piece_bytes(4096, 10 * mib) == mib - 4096);
    CHECK(piece_bytes(mib, 512) == 512);
    CHECK(piece_bytes(3 * mib - 512, 4096) == 512);
}

// Whatever comes in whatever order: within a host first come, first served; nobody is overtaken twice by
// the same host while it could run; and all is carried out.
TEST_CASE("nvme: no host is overtaken twice at a store", "[nvme]") {
    auto const seed = GENERATE(range(1U, 60U));
    std::mt19937 random{seed};
    auto const below = [&](unsigned n) {
        return std::uniform_int_distribution<unsigned>{0, n - 1}(random);
    };
    unsigned const long_max = 1 + below(3);
    unsigned const workers = long_max + below(3);
    store_schedule<job> schedule{long_max};
    std::deque<job> jobs;
    std::vector<job*> running;
    std::map<std::uint64_t, std::deque<job*>> waiting;
    // For each host that waits with a short job in front: the turns of the others since.
    std::map<std::uint64_t, std::map<std::uint64_t, unsigned>> overtaken;
    std::size_t done = 0;
    unsigned long_running = 0;
    auto const push = [&](job& j) {
        waiting[j.host].push_back(&j);
        schedule.push(j);
    };
    for (unsigned step = 0; step < 2000 || done < jobs.size(); ++step) {
        INFO("step " << step);
        REQUIRE(step < 100000);
        if (step < 2000 && below(2) == 0) {
            job& j = jobs.emplace_back();
            j.host = 1 + below(5);
            j.is_long = below(3) == 0;
            j.pieces = j.is_long ? 1 + below(6) : 1;
            push(j);
        }
        if (running.size() < workers && below(3) != 0) {
            bool may_run = false;
            for (auto const& [host, own] : waiting)
                may_run =
                    may_run || (!own.empty() && (!own.front()->is_long || long_running < long_max));
            job* const j = schedule.take();
            REQUIRE((j != nullptr) == may_run);
            if (j != nullptr) {
                auto& own = waiting[j->host];
                REQUIRE(own.front() == j);
                own.pop_front();
                overtaken[j->host].clear();
                for (auto const& [host, theirs] : waiting) {
                    if (host == j->host || theirs.empty()) continue;
                    // One that must wait for the long ones loses no turn.
                    if (theirs.front()->is_long) overtaken[host].clear();
                    else REQUIRE(++overtaken[host][j->host] <= 2);
                }
                long_running += j->is_long ? 1 : 0;
                running.push_back(j);
            }
        }
        if (!running.empty() && below(3) != 0) {
            std::size_t const which = below(static_cast<unsigned>(running.size()));
            job* const j = running[which];
            running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
            schedule.on_carried_out(*j);
            long_running -= j->is_long ? 1 : 0;
            if (--j->pieces > 0) push(*j);
            else ++done;
        }
    }
    CHECK(schedule.is_empty());
}
