// The handshake of the kit for protocols: hellos of both sides, rejections with and without a reason, and
// what a side does that is closed or called twice meanwhile.
#include <rcverbs/experimental/protocol.hpp>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <optional>
#include <tuple>

#include "device/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

// A hello is one byte, the version; a rejection has a second one.
class greeter final : public protocol::handshake {
public:
    greeter(connection over, int version) : handshake{std::move(over)}, version_{version} {}

    void release(error_code refused) {
        enter([this, refused] { go_on(refused); });
    }
    using actor::enter;

    bool waits = false;
    bool has_waited = false;
    error_code established_with;
    int prepared = 0;
    int established = 0;

private:
    error_code prepare() override {
        ++prepared;
        return {};
    }
    std::vector<std::byte> hello(error_code refused) const override {
        std::vector<std::byte> mine{std::byte(version_)};
        if (refused) mine.push_back(std::byte{0xff});
        return mine;
    }
    error_code judge(std::span<std::byte const> theirs) override {
        if (theirs.empty()) return channel_errc::foreign_peer;
        return theirs[0] == std::byte(version_) ? error_code{}
                                                : error_code{channel_errc::version_mismatch};
    }
    error_code reason(std::span<std::byte const> theirs) const override {
        // The connection manager pads private data.
        if (theirs.size() < 2 || theirs[1] != std::byte{0xff}) return {};
        return theirs[0] == std::byte(version_) ? channel_errc::peer_busy
                                                : channel_errc::version_mismatch;
    }
    bool holds_back() override { return has_waited = waits; }
    error_code on_established() override {
        ++established;
        return established_with;
    }
    void on_end(failure const&) override {}

    int const version_;
};

template <class Token>
auto async_connect(std::shared_ptr<greeter> const& on, endpoint const& peer, Token&& token) {
    return protocol::initiate<error_code>(
        on,
        [peer](greeter& g, auto who) { g.connect(peer, std::move(who)); },
        std::forward<Token>(token)
    );
}

template <class Token>
auto async_accept(std::shared_ptr<greeter> const& on, Token&& token) {
    return protocol::initiate<error_code>(
        on, [](greeter& g, auto who) { g.accept(std::move(who)); }, std::forward<Token>(token)
    );
}

struct greeters {
    asio::io_context& io;
    acceptor door{io, {device_address(), 0}};
    std::shared_ptr<greeter> client;
    std::shared_ptr<greeter> server;

    greeters(asio::io_context& context, int ours)
        : io{context},
          client{protocol::make<greeter>(connection{io}, ours)} {}

    asio::awaitable<void> get_request(int version) {
        connection_request asked = co_await door.async_get_request(asio::use_awaitable);
        server = protocol::make<greeter>(connection{io, std::move(asked)}, version);
    }
    // The results of both sides.
    asio::awaitable<std::pair<error_code, error_code>> meet(int version) {
        auto const serve = [&]() -> asio::awaitable<error_code> {
            co_await get_request(version);
            auto const [ec] = co_await async_accept(server, awaiting);
            co_return ec;
        };
        auto const ask = [&]() -> asio::awaitable<error_code> {
            auto const [ec] = co_await async_connect(client, door.local_endpoint(), awaiting);
            co_return ec;
        };
        auto const [theirs, ours] = co_await (serve() && ask());
        co_return std::pair{ours, theirs};
    }
    void close() {
        client->close();
        if (server != nullptr) server->close();
    }
};

}  // namespace

TEST_CASE("a handshake of equal versions opens both sides", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        greeters g{io, 3};
        auto const [ours, theirs] = co_await g.meet(3);
        CHECK_FALSE(ours);
        CHECK_FALSE(theirs);
        for (auto const& each : {g.client, g.server}) {
            CHECK(each->prepared == 1);
            CHECK(each->established == 1);
        }
        auto const [again] = co_await async_connect(g.client, g.door.local_endpoint(), awaiting);
        CHECK(again == errc::already_connected);
        auto const [twice] = co_await async_accept(g.server, awaiting);
        CHECK(twice == errc::already_connected);
        g.close();
    });
}

TEST_CASE("a handshake of different versions is rejected, and says so on both sides", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        greeters g{io, 3};
        auto const [ours, theirs] = co_await g.meet(4);
        CHECK(ours == channel_errc::version_mismatch);
        CHECK(theirs == channel_errc::version_mismatch);
        CHECK(g.client->established == 0);
        CHECK(g.server->prepared == 0);
        CHECK(g.client->last_failure().code == channel_errc::version_mismatch);
        CHECK(g.client->last_failure().where == step::handshake);
        CHECK(g.server->last_failure().reason == close_reason::refused);
        g.close();
    });
}

TEST_CASE("a side that does not agree in the end closes the connection", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        greeters g{io, 3};
        g.client->established_with = errc::out_of_range;
        auto const [ours, theirs] = co_await g.meet(3);
        CHECK(ours == errc::out_of_range);
        CHECK_FALSE(theirs);
        CHECK(g.client->last_failure().code == errc::out_of_range);
        g.close();
    });
}

TEST_CASE("accepting that is held back goes on, or rejects the peer", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (bool const is_welcome : {true, false}) {
            greeters g{io, 3};
            auto const serve = [&]() -> asio::awaitable<error_code> {
                co_await g.get_request(3);
                g.server->waits = true;
                auto const [ec] = co_await async_accept(g.server, awaiting);
                co_return ec;
            };
            auto const ask = [&]() -> asio::awaitable<error_code> {
                auto const [ec] =
                    co_await async_connect(g.client, g.door.local_endpoint(), awaiting);
                co_return ec;
            };
            auto const release = [&]() -> asio::awaitable<void> {
                while (g.server == nullptr || !g.server->has_waited)
                    co_await asio::post(io, asio::use_awaitable);
                CHECK(g.server->prepared == 0);
                g.server->release(is_welcome ? error_code{} : error_code{errc::timed_out});
                g.server->release(errc::out_of_range);  // without effect
            };
            auto const [theirs, ours] = co_await (serve() && ask() && release());
            CHECK(theirs == (is_welcome ? error_code{} : error_code{errc::timed_out}));
            CHECK(ours == (is_welcome ? error_code{} : error_code{channel_errc::peer_busy}));
            g.close();
        }
    });
}

TEST_CASE(
    "a handshake with a peer that has no hello reports what the connection does", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        greeters g{io, 3};
        auto const refuse = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await g.door.async_get_request(asio::use_awaitable);
            asked.reject();
        };
        auto const ask = [&]() -> asio::awaitable<error_code> {
            auto const [ec] = co_await async_connect(g.client, g.door.local_endpoint(), awaiting);
            co_return ec;
        };
        error_code const ours = co_await (refuse() && ask());
        CHECK(ours == cm_errc::rejected_by_peer);
        g.close();
        // Without a request there is nobody to accept.
        auto const nobody = protocol::make<greeter>(connection{io}, 3);
        auto const [ec] = co_await async_accept(nobody, awaiting);
        CHECK(ec == errc::not_connected);
        nobody->close();
    });
}

TEST_CASE("a handshake that is cancelled closes", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        greeters g{io, 3};
        asio::cancellation_signal signal;
        std::optional<error_code> ended;
        async_connect(
            g.client,
            g.door.local_endpoint(),
            asio::bind_cancellation_slot(signal.slot(), [&](error_code ec) { ended = ec; })
        );
        signal.emit(asio::cancellation_type::terminal);
        while (!ended) co_await asio::post(io, asio::use_awaitable);
        CHECK(*ended == asio::error::operation_aborted);
        g.close();
    });
}

namespace {

// Each side says "end" when it finishes, unless it is silent.
class farewell final : public protocol::handshake {
public:
    farewell(connection over, protocol::plain_hello said)
        : handshake{std::move(over)},
          said_{said} {}

    void finish(std::chrono::milliseconds timeout, protocol::waiter<error_code> who) {
        auto const on_late = [this] {
            fail(step::finish, errc::timed_out, close_reason::timed_out);
        };
        if (end.begin(std::move(who), timeout, on_late) && !is_silent) say();
    }
    void say() {
        std::byte const word{'e'};
        bool const is_sent = slots.send(std::span{&word, 1}, [this](error_code ec) {
            if (!ec) end.said();
        });
        CHECK(is_sent);
    }
    using actor::enter;

    bool is_silent = false;
    protocol::slots slots{*this};
    protocol::orderly_end end{*this};

private:
    error_code prepare() override {
        error_code const ec = slots.open(1, 1, 8);
        if (!ec)
            slots.receive(0, [this](error_code failed, receive_result const&, auto bytes) {
                if (!failed && bytes.size() == 1) end.heard();
            });
        return ec;
    }
    std::vector<std::byte> hello(error_code) const override { return said_.encoded(); }
    error_code judge(std::span<std::byte const> theirs) override { return said_.judge(theirs); }
    error_code reason(std::span<std::byte const> theirs) const override {
        return said_.reason(theirs);
    }
    void on_end(failure const& why) override { end.complete(why.code); }

    protocol::plain_hello const said_;
};

struct farewells {
    std::shared_ptr<farewell> client;
    std::shared_ptr<farewell> server;
    error_code connected;
    error_code accepted;
};

asio::awaitable<farewells> meet_farewells(
    asio::io_context& io, protocol::plain_hello ours, protocol::plain_hello theirs
) {
    acceptor door{io, {device_address(), 0}};
    farewells f;
    f.client = protocol::make<farewell>(connection{io}, ours);
    auto const serve = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await door.async_get_request(asio::use_awaitable);
        f.server = protocol::make<farewell>(connection{io, std::move(asked)}, theirs);
        std::tie(f.accepted) = co_await protocol::initiate<error_code>(
            f.server, [](farewell& s, auto who) { s.accept(std::move(who)); }, awaiting
        );
    };
    auto const ask = [&, at = door.local_endpoint()]() -> asio::awaitable<void> {
        std::tie(f.connected) = co_await protocol::initiate<error_code>(
            f.client, [at](farewell& c, auto who) { c.connect(at, std::move(who)); }, awaiting
        );
    };
    co_await (serve() && ask());
    co_return f;
}

asio::awaitable<error_code> finish(
    std::shared_ptr<farewell> side, std::chrono::milliseconds timeout = 10s
) {
    auto const [ec] = co_await protocol::initiate<error_code>(
        side, [timeout](farewell& f, auto who) { f.finish(timeout, std::move(who)); }, awaiting
    );
    co_return ec;
}

}  // namespace

TEST_CASE("a plain hello names its protocol and its version", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        farewells same = co_await meet_farewells(io, {"farewell", 1}, {"farewell", 1});
        CHECK_FALSE(same.connected);
        CHECK_FALSE(same.accepted);
        same.client->close();
        farewells newer = co_await meet_farewells(io, {"farewell", 2}, {"farewell", 1});
        CHECK(newer.connected == channel_errc::version_mismatch);
        CHECK(newer.accepted == channel_errc::version_mismatch);
        farewells other = co_await meet_farewells(io, {"welcome!", 1}, {"farewell", 1});
        // Nothing is known of a rejection by another protocol.
        CHECK(other.connected == cm_errc::rejected_by_peer);
        CHECK(other.accepted == channel_errc::foreign_peer);
        farewells shorter = co_await meet_farewells(io, {"fare", 'w'}, {"farewell", 1});
        CHECK(shorter.accepted == channel_errc::foreign_peer);
    });
}

TEST_CASE("an orderly end is the same for all who wait for it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        farewells f = co_await meet_farewells(io, {"farewell", 1}, {"farewell", 1});
        std::optional<error_code> second;
        co_spawn(io, finish(f.client), [&](std::exception_ptr, error_code ec) { second = ec; });
        auto const [ours, theirs] = co_await (finish(f.client) && finish(f.server));
        CHECK_FALSE(ours);
        CHECK_FALSE(theirs);
        while (!second) co_await asio::post(io, asio::use_awaitable);
        CHECK_FALSE(*second);
        CHECK(f.client->last_failure().reason == close_reason::completed);
        CHECK(f.server->last_failure().reason == close_reason::completed);
        // Also for one that comes later.
        error_code const late = co_await finish(f.client);
        CHECK_FALSE(late);
    });
}

TEST_CASE("an orderly end that the peer does not join fails at its deadline", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        farewells f = co_await meet_farewells(io, {"farewell", 1}, {"farewell", 1});
        error_code const late = co_await finish(f.client, 20ms);
        CHECK(late == errc::timed_out);
        CHECK(f.client->last_failure().where == step::finish);
        f.server->close();

        // The connection may end before.
        farewells g = co_await meet_farewells(io, {"farewell", 1}, {"farewell", 1});
        g.server->is_silent = true;
        asio::post(io, [s = g.server] { s->close(); });
        error_code const left = co_await finish(g.client);
        CHECK(left == errc::peer_disconnected);
    });
}

TEST_CASE("a message is refused while all slots are under way", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        farewells f = co_await meet_farewells(io, {"farewell", 1}, {"farewell", 1});
        int sent = 0;
        f.client->enter([&] {
            std::byte const word[8] = {};
            auto const on_sent = [&](error_code ec) {
                CHECK_FALSE(ec);
                ++sent;
            };
            CHECK(f.client->slots.free_sends() == 1);
            CHECK(f.client->slots.send(word, on_sent));
            CHECK_FALSE(f.client->slots.send(word, on_sent));
        });
        while (sent == 0) co_await asio::post(io, asio::use_awaitable);
        CHECK(f.client->slots.free_sends() == 1);
        CHECK(sent == 1);
        f.client->close();
        f.server->close();
    });
}
