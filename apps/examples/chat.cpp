// chat: a room whose members talk by requests and hear by notices. The three members wait in different ways: one in a coroutine, one
// in handlers, and one in a thread that blocks.
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_future.hpp>

#include <future>
#include <list>
#include <thread>

#include "examples/both_ends.hpp"

using namespace example;
using rcverbs::request_channel;

namespace {

// Requests of a member, and notices of the room.
constexpr std::uint32_t say = 1;  // body: a line; answer: how many members will hear it
constexpr std::uint32_t hear = 2;  // body: a line

constexpr int members = 3;
constexpr int lines = 5;

std::string text_of(std::span<std::byte const> bytes) { return {reinterpret_cast<char const*>(bytes.data()), bytes.size()}; }

// --- the room ------------------------------------------------------------------------------------

class room {
public:
    explicit room(asio::io_context& io, std::string const& address) : io_{io}, door_{io, {address, 0}} {}

    rcverbs::endpoint endpoint() const { return door_.local_endpoint(); }

    asio::awaitable<void> run() {
        for (int i = 0; i < members; ++i) {
            rcverbs::connection_request asked = co_await door_.async_get_request(use_awaitable);
            request_channel& c = channels_.emplace_back(io_, std::move(asked));
            co_await c.async_accept(use_awaitable);
        }
        // When all are there.
        for (request_channel& c : channels_) asio::co_spawn(io_, listen(c), asio::detached);
    }

private:
    asio::awaitable<void> listen(request_channel& from) {
        for (;;) {
            auto [ec, said] = co_await from.async_next(asio::as_tuple(use_awaitable));
            if (ec) break;
            std::string const line = text_of(said.bytes());
            for (request_channel& c : channels_)
                if (&c != &from) co_await c.async_notify(hear, line, use_awaitable);
            co_await said.async_answer(members - 1, std::span<std::byte const>{}, use_awaitable);
        }
        co_await from.async_finish(use_awaitable);
    }

    asio::io_context& io_;
    rcverbs::acceptor door_;
    std::list<request_channel> channels_;
};

// --- members -------------------------------------------------------------------------------------

constexpr int lines_of_others = (members - 1) * lines;

asio::awaitable<int> hear_others(request_channel& c) {
    int heard = 0;
    while (heard < lines_of_others) {
        rcverbs::request const r = co_await c.async_next(use_awaitable);
        heard += r.operation() == hear;
    }
    co_return heard;
}

asio::awaitable<void> talk(request_channel& c) {
    for (int i = 0; i < lines; ++i) {
        std::string const line = "coroutine: " + std::to_string(i);
        rcverbs::reply const r = co_await c.async_request(say, line, use_awaitable);
        expect(r.status() == members - 1, "the others get the line");
    }
}

asio::awaitable<int> member_with_coroutines(asio::io_context& io, rcverbs::endpoint to) {
    using namespace asio::experimental::awaitable_operators;
    request_channel c{io};
    co_await c.async_connect(to, use_awaitable);
    int const heard = co_await (hear_others(c) && talk(c));
    co_await c.async_finish(use_awaitable);
    co_return heard;
}

class member_with_handlers {
public:
    member_with_handlers(asio::io_context& io, rcverbs::endpoint const& to) : channel_{io} {
        channel_.async_connect(to, [this](rcverbs::error_code ec) {
            if (ec) return;
            speak();
            listen();
        });
    }

    int heard() const { return heard_; }

private:
    void speak() {
        line_ = "handlers: " + std::to_string(spoken_);
        channel_.async_request(say, line_, [this](rcverbs::error_code ec, rcverbs::reply const&) {
            if (ec) return;
            if (++spoken_ < lines) speak();
            else finish_when_done();
        });
    }
    void listen() {
        channel_.async_next([this](rcverbs::error_code ec, rcverbs::request const& r) {
            if (ec) return;
            heard_ += r.operation() == hear;
            if (heard_ < lines_of_others) listen();
            else finish_when_done();
        });
    }
    void finish_when_done() {
        if (spoken_ == lines && heard_ == lines_of_others) channel_.async_finish([](rcverbs::error_code) {});
    }

    request_channel channel_;
    std::string line_;
    int spoken_ = 0;
    int heard_ = 0;
};

int member_that_blocks(rcverbs::endpoint const& to) {
    request_channel c{rcverbs::own_thread};
    c.async_connect(to, asio::use_future).get();
    int heard = 0;
    {
        std::jthread const listener{[&] {
            while (heard < lines_of_others) heard += c.async_next(asio::use_future).get().operation() == hear;
        }};
        for (int i = 0; i < lines; ++i) {
            std::string const line = "thread: " + std::to_string(i);
            c.async_request(say, line, asio::use_future).get();
        }
    }
    c.async_finish(asio::use_future).get();
    return heard;
}

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    using namespace asio::experimental::awaitable_operators;
    room r{io, address};
    member_with_handlers second{io, r.endpoint()};
    auto third = std::async(std::launch::async, [to = r.endpoint()] { return member_that_blocks(to); });
    int const first = co_await (member_with_coroutines(io, r.endpoint()) && r.run());
    asio::steady_timer timer{io};
    while (third.wait_for(std::chrono::seconds{0}) != std::future_status::ready || second.heard() < lines_of_others) {
        timer.expires_after(std::chrono::milliseconds{1});
        co_await timer.async_wait(use_awaitable);
    }
    int const of_third = third.get();
    expect(first == lines_of_others && second.heard() == first && of_third == first, "everybody hears the others");
    std::cout << members << " members heard " << first << " lines each\n";
}

}  // namespace

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
