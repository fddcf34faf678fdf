// Accounting of a work queue: capacity, slots that only polled completions free, and a separate
// limit for reads.
#include "machines/work_window.hpp"

#include <deque>
#include <random>
#include <vector>

#include "support/catch.hpp"

using rcverbs::machines::work_window;

namespace {

std::vector<int> retire(work_window<int>& w, std::uint64_t sequence) {
    std::vector<int> freed;
    w.retire(sequence, [&](int entry, std::uint64_t) { freed.push_back(entry); });
    return freed;
}

}  // namespace

TEST_CASE("an empty window without slots takes nothing", "[work_window]") {
    work_window<int> w;
    CHECK_FALSE(w.can_post(false));
    CHECK_FALSE(w.is_posted(0));
}

TEST_CASE("a full window takes nothing until a completion covers a slot", "[work_window]") {
    work_window<int> w{3};
    for (int i = 0; i < 3; ++i) {
        REQUIRE(w.can_post(false));
        CHECK(w.post(i, false) == static_cast<std::uint64_t>(i));
    }
    CHECK_FALSE(w.can_post(false));

    CHECK(retire(w, 0) == std::vector<int>{0});

    CHECK(w.can_post(false));
    CHECK(w.post(3, false) == 3);
    CHECK_FALSE(w.can_post(false));
}

TEST_CASE("a completion frees all earlier work that asked for none", "[work_window]") {
    work_window<int> w{8};
    for (int i = 0; i < 8; ++i) w.post(i, false);
    std::vector<std::uint64_t> numbers;
    w.retire(5, [&](int, std::uint64_t number) { numbers.push_back(number); });
    CHECK(numbers == std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5});
    CHECK(w.posted() == 2);
    CHECK_FALSE(w.is_posted(5));
    CHECK(w.is_posted(6));
    CHECK_FALSE(w.is_posted(8));
}

TEST_CASE(
    "reads and atomics never exceed their depth, and other work passes by the account",
    "[work_window]"
) {
    work_window<int> w{8, 2};
    w.post(0, true);
    w.post(1, true);
    CHECK_FALSE(w.can_post(true));
    CHECK(w.can_post(false));
    w.post(2, false);
    retire(w, 0);
    CHECK(w.can_post(true));
}

TEST_CASE("a read depth of zero allows no read", "[work_window]") {
    work_window<int> w{4, 0};
    CHECK_FALSE(w.can_post(true));
    w.set_read_depth(1);
    CHECK(w.can_post(true));
}

TEST_CASE("unposted requests free their slots, newest first, and the read depth", "[work_window]") {
    work_window<int> w{4, 2};
    w.post(0, false);
    w.post(1, true);
    w.post(2, true);
    w.unpost(2);
    CHECK(w.posted() == 1);
    CHECK(w.reads() == 0);
    CHECK(w.post(9, true) == 1);
    CHECK(retire(w, 1) == std::vector<int>{0, 9});
}

TEST_CASE("random posts and completions keep the account and the order", "[work_window]") {
    auto const seed = GENERATE(range(1U, 21U));
    INFO("seed " << seed);
    std::mt19937 random{seed};
    std::size_t const size = 1 + random() % 16;
    std::size_t const depth = 1 + random() % 4;
    work_window<int> w{size, depth};
    std::deque<std::pair<int, bool>> model;
    std::uint64_t posted = 0;
    std::uint64_t retired = 0;
    for (int i = 0; i < 5000; ++i) {
        bool const is_read = random() % 3 == 0;
        std::size_t reads = 0;
        for (auto const& m : model) reads += m.second ? 1 : 0;
        REQUIRE(w.can_post(is_read) == (model.size() < size && (!is_read || reads < depth)));
        if (w.can_post(is_read) && random() % 2 == 0) {
            REQUIRE(w.post(i, is_read) == posted);
            ++posted;
            model.emplace_back(i, is_read);
        } else if (!model.empty()) {
            std::uint64_t const upto = retired + random() % model.size();
            for (int const freed : retire(w, upto)) {
                REQUIRE(freed == model.front().first);
                model.pop_front();
                ++retired;
            }
            REQUIRE(retired == upto + 1);
        }
        REQUIRE(w.posted() == model.size());
    }
}

TEST_CASE("every state of a window takes every event, or refuses it", "[work_window]") {
    // A window of 3 slots and 1 read: the answers of each state, and the result of each event.
    // Three calls would violate preconditions: posting when can_post() is false, withdrawing more
    // than is posted, and retiring a sequence that is not posted. can_post() and is_posted() let
    // the owner avoid them.
    struct row {
        int plain;  // posted before
        int reads;
        bool may_post;
        bool may_read;
        bool has_next;  // is_posted(the next sequence)
        std::size_t drained;  // entries that retire_all() returns
    };
    std::vector<row> const table{
        {0, 0, true, true, false, 0},  // empty
        {1, 0, true, true, false, 1},  // partly full
        {0, 1, true, false, false, 1},  // at the limit of reads
        {2, 0, true, true, false, 2},
        {1, 1, true, false, false, 2},
        {3, 0, false, false, false, 3},  // full
        {2, 1, false, false, false, 3},
    };
    for (row const& r : table) {
        INFO(r.plain << " posted, " << r.reads << " reads");
        auto const fresh = [&] {
            work_window<int> w{3, 1};
            for (int i = 0; i < r.plain; ++i) w.post(i, false);
            for (int i = 0; i < r.reads; ++i) w.post(10 + i, true);
            return w;
        };
        auto const count = static_cast<std::size_t>(r.plain + r.reads);
        CHECK(fresh().can_post(false) == r.may_post);
        CHECK(fresh().can_post(true) == r.may_read);
        CHECK(fresh().is_posted(count) == r.has_next);
        {
            work_window<int> w = fresh();
            w.unpost(count);
            CHECK(w.posted() == 0);
            CHECK(w.reads() == 0);
        }
        for (std::uint64_t upto = 0; upto < count; ++upto) {
            work_window<int> w = fresh();
            CHECK(w.is_posted(upto));
            CHECK(retire(w, upto).size() == upto + 1);
            CHECK(w.posted() == count - upto - 1);
            CHECK_FALSE(w.is_posted(upto));
        }
        work_window<int> w = fresh();
        std::size_t drained = 0;
        w.retire_all([&](int, bool) { ++drained; });
        CHECK(drained == r.drained);
        CHECK(w.posted() == 0);
        CHECK(w.can_post(true));
    }
}
