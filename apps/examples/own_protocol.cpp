// own_protocol: a protocol of one's own on a connection, made with rcverbs/experimental/protocol.hpp. One side publishes values under
// numbered topics, the other watches topics, and gets the newest value of each. Any thread and any completion token; a peer that breaks the
// protocol, sends without a credit or does not end in time loses its own connection and no other.
//
// A message of 8 bytes takes a credit, and each gives back credits for those that were received since. What cannot be sent yet is kept by
// topic, so a slow peer costs no memory: it misses values, and never the newest.
#include "examples/both_ends.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <rcverbs/experimental/protocol.hpp>

#include <cstring>
#include <map>
#include <set>

using namespace rcverbs;

using topic_values = std::map<std::uint16_t, std::uint32_t>;

// One side. One function at a time runs inside it, so it needs no lock.
class topics final : public protocol::handshake {
public:
    explicit topics(connection over) : handshake{std::move(over)} {}

    void publish(std::uint16_t topic, std::uint32_t value) {
        enter([=, this] {
            values_[topic] = value;
            if (watched_.contains(topic)) send_later({kind::value, 0, topic, value});
        });
    }
    void watch(std::uint16_t topic) {
        enter([=, this] { send_later({kind::watch, 0, topic, 0}); });
    }
    // The newest value of a topic, each once.
    void next(protocol::waiter<error_code, topic_values::value_type> who) {
        if (arrived_.empty()) return static_cast<void>(takers_.add(std::move(who)));
        takers_.hand_over(std::move(who), 0, {}, *arrived_.begin());
        arrived_.erase(arrived_.begin());
    }
    void finish(protocol::waiter<error_code> who) {
        if (end_.begin(std::move(who), std::chrono::seconds{1}, [this] { fail(step::finish, errc::timed_out, close_reason::timed_out); })) pump();
    }

private:
    enum class kind : std::uint8_t { watch, value, credits, end };
    struct frame {
        kind what;
        std::uint8_t given_back;
        std::uint16_t topic;
        std::uint32_t value;
    };
    // Messages of credits and the end take none: at most three are under way.
    static constexpr std::uint8_t window = 8, slots_each_way = window + 3;
    static constexpr protocol::plain_hello own{"topics", 1};

    std::vector<std::byte> hello(error_code) const override { return own.encoded(); }
    error_code judge(std::span<std::byte const> theirs) override { return own.judge(theirs); }
    error_code reason(std::span<std::byte const> theirs) const override { return own.reason(theirs); }
    error_code prepare() override {
        error_code const ec = slots_.open(slots_each_way, slots_each_way, sizeof(frame));
        for (std::size_t i = 0; !ec && i < slots_each_way; ++i) receive(i);
        return ec;
    }
    error_code on_established() override {
        credits_ = window;
        pump();
        return {};
    }

    void receive(std::size_t slot) {
        slots_.receive(slot, [this, slot](error_code ec, receive_result const&, auto bytes) {
            frame f{};
            if (ec) return;  // on_end() follows
            if (bytes.size() == sizeof(f)) std::memcpy(&f, bytes.data(), sizeof(f));
            receive(slot);
            if (bytes.size() != sizeof(f) || !take(f)) fail(step::transfer, channel_errc::malformed_message, close_reason::protocol_error);
            pump();
        });
    }
    // False if it is against the protocol.
    bool take(frame const& f) {
        if (f.what > kind::end || f.given_back > window - credits_ || end_.is_heard() || (f.what <= kind::value && owed_++ == window)) return false;
        credits_ += f.given_back;
        bool const is_new = f.what == kind::watch && watched_.insert(f.topic).second;
        if (is_new && values_.contains(f.topic)) send_later({kind::value, 0, f.topic, values_[f.topic]});
        if (f.what == kind::value && !takers_.hand_over_first(0, {}, {f.topic, f.value})) arrived_[f.topic] = f.value;
        if (f.what == kind::end) end_.heard();
        return true;
    }
    void send_later(frame f) {
        unsent_[{f.what, f.topic}] = f;
        pump();
    }
    void pump() {
        for (; credits_ > 0 && slots_.free_sends() > 2 && !unsent_.empty(); unsent_.erase(unsent_.begin()), --credits_) send(unsent_.begin()->second);
        if (owed_ >= window / 2 && slots_.free_sends() > 1) send({kind::credits, 0, 0, 0});
        bool const is_last = end_.has_begun() && unsent_.empty() && slots_.free_sends() > 0;
        if (is_last && !std::exchange(has_ended_, true)) send({kind::end, 0, 0, 0});
    }
    // REQUIRES: a slot is free. It is free again when the peer's device has the message.
    void send(frame f) {
        f.given_back = std::exchange(owed_, std::uint8_t{0});
        slots_.send(std::as_bytes(std::span{&f, 1}), [this, f](error_code ec) {
            if (f.what == kind::end && !ec) end_.said();
            pump();
        });
    }
    void on_end(failure const& why) override {
        takers_.fail_all(why.code);
        end_.complete(why.code);
    }

    protocol::slots slots_{*this};
    protocol::orderly_end end_{*this};
    std::uint8_t credits_ = 0, owed_ = 0;
    bool has_ended_ = false;
    topic_values values_, arrived_;  // published here, and there
    std::set<std::uint16_t> watched_;
    std::map<std::pair<kind, std::uint16_t>, frame> unsent_;
    // A value that a cancelled wait has not taken is there for the next, unless there is a newer one.
    protocol::wait_list<error_code, topic_values::value_type> takers_{
        *this, [this](std::uint64_t, error_code, topic_values::value_type v) { arrived_.insert(v); }};
};

// --- both sides, in one program ------------------------------------------------------------------------------------------------------------

using namespace example;
using namespace asio::experimental::awaitable_operators;

template <class Function>
auto run_on(std::shared_ptr<topics> const& side, Function start) {
    return protocol::initiate<error_code>(side, std::move(start), use_awaitable);
}

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    acceptor door{io, {address, 0}};
    auto const watcher = protocol::make<topics>(connection{io});
    auto const serve = [&]() -> asio::awaitable<std::shared_ptr<topics>> {
        auto const made = protocol::make<topics>(connection{io, co_await door.async_get_request(use_awaitable)});
        co_await run_on(made, [](topics& t, auto who) { t.accept(std::move(who)); });
        co_return made;
    };
    auto const connect = [at = door.local_endpoint()](topics& t, auto who) { t.connect(at, std::move(who)); };
    auto const publisher = co_await (serve() && run_on(watcher, connect));
    watcher->watch(7);
    for (std::uint32_t value = 1; value <= 1000; ++value) publisher->publish(7, value);
    int updates = 0;
    auto const next = [](topics& t, auto who) { t.next(std::move(who)); };
    for (std::uint32_t value = 0; value != 1000; ++updates)
        value = (co_await protocol::initiate<error_code, topic_values::value_type>(watcher, next, use_awaitable)).second;
    auto const finish = [](topics& t, auto who) { t.finish(std::move(who)); };
    co_await (run_on(watcher, finish) && run_on(publisher, finish));
    expect(watcher->last_failure().reason == close_reason::completed, "both sides have ended in order");
    std::cout << "1000 values published, " << updates << " updates, and the newest has arrived\n";
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
