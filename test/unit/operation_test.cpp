// The place of an operation: handlers of all kinds run once on the right executor, and nothing is allocated for them.
#include <rcverbs/detail/operation.hpp>

#include <boost/asio/append.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

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

TEST_CASE("a handler whose executor is the operation's runs at once inside it", "[operation]") {
    asio::io_context io;
    asio::any_io_executor const executor = io.get_executor();
    operation op;
    int called = 0;
    op.emplace<bytes_result>([&](rcverbs::error_code ec, std::size_t n) { called += !ec && n == 7 ? 1 : 100; }, executor);
    op.result.bytes = 7;
    op.complete(executor);
    CHECK(called == 1);
    CHECK_FALSE(op.is_pending());
}

TEST_CASE("a handler is dispatched to its own executor", "[operation]") {
    asio::io_context io;
    asio::io_context other;
    asio::any_io_executor const executor = io.get_executor();
    operation op;
    bool called = false;
    op.emplace<bytes_result>(asio::bind_executor(other, [&](rcverbs::error_code, std::size_t) { called = true; }), executor);
    op.complete(executor);
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
    op.emplace<bytes_result>(asio::bind_executor(other, [](rcverbs::error_code, std::size_t) {}), executor);
    other.poll();
    CHECK_FALSE(other.stopped());
    op.complete(executor);
    other.restart();
    CHECK(other.run() == 1);
}

TEST_CASE("a handler too large for its place comes from its allocator and is freed before it runs", "[operation]") {
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
    op.complete(executor);
    CHECK(live_in_handler == 0);
    CHECK(ever == 1);
}

TEST_CASE("a dropped handler is destroyed uncalled", "[operation]") {
    asio::io_context io;
    auto const token = std::make_shared<int>(1);
    bool called = false;
    {
        operation op;
        op.emplace<bytes_result>([token, &called](rcverbs::error_code, std::size_t) { called = true; }, io.get_executor());
        CHECK(token.use_count() == 2);
        std::array<char, 300> ballast{};
        operation large;
        large.emplace<bytes_result>([token, ballast, &called](rcverbs::error_code, std::size_t) { called = ballast[0] == 0; }, io.get_executor());
        CHECK(token.use_count() == 3);
    }
    CHECK(token.use_count() == 1);
    CHECK_FALSE(called);
}

TEST_CASE("a handler that cannot be copied will do, and its place is free when it has returned", "[operation]") {
    asio::io_context io;
    asio::any_io_executor const executor = io.get_executor();
    operation op;
    int calls = 0;
    op.emplace<arrival_result>(
        [&, only = std::make_unique<int>(5)](rcverbs::error_code, rcverbs::received r) {
            calls += *only + static_cast<int>(r.immediate.value_or(0));
        },
        executor
    );
    op.result.arrival.immediate = 10;
    op.complete(executor);
    CHECK(calls == 15);
    op.emplace<bytes_result>([&](rcverbs::error_code, std::size_t) { ++calls; }, executor);
    op.complete(executor);
    CHECK(calls == 16);
}

TEST_CASE("a handler that throws is destroyed all the same", "[operation]") {
    asio::io_context io;
    asio::any_io_executor const executor = io.get_executor();
    operation op;
    auto const token = std::make_shared<int>(0);
    op.emplace<bytes_result>([token](rcverbs::error_code, std::size_t) { throw 1; }, executor);
    CHECK_THROWS_AS(op.complete(executor), int);
    CHECK(token.use_count() == 1);
    CHECK_FALSE(op.is_pending());
}
