// An operation's slot: handlers of all kinds run once on the right executor, and nothing is
// allocated for them.
#include <rcverbs/detail/operation.hpp>

#include <boost/asio/append.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>

#include "support/catch.hpp"
#include "support/counting_allocator.hpp"

namespace asio = boost::asio;
using rcverbs::detail::arrival_result;
using rcverbs::detail::bytes_result;
using rcverbs::detail::operation;
using test::counting_allocator;

namespace {

// Completes an operation as at the end of a polling round.
void complete(operation& op) {
    rcverbs::detail::outgoing_parcels outgoing;
    op.complete(outgoing);
    outgoing.send();
}

}  // namespace

TEST_CASE("a handler whose executor is the operation's runs at once inside it", "[operation]") {
    asio::io_context io;
    asio::any_io_executor const executor = io.get_executor();
    operation op;
    int called = 0;
    op.emplace<bytes_result>(
        [&](rcverbs::error_code ec, std::size_t n) { called += !ec && n == 7 ? 1 : 100; }, executor
    );
    op.result.bytes = 7;
    complete(op);
    CHECK(called == 1);
    CHECK_FALSE(op.is_pending());
}

TEST_CASE("a handler is dispatched to its own executor", "[operation]") {
    asio::io_context io;
    asio::io_context other;
    asio::any_io_executor const executor = io.get_executor();
    operation op;
    bool called = false;
    op.emplace<bytes_result>(
        asio::bind_executor(other, [&](rcverbs::error_code, std::size_t) { called = true; }),
        executor
    );
    complete(op);
    CHECK_FALSE(called);
    io.poll();
    CHECK_FALSE(called);
    other.poll();
    CHECK(called);
}

TEST_CASE("an operation that waits keeps its handler's executor at work", "[operation]") {
    asio::io_context io;
    asio::io_context other;
    asio::any_io_executor const executor = io.get_executor();
    operation op;
    op.emplace<bytes_result>(
        asio::bind_executor(other, [](rcverbs::error_code, std::size_t) {}), executor
    );
    other.poll();
    CHECK_FALSE(other.stopped());
    complete(op);
    other.restart();
    CHECK(other.run() == 1);
}

TEST_CASE(
    "a handler too large for its place comes from its allocator and is freed before it runs",
    "[operation]"
) {
    asio::io_context io;
    asio::any_io_executor const executor = io.get_executor();
    int live = 0;
    int ever = 0;
    int live_in_handler = -1;
    std::array<char, 300> ballast{};
    operation op;
    op.emplace<bytes_result>(
        asio::bind_allocator(
            counting_allocator<char>{&live, &ever},
            [&, ballast](rcverbs::error_code, std::size_t) { live_in_handler = live + ballast[0]; }
        ),
        executor
    );
    CHECK(live == 1);
    complete(op);
    CHECK(live_in_handler == 0);
    CHECK(ever == 1);
}

TEST_CASE("a dropped handler is destroyed uncalled", "[operation]") {
    asio::io_context io;
    auto const token = std::make_shared<int>(1);
    bool called = false;
    {
        operation op;
        op.emplace<bytes_result>(
            [token, &called](rcverbs::error_code, std::size_t) { called = true; }, io.get_executor()
        );
        CHECK(token.use_count() == 2);
        std::array<char, 300> ballast{};
        operation large;
        large.emplace<bytes_result>(
            [token, ballast, &called](rcverbs::error_code, std::size_t) {
                called = ballast[0] == 0;
            },
            io.get_executor()
        );
        CHECK(token.use_count() == 3);
    }
    CHECK(token.use_count() == 1);
    CHECK_FALSE(called);
}

TEST_CASE(
    "a handler that cannot be copied will do, and its place is free when it has returned",
    "[operation]"
) {
    asio::io_context io;
    asio::any_io_executor const executor = io.get_executor();
    operation op;
    int calls = 0;
    op.emplace<arrival_result>(
        [&, only = std::make_unique<int>(5)](rcverbs::error_code, rcverbs::receive_result r) {
            calls += *only + static_cast<int>(r.immediate.value_or(0));
        },
        executor
    );
    op.result.arrival.immediate = 10;
    complete(op);
    CHECK(calls == 15);
    op.emplace<bytes_result>([&](rcverbs::error_code, std::size_t) { ++calls; }, executor);
    complete(op);
    CHECK(calls == 16);
}

TEST_CASE("a handler that throws is destroyed all the same", "[operation]") {
    asio::io_context io;
    asio::any_io_executor const executor = io.get_executor();
    operation op;
    auto const token = std::make_shared<int>(0);
    op.emplace<bytes_result>([token](rcverbs::error_code, std::size_t) { throw 1; }, executor);
    CHECK_THROWS_AS(complete(op), int);
    CHECK(token.use_count() == 1);
    CHECK_FALSE(op.is_pending());
}

TEST_CASE("the handlers of one round travel to another executor in one piece", "[operation]") {
    asio::io_context io;
    asio::io_context other;
    asio::any_io_executor const executor = io.get_executor();
    // The same executor with concrete and with erased type: two types for the compiler.
    auto const concrete = other.get_executor();
    asio::any_io_executor const erased = concrete;
    std::vector<std::unique_ptr<operation>> operations;
    std::vector<int> order;
    {
        rcverbs::detail::outgoing_parcels outgoing;
        for (int i = 0; i < 20; ++i) {
            operation& op = *operations.emplace_back(std::make_unique<operation>());
            auto const note = [&order, i](rcverbs::error_code, std::size_t) { order.push_back(i); };
            if (i % 2 == 0) {
                op.emplace<bytes_result>(asio::bind_executor(concrete, note), executor);
            } else {
                op.emplace<bytes_result>(asio::bind_executor(erased, note), executor);
            }
            op.complete(outgoing);
        }
        outgoing.send();
    }
    CHECK(other.poll_one() == 1);
    CHECK(order == std::vector<int>{0, 2, 4, 6, 8, 10, 12, 14, 16, 18});
    CHECK(other.poll() == 1);
    CHECK(order.size() == 20);
    CHECK(order.back() == 19);
}

TEST_CASE("handlers that do not fit into one parcel take several, in order", "[operation]") {
    asio::io_context io;
    asio::io_context other;
    asio::any_io_executor const executor = io.get_executor();
    std::vector<std::unique_ptr<operation>> operations;
    std::vector<int> order;
    std::array<char, 1000> const ballast{};
    std::array<char, 5000> const more{};
    rcverbs::detail::outgoing_parcels outgoing;
    for (int i = 0; i < 12; ++i) {
        operation& op = *operations.emplace_back(std::make_unique<operation>());
        if (i == 5) {
            op.emplace<bytes_result>(
                asio::bind_executor(
                    other, [&order, i, more](auto, std::size_t) { order.push_back(i + more[0]); }
                ),
                executor
            );
        } else {
            op.emplace<bytes_result>(
                asio::bind_executor(
                    other,
                    [&order, i, ballast](auto, std::size_t) { order.push_back(i + ballast[0]); }
                ),
                executor
            );
        }
        op.complete(outgoing);
    }
    outgoing.send();
    CHECK(other.poll() > 1);
    CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
}

TEST_CASE(
    "a handler that throws on another executor does not prevent the calls of the others",
    "[operation]"
) {
    asio::io_context io;
    asio::io_context other;
    asio::any_io_executor const executor = io.get_executor();
    std::vector<std::unique_ptr<operation>> operations;
    int called = 0;
    rcverbs::detail::outgoing_parcels outgoing;
    for (int i = 0; i < 3; ++i) {
        operation& op = *operations.emplace_back(std::make_unique<operation>());
        op.emplace<bytes_result>(
            asio::bind_executor(
                other,
                [&called, i](auto, std::size_t) {
                    ++called;
                    if (i == 1) throw 1;
                }
            ),
            executor
        );
        op.complete(outgoing);
    }
    outgoing.send();
    CHECK_THROWS_AS(other.poll(), int);
    CHECK(called == 3);
    CHECK(other.poll() == 0);
}

TEST_CASE("handlers on another executor run in order, although some throw", "[operation]") {
    asio::io_context io;
    asio::io_context other;
    asio::any_io_executor const executor = io.get_executor();
    std::vector<std::unique_ptr<operation>> operations;
    std::vector<int> order;
    // Two rounds, the second of which is under way when the first throws.
    for (int round = 0; round < 2; ++round) {
        rcverbs::detail::outgoing_parcels outgoing;
        for (int i = 0; i < 4; ++i) {
            operation& op = *operations.emplace_back(std::make_unique<operation>());
            auto handler = [&order, n = 4 * round + i](auto, std::size_t) {
                order.push_back(n);
                if (n % 2 == 0) throw n;
            };
            op.emplace<bytes_result>(asio::bind_executor(other, std::move(handler)), executor);
            op.complete(outgoing);
        }
        outgoing.send();
    }
    std::vector<int> thrown;
    for (int i = 0; i < 4; ++i) {
        try {
            other.poll();
        } catch (int n) {
            thrown.push_back(n);
        }
    }
    CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
    std::ranges::sort(thrown);
    CHECK(thrown == std::vector<int>{0, 2, 4, 6});
    CHECK(other.poll() == 0);
}

TEST_CASE("a parcel that is not delivered destroys its handlers uncalled", "[operation]") {
    auto const token = std::make_shared<int>(1);
    asio::io_context io;
    {
        asio::io_context other;
        operation op;
        op.emplace<bytes_result>(
            asio::bind_executor(other, [token](auto, std::size_t) { FAIL("called"); }),
            io.get_executor()
        );
        complete(op);
        CHECK(token.use_count() == 2);
    }
    CHECK(token.use_count() == 1);
}
