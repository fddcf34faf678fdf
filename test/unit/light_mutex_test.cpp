// A connection's lock: mutual exclusion, progress of every waiter, early release.
#include "hosting/light_mutex.hpp"

#include <thread>
#include <vector>

#include "support/catch.hpp"

using rcverbs::hosting::light_lock;
using rcverbs::hosting::light_mutex;

TEST_CASE("a light mutex lets one in at a time", "[light_mutex]") {
    light_mutex mutex;
    int count = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 20'000; ++i) {
                light_lock lock{mutex};
                ++count;
                if (i % 2 == 0) lock.unlock();
            }
        });
    }
    for (std::thread& t : threads) t.join();
    CHECK(count == 80'000);
}

TEST_CASE("a thread that finds a light mutex locked sleeps until it is unlocked", "[light_mutex]") {
    light_mutex mutex;
    std::atomic<int> inside{0};
    mutex.lock();
    CHECK_FALSE(mutex.try_lock());
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            light_lock const lock{mutex};
            ++inside;
        });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    CHECK(inside == 0);
    mutex.unlock();
    for (std::thread& t : threads) t.join();
    CHECK(inside == 3);
    CHECK(mutex.try_lock());
    mutex.unlock();
}
