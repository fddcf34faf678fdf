// Functions that run on an executor in order: what is dispatched runs at once, but never inside another one.
#include "hosting/sequence.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "support/catch.hpp"

namespace asio = boost::asio;
using rcverbs::hosting::sequence;

namespace sequence_test {

namespace {

struct step final : sequence::task {
    explicit step(std::function<void(bool)> what) : does{std::move(what)} {}
    void run(bool is_wanted) override { std::exchange(does, nullptr)(is_wanted); }
    std::function<void(bool)> does;
};

}  // namespace

TEST_CASE("a function that is dispatched to an idle sequence runs at once") {
    asio::io_context io;
    auto const order = std::make_shared<sequence>(io.get_executor());
    std::string log;
    step first{[&](bool) { log += "first "; }};
    step second{[&](bool) { log += "second "; }};
    asio::post(io, [&] {
        order->dispatch(first);
        log += "dispatched ";
        order->post(second);
        log += "posted ";
    });
    io.run();
    CHECK(log == "first dispatched posted second ");
}

TEST_CASE("a function that is dispatched while the sequence has another one runs behind it") {
    asio::io_context io;
    auto const order = std::make_shared<sequence>(io.get_executor());
    std::string log;
    step inner{[&](bool) { log += "inner "; }};
    step outer{[&](bool) {
        order->dispatch(inner);
        log += "outer ";
    }};
    step waiting{[&](bool) { log += "waiting "; }};
    order->post(waiting);
    asio::post(io, [&] { order->dispatch(outer); });
    io.run();
    CHECK(log == "waiting outer inner ");
}

TEST_CASE("what a function that is dispatched throws reaches the caller, and the sequence goes on"
) {
    asio::io_context io;
    auto const order = std::make_shared<sequence>(io.get_executor());
    std::string log;
    step inner{[&](bool) { log += "inner "; }};
    step failing{[&](bool) {
        order->post(inner);
        throw 1;
    }};
    step late{[&](bool) { log += "late "; }};
    asio::post(io, [&] {
        order->dispatch(failing);
        log += "not ";
    });
    asio::post(io, [&] { order->dispatch(late); });
    CHECK_THROWS_AS(io.run(), int);
    io.run();
    CHECK(log == "inner late ");
}

TEST_CASE("a function that is dispatched may be the last to keep its sequence") {
    asio::io_context io;
    auto order = std::make_shared<sequence>(io.get_executor());
    std::weak_ptr<sequence> const alive = order;
    bool has_run = false;
    step last{[&, kept = order](bool) { has_run = true; }};
    asio::post(io, [&] { std::exchange(order, nullptr)->dispatch(last); });
    io.run();
    CHECK(has_run);
    CHECK(alive.expired());
}

TEST_CASE("what is dispatched to an abandoned sequence is cleaned up") {
    asio::io_context io;
    auto const order = std::make_shared<sequence>(io.get_executor());
    order->abandon();
    bool is_wanted = true;
    step late{[&](bool w) { is_wanted = w; }};
    order->dispatch(late);
    CHECK_FALSE(is_wanted);
}

}  // namespace sequence_test
