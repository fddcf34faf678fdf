// A gate: who is inside runs what others hand over, in its order.
#include "hosting/gate.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"

using rcverbs::hosting::gate;
using rcverbs::hosting::order_task;

namespace {

struct task final : order_task {
    std::function<void()> function;

    explicit task(std::function<void()> f) : function{std::move(f)} {}
    void run(bool is_wanted) override {
        std::unique_ptr<task> const self{this};
        if (is_wanted) function();
    }
};

void leave(gate& g) {
    while (!g.try_leave()) g.run_handed_over();
}

// As its users do.
void enter(gate& g, std::function<void()> function) {
    auto one = std::make_unique<task>(std::move(function));
    if (g.hand_over(*one)) {
        static_cast<void>(one.release());
        return;
    }
    one.release()->run(true);
    leave(g);
}

}  // namespace

TEST_CASE("what is handed over runs in its order, before whoever enters later", "[gate]") {
    gate g;
    std::string order;
    REQUIRE(g.try_enter());
    CHECK_FALSE(g.try_enter());
    for (char const c : {'a', 'b', 'c'}) enter(g, [&order, c] { order += c; });
    CHECK(order.empty());
    // Also what is handed over from inside of what was handed over.
    enter(g, [&] { enter(g, [&] { order += 'e'; }); });
    enter(g, [&] { order += 'd'; });
    leave(g);
    CHECK(order == "abcde");
    enter(g, [&] { order += 'f'; });
    CHECK(order == "abcdef");
    CHECK(g.try_enter());
    leave(g);
}

TEST_CASE("one thread at a time is inside, and what each hands over keeps its order", "[gate]") {
    constexpr int threads_max = 4;
    constexpr int each = 20'000;
    gate g;
    // Used inside.
    std::vector<int> last(threads_max, -1);
    int inside = 0;
    int overlaps = 0;
    int disorder = 0;
    int entered = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < threads_max; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < each; ++i) {
                enter(g, [&, t, i] {
                    overlaps += ++inside == 1 ? 0 : 1;
                    int& before = last[static_cast<std::size_t>(t)];
                    disorder += before == i - 1 ? 0 : 1;
                    before = i;
                    ++entered;
                    --inside;
                });
            }
        });
    }
    for (std::thread& t : threads) t.join();
    CHECK(entered == threads_max * each);
    CHECK(overlaps == 0);
    CHECK(disorder == 0);
}

TEST_CASE("a gate that is closed lets nobody in", "[gate]") {
    gate g;
    auto const watched = std::make_shared<int>(0);
    REQUIRE(g.try_enter());
    enter(g, [watched] { FAIL("called"); });
    g.close();
    CHECK(watched.use_count() == 1);
    enter(g, [watched] { FAIL("called"); });
    CHECK(watched.use_count() == 1);
    CHECK_FALSE(g.try_enter());
}
