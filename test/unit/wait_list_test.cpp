// The handlers that wait: their order, their cancellation, and what happens when something throws.
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>

#include <memory>
#include <vector>

#include <rcverbs/detail/wait_list.hpp>
#include "support/catch.hpp"

namespace asio = boost::asio;
using namespace rcverbs;
using namespace rcverbs::detail;

namespace {

using waiter = waiting_handler<error_code, int>;

/// An owner as all of them are: it completes cancelled waits with operation_aborted.
struct owner : std::enable_shared_from_this<owner> {
    explicit owner(asio::io_context& io) : executor{io.get_executor()} {}

    template <class Handler>
    void wait(Handler handler, int more = 0) {
        waits.add(
            waiter{erased_handler<error_code, int>{std::move(handler)}, executor},
            weak_from_this(),
            &owner::cancel,
            more
        );
    }
    void cancel(std::uint64_t serial) {
        cancelled.push_back(serial);
        for (auto& w : waits.take(serial)) w.handler(asio::error::operation_aborted, w.more);
    }

    asio::any_io_executor executor;
    wait_list<waiter, int> waits;
    std::vector<std::uint64_t> cancelled;
};

struct ending {
    error_code code;
    int value = -1;
};

auto into(ending& o) {
    return [&o](error_code ec, int value) { o = {ec, value}; };
}

}  // namespace

TEST_CASE("waits are removed first in, first out, and can be put back", "[hosting]") {
    asio::io_context io;
    auto const o = std::make_shared<owner>(io);
    std::vector<ending> ends(3);
    for (int i = 0; i < 3; ++i) o->wait(into(ends[static_cast<std::size_t>(i)]), i);
    CHECK(o->waits.size() == 3);
    auto first = o->waits.take_first();
    REQUIRE(first.size() == 1);
    CHECK(first.front().more == 0);
    o->waits.put_back(first);
    CHECK(first.empty());
    CHECK(o->waits.front().more == 0);
    int number = 10;
    while (!o->waits.empty()) o->waits.take_first().front().handler({}, number++);
    CHECK(o->waits.take_first().empty());
    io.run();
    for (int i = 0; i < 3; ++i) CHECK(ends[static_cast<std::size_t>(i)].value == 10 + i);
}

TEST_CASE("a cancelled wait is found, whatever has been removed meanwhile", "[hosting]") {
    asio::io_context io;
    auto const o = std::make_shared<owner>(io);
    std::vector<ending> ends(3);
    std::vector<asio::cancellation_signal> signals(3);
    for (std::size_t i = 0; i < 3; ++i)
        o->wait(
            asio::bind_cancellation_slot(signals[i].slot(), into(ends[i])), static_cast<int>(i)
        );
    signals[1].emit(asio::cancellation_type::none);
    CHECK(o->waits.size() == 3);
    signals[1].emit(asio::cancellation_type::total);
    signals[1].emit(asio::cancellation_type::terminal);
    CHECK(o->waits.size() == 2);
    auto first = o->waits.take_first();
    // It has been removed: its signal finds nothing.
    signals[0].emit(asio::cancellation_type::total);
    first.front().handler({}, 7);
    io.poll();  // the third wait is work
    CHECK(ends[0].value == 7);
    CHECK_FALSE(ends[0].code);
    CHECK(ends[1].code == asio::error::operation_aborted);
    CHECK(ends[1].value == 1);
    CHECK(ends[2].value == -1);
    // Nobody is left to find it.
    auto const left = o->waits.take_all();
    CHECK(left.size() == 1);
    CHECK(o->cancelled.size() == 3);
}

TEST_CASE("a signal after the owner is gone has no effect", "[hosting]") {
    asio::io_context io;
    auto o = std::make_shared<owner>(io);
    ending end;
    asio::cancellation_signal signal;
    o->wait(asio::bind_cancellation_slot(signal.slot(), into(end)));
    o.reset();
    signal.emit(asio::cancellation_type::terminal);
    io.run();
    CHECK(end.value == -1);
}

TEST_CASE("a handler of another context is destroyed with that context, uncalled", "[hosting]") {
    asio::io_context io;
    auto const o = std::make_shared<owner>(io);
    ending end;
    auto const witness = std::make_shared<int>();
    {
        asio::io_context other;
        o->wait(asio::bind_executor(other, [&end, witness](error_code ec, int v) {
            end = {ec, v};
        }));
        CHECK(witness.use_count() == 2);
    }
    CHECK(witness.use_count() == 1);
    // Its place is left; it has no handler.
    auto const first = o->waits.take_first();
    REQUIRE(first.size() == 1);
    CHECK_FALSE(first.front().handler);
    CHECK(end.value == -1);
}

TEST_CASE("members of a context are notified once, in the order of their ranks", "[hosting]") {
    using hosting::rank;
    struct witness final : hosting::member, std::enable_shared_from_this<witness> {
        witness(std::vector<int>& to, int n) : order{to}, number{n} {}
        void context_is_going(asio::execution_context const& which) noexcept override {
            order.push_back(number);
            seen = &which;
        }
        std::vector<int>& order;
        int number;
        void const* seen = nullptr;
        hosting::membership one;
        hosting::membership two;
    };
    std::vector<int> order;
    auto const make = [&](int n) { return std::make_shared<witness>(order, n); };
    auto const object = make(1);
    auto const above = make(0);
    auto const left = make(9);
    auto gone = make(8);
    auto const guest = make(2);
    {
        asio::io_context io;
        asio::io_context other;
        object->one.join(io, object, rank::object);
        guest->one.join(io, guest, rank::guest);
        guest->two.join(other, guest, rank::guest);
        above->one.join(io, above, rank::above_connections);
        left->one.join(io, left, rank::object);
        gone->one.join(io, gone, rank::object);
        CHECK(guest->one.is_of(io));
        CHECK_FALSE(guest->one.is_of(other));
        left->one.leave();
        left->one.leave();
        gone.reset();
    }
    // `other` was destroyed first.
    CHECK(order == std::vector{2, 0, 1, 2});
    CHECK_FALSE(guest->one.is_listed());
    // A place may be used again.
    asio::io_context again;
    guest->one.join(again, guest, rank::guest);
    CHECK(guest->one.is_of(again));
}
