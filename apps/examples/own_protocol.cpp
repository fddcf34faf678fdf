// own_protocol: a protocol of one's own on a connection, made with rcverbs/experimental/protocol.hpp. A client asks for the successor of a number;
// the server answers. Any number of clients, up to eight questions of each at a time, any completion token, cancellation and timeouts
// without harm, the end heard while nothing is asked, and a peer that breaks the protocol loses its own connection and no other.
//
// A message has 16 bytes in each direction: the question's number, and the value. Each side posts its receives before the other can send,
// and a client sends no more questions than that: no message meets a missing receive. A server whose answers are not taken ends the
// connection, so that a peer cannot make it keep more than twice as many.
#include "examples/both_ends.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>

#include <rcverbs/experimental/protocol.hpp>

#include <cstring>
#include <optional>

using namespace example;
using namespace asio::experimental::awaitable_operators;
using namespace std::chrono_literals;
using rcverbs::error_code;
namespace protocol = rcverbs::protocol;

struct question {
    std::uint64_t number;
    std::uint64_t value;
};

// The state of one side. One function at a time runs inside it, so it needs no lock.
class successor_core final : public protocol::driver {
public:
    static constexpr std::size_t questions_max = 8;

    successor_core(rcverbs::connection over, bool answers) : driver{std::move(over)}, answers_{answers} {}

    void connect(rcverbs::endpoint const& peer, protocol::waiter<error_code> who) {
        opened_.add(std::move(who));
        lower().async_resolve(peer, ordered([this](error_code ec) {
            if (!ec) ec = prepare();
            if (ec) return open(ec);
            lower().async_establish({}, ordered([this](error_code failed) { open(failed); }));
        }));
    }

    void accept(protocol::waiter<error_code> who) {
        opened_.add(std::move(who));
        if (error_code const ec = prepare()) return open(ec);
        lower().async_accept({}, ordered([this](error_code failed) { open(failed); }));
    }

    void ask(std::uint64_t value, protocol::waiter<error_code, std::uint64_t> who) {
        if (!lower().is_open()) return deliver(std::move(who), rcverbs::errc::not_connected, 0);
        if (asked_ - answered_ == questions_max) return deliver(std::move(who), rcverbs::errc::queue_full, 0);
        ++asked_;
        send({waiting_.add(std::move(who)), value});
    }

private:
    // Memory, and receives for as many messages as the peer may send.
    error_code prepare() {
        try {
            slots_.emplace(lower().get_executor(), lower().domain(), rcverbs::slot_pool_options{64, sizeof(question)});
        } catch (boost::system::system_error const& failed) {
            return failed.code();
        }
        for (std::size_t i = 0; i < questions_max; ++i) receive(slots_->try_acquire());
        return {};
    }

    void receive(rcverbs::memory_lease into) {
        lower().async_receive(std::move(into), held([this](error_code ec, rcverbs::leased_receive_result got) {
            if (!ec) on_message(std::move(got));  // else on_end() follows
        }));
    }

    void on_message(rcverbs::leased_receive_result got) {
        question q{};
        if (got.bytes().size() != sizeof(q)) return violated();
        std::memcpy(&q, got.bytes().data(), sizeof(q));
        receive(std::move(got.memory));
        // The acknowledgement of an answer may be later than the next question.
        if (answers_) return unsent_ == 2 * questions_max ? violated() : send({q.number, q.value + 1});
        if (answered_ == asked_) return violated();
        ++answered_;
        // A question that was cancelled is answered all the same; nobody waits for that.
        waiting_.complete(q.number, {}, q.value);
    }

    // The slot is free again when the peer's device has acknowledged the message.
    void send(question const& q) {
        ++unsent_;
        slots_->async_acquire(ordered([this, q](error_code ec, rcverbs::slot_lease slot) {
            if (ec) return;
            std::memcpy(slot.bytes().data(), &q, sizeof(q));
            lower().async_start(rcverbs::op::send(std::move(slot), sizeof(q)), held([this](auto&&...) { --unsent_; }));
        }));
    }

    void violated() { fail(rcverbs::step::transfer, rcverbs::errc::malformed_message, rcverbs::close_reason::protocol_error); }

    void open(error_code ec) {
        if (ec) close();
        opened_.complete_first(ec);
    }

    // Called once, also if nothing is posted.
    void on_end(rcverbs::failure const& why) override {
        waiting_.fail_all(why.code);
        opened_.fail_all(why.code);
    }

    bool const answers_;
    std::optional<rcverbs::slot_pool> slots_;
    std::uint64_t asked_ = 0;
    std::uint64_t answered_ = 0;
    std::size_t unsent_ = 0;
    protocol::wait_list<error_code> opened_{*this};
    protocol::wait_list<error_code, std::uint64_t> waiting_{*this};
};

// The handle: what a program has.
class successor {
public:
    explicit successor(rcverbs::connection over, bool answers = false)
        : core_{protocol::make<successor_core>(std::move(over), answers)} {}
    successor(successor&&) = default;
    ~successor() {
        if (core_ != nullptr) core_->close();
    }

    template <class Token>
    auto async_connect(rcverbs::endpoint const& peer, Token&& token) {
        return protocol::initiate<error_code>(
            core_, [peer](successor_core& c, auto who) { c.connect(peer, std::move(who)); }, std::forward<Token>(token));
    }
    template <class Token>
    auto async_accept(Token&& token) {
        return protocol::initiate<error_code>(
            core_, [](successor_core& c, auto who) { c.accept(std::move(who)); }, std::forward<Token>(token));
    }
    template <class Token>
    auto async_ask(std::uint64_t value, Token&& token) {
        return protocol::initiate<error_code, std::uint64_t>(
            core_, [value](successor_core& c, auto who) { c.ask(value, std::move(who)); }, std::forward<Token>(token));
    }
    rcverbs::failure last_failure() const { return core_->last_failure(); }

private:
    std::shared_ptr<successor_core> core_;
};

constexpr auto as_values = asio::as_tuple(use_awaitable);

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    rcverbs::acceptor door{io, {address, 0}};
    successor client{rcverbs::connection{io}};
    auto const serve = [&]() -> asio::awaitable<successor> {
        successor server{rcverbs::connection{io, co_await door.async_get_request(use_awaitable)}, true};
        co_await server.async_accept(use_awaitable);
        co_return server;
    };
    std::optional<successor> server;
    auto const accept = [&]() -> asio::awaitable<void> { server.emplace(co_await serve()); };
    co_await (accept() && client.async_connect(door.local_endpoint(), use_awaitable));
    std::uint64_t const next = co_await client.async_ask(41, use_awaitable);
    expect(next == 42, "the server answers");
    std::cout << "after 41 comes " << next << '\n';

    // Nobody waits for the answer any more; the connection goes on.
    asio::steady_timer timer{io, 0ms};
    static_cast<void>(co_await (client.async_ask(1, as_values) || timer.async_wait(as_values)));
    expect(co_await client.async_ask(2, use_awaitable) == 3, "a cancelled question does no harm");

    // The end, too, ends what waits.
    server.reset();
    auto const [ended, none] = co_await client.async_ask(3, as_values);
    expect(ended && none == 0, "the server has left");
    std::cout << "ended: " << ended.message() << '\n';
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
