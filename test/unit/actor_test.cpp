// An actor that has no connection: what runs inside, when handlers are called, and the end of its context.
#include <rcverbs/experimental/protocol.hpp>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"

using namespace rcverbs;
namespace asio = boost::asio;

namespace {

// Numbers that are put and taken, in turn; each taker gets one.
class store final : public protocol::actor {
public:
    explicit store(asio::any_io_executor where) : actor{std::move(where)} {}

    using actor::enter;
    using actor::in_order;

    void put(int n) {
        enter([this, n] {
            if (!takers_.complete_first({}, n)) numbers_.push_back(n);
        });
    }
    void take(protocol::waiter<error_code, int> who) {
        if (numbers_.empty()) {
            takers_.add(std::move(who));
            return;
        }
        deliver(std::move(who), {}, numbers_.front());
        numbers_.erase(numbers_.begin());
    }
    bool has_given_up() const noexcept { return has_given_up_; }
    bool is_abandoned() const noexcept { return is_abandoned_; }
    std::size_t waiting() const noexcept { return takers_.size(); }

private:
    void give_up() noexcept override { has_given_up_ = true; }
    void on_abandoned() noexcept override { is_abandoned_ = true; }

    std::vector<int> numbers_;
    protocol::wait_list<error_code, int> takers_{*this};
    std::atomic<bool> has_given_up_{false};
    bool is_abandoned_ = false;
};

template <class Token>
auto async_take(std::shared_ptr<store> const& from, Token&& token) {
    return protocol::initiate<error_code, int>(
        from, [](store& s, auto who) { s.take(std::move(who)); }, std::forward<Token>(token)
    );
}

}  // namespace

TEST_CASE("an actor's functions run at once, and its handlers never inside", "[no_device][actor]") {
    asio::io_context io;
    auto const s = protocol::make<store>(io.get_executor());
    std::string calls;
    async_take(s, [&](error_code ec, int n) {
        calls += ec ? "error" : std::to_string(n);
        // Nobody is inside, so that runs now.
        bool has_run = false;
        s->enter([&] { has_run = true; });
        calls += has_run ? "+" : "-";
    });
    CHECK(s->waiting() == 1);
    s->put(1);
    CHECK(s->waiting() == 0);
    CHECK(calls.empty());
    io.run();
    CHECK(calls == "1+");
}

TEST_CASE(
    "what is started from inside of an actor runs when that has returned", "[no_device][actor]"
) {
    asio::io_context io;
    auto const s = protocol::make<store>(io.get_executor());
    std::string order;
    s->enter([&] {
        s->enter([&] { order += 'b'; });
        s->in_order([&] { order += 'c'; });
        order += 'a';
    });
    CHECK(order == "ab");
    io.run();
    CHECK(order == "abc");
}

TEST_CASE("a handler that throws takes no other handler along", "[no_device][actor]") {
    asio::io_context io;
    auto const s = protocol::make<store>(io.get_executor());
    std::string calls;
    async_take(s, [](error_code const&, int) { throw std::runtime_error{"mine"}; });
    async_take(s, [&](error_code const&, int n) { calls += std::to_string(n); });
    s->put(1);
    s->put(2);
    CHECK_THROWS_AS(io.run(), std::runtime_error);
    CHECK(calls.empty());
    io.restart();
    io.run();
    CHECK(calls == "2");
}

TEST_CASE("what throws in a function that nobody waits for ends the actor", "[no_device][actor]") {
    asio::io_context io;
    auto const s = protocol::make<store>(io.get_executor());
    CHECK_THROWS_AS(s->enter([] { throw std::runtime_error{"now"}; }), std::runtime_error);
    CHECK_FALSE(s->has_given_up());
    s->enter([&] { s->enter([] { throw std::runtime_error{"later"}; }); });
    CHECK(s->has_given_up());
}

TEST_CASE("an operation of an actor that is cancelled takes nothing", "[no_device][actor]") {
    asio::io_context io;
    auto const s = protocol::make<store>(io.get_executor());
    std::string calls;
    asio::cancellation_signal signal;
    auto const note = [&](error_code ec, int n) { calls += ec ? "x" : std::to_string(n); };
    async_take(s, asio::bind_cancellation_slot(signal.slot(), note));
    async_take(s, note);
    signal.emit(asio::cancellation_type::total);
    s->put(7);
    io.run();
    CHECK(calls == "x7");
    // A cancellation that comes before the operation has begun, because another one is inside.
    io.restart();
    calls.clear();
    s->enter([&] {
        async_take(s, asio::bind_cancellation_slot(signal.slot(), note));
        signal.emit(asio::cancellation_type::total);
    });
    s->put(8);
    async_take(s, note);
    io.run();
    CHECK(calls == "x8");
}

TEST_CASE("handlers that wait for an actor go with its context", "[no_device][actor]") {
    auto io = std::make_unique<asio::io_context>();
    auto const s = protocol::make<store>(io->get_executor());
    auto const watched = std::make_shared<int>(0);
    async_take(s, [watched](error_code const&, int) { FAIL("called"); });
    async_take(s, [watched](error_code const&, int) { FAIL("called"); });
    s->put(1);
    CHECK(watched.use_count() == 3);
    io.reset();
    CHECK(watched.use_count() == 1);
    CHECK(s->is_abandoned());
    CHECK_FALSE(s->executor());
    // Nothing starts any more, and nothing crashes.
    async_take(s, [](error_code const&, int) { FAIL("called"); });
    s->enter([] { FAIL("called"); });
}

TEST_CASE("threads put and take, and each number is taken once", "[no_device][actor]") {
    constexpr int each = 5'000;
    constexpr int threads_max = 4;
    asio::io_context io;
    auto const s = protocol::make<store>(io.get_executor());
    // Handlers do not overlap, so that needs no lock.
    std::vector<int> taken(threads_max * each, 0);
    auto work = asio::make_work_guard(io);
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) threads.emplace_back([&] { io.run(); });
    std::vector<std::thread> users;
    for (int t = 0; t < threads_max; ++t) {
        users.emplace_back([&, t] {
            for (int i = 0; i < each; ++i) {
                if (i % 2 == 0) s->put(t * each + i);
                async_take(s, [&](error_code ec, int n) {
                    if (!ec) ++taken[static_cast<std::size_t>(n)];
                });
                if (i % 2 != 0) s->put(t * each + i);
            }
        });
    }
    for (std::thread& t : users) t.join();
    work.reset();
    for (std::thread& t : threads) t.join();
    CHECK(taken == std::vector<int>(threads_max * each, 1));
}
