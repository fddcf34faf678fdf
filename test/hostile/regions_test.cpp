// Named regions, allocated memory and rings against a peer of plain C calls, which encodes by
// docs/reference what it likes.
#include <boost/asio/use_future.hpp>

#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/ring.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "device/pool_fixture.hpp"
#include "device/region_fixture.hpp"
#include "hostile/other_thread.hpp"
#include "hostile/peer.hpp"

using namespace rcverbs;
using namespace test;
using hostile::outcome;
using hostile::running_context;

namespace {

constexpr std::uint32_t find_operation = 0xffffff00;
constexpr std::uint32_t withdraw_operation = 0xffffff02;
constexpr std::uint32_t allocate_operation = 0xffffff06;
constexpr std::uint32_t free_operation = 0xffffff07;
constexpr std::uint32_t share_operation = 0xffffff08;
constexpr std::uint32_t resume_operation = 0xffffff09;

std::uint64_t number_in_bytes(hostile::bytes const& from, std::size_t at, std::size_t size) {
    REQUIRE(from.size() >= at + size);
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < size; ++i)
        n = n << 8 | std::to_integer<std::uint64_t>(from[at + i]);
    return n;
}

hostile::bytes number_body(std::uint64_t number) {
    hostile::bytes b;
    hostile::put(b, number, 8);
    return b;
}

hostile::bytes find_body(std::string_view name) {
    hostile::bytes b;
    hostile::put(b, 1, 2);
    hostile::put(b, 0, 2);
    auto const text = hostile::text(name);
    b.insert(b.end(), text.begin(), text.end());
    return b;
}

hostile::bytes allocate_body(std::uint64_t bytes, std::uint16_t flags = 0) {
    hostile::bytes b;
    hostile::put(b, 1, 2);
    hostile::put(b, flags, 2);
    hostile::put(b, 0, 4);
    hostile::put(b, bytes, 8);
    hostile::put(b, 8, 8);
    return b;
}

struct granted {
    std::uint64_t number = 0;
    std::uint64_t address = 0;
    std::uint32_t key = 0;
};

/// What a FOUND of one range and one piece says.
granted found_in(hostile::bytes const& body, std::size_t at = 0) {
    return {
        number_in_bytes(body, at, 8),
        number_in_bytes(body, at + 32, 8),
        static_cast<std::uint32_t>(number_in_bytes(body, at + 40, 4))};
}

struct answer_of_owner {
    std::uint32_t status = 0;
    hostile::bytes body;
};

/// A request channel in plain C calls.
class plain_channel : public hostile::peer {
public:
    void connect(std::uint16_t port) {
        approach(device_address(), port);
        hostile::bytes hello = hostile::text("RCVC");
        hostile::put(hello, 2, 2);  // version
        hostile::put(hello, 0, 2);
        hostile::put(hello, 3, 4);  // mode
        hostile::put(hello, 4096, 4);
        hostile::put(hello, 8, 2);
        hostile::put(hello, 0, 2);
        hostile::put(hello, 16, 2);  // requests
        hostile::put(hello, 0, 2);
        ask(hello);
        await_event(RDMA_CM_EVENT_ESTABLISHED);
    }

    std::uint16_t start(std::uint32_t operation, hostile::bytes const& body) {
        std::uint16_t const number = next_++ % 16;
        put_message(1, number, operation, body);
        return number;
    }
    answer_of_owner request(std::uint32_t operation, hostile::bytes const& body) {
        std::uint16_t const number = start(operation, body);
        for (;;) {
            auto const m = take_message();
            if (m.kind == 3 && m.number == number) return {m.code, m.body};
            REQUIRE(m.kind != 0);
            others_.push_back(m);
        }
    }
    /// Waits for a WITHDRAW, and says that the region is not used any more.
    void confirm_withdrawal() {
        for (;;) {
            message m;
            if (others_.empty()) {
                m = take_message();
            } else {
                m = others_.front();
                others_.pop_front();
            }
            REQUIRE(m.kind != 0);
            if (m.kind != 1 || m.code != withdraw_operation) continue;
            return put_message(3, m.number, 0, {});
        }
    }

private:
    struct message {
        std::uint8_t kind = 0;  // 0: none has come
        std::uint16_t number = 0;
        std::uint32_t code = 0;
        hostile::bytes body;
    };

    void put_message(
        std::uint8_t kind, std::uint16_t number, std::uint32_t code, hostile::bytes const& body
    ) {
        hostile::bytes b;
        hostile::put(b, 1, 1);
        hostile::put(b, credits_taken_, 1);
        hostile::put(b, given_back_, 2);
        hostile::put(b, body.size(), 4);
        hostile::put(b, kind, 1);
        hostile::put(b, 0, 1);
        hostile::put(b, number, 2);
        hostile::put(b, code, 4);
        b.insert(b.end(), body.begin(), body.end());
        REQUIRE(deliver(b));
    }

    message take_message() {
        for (;;) {
            hostile::bytes const b = await_message();
            if (b.size() < 16) return {};
            auto const type = number_in_bytes(b, 0, 1);
            if (type == 4) {
                ++credits_taken_;
                continue;
            }
            ++given_back_;
            if (type != 1) continue;
            return {
                static_cast<std::uint8_t>(number_in_bytes(b, 8, 1)),
                static_cast<std::uint16_t>(number_in_bytes(b, 10, 2)),
                static_cast<std::uint32_t>(number_in_bytes(b, 12, 4)),
                {b.begin() + 16, b.end()}};
        }
    }

    std::uint16_t next_ = 0;
    std::uint8_t credits_taken_ = 0;
    std::uint16_t given_back_ = 0;
    std::deque<message> others_;
};

/// A server of regions on a thread of its own, with one channel for each client.
struct plain_region_ends {
    explicit plain_region_ends(region_offers_options const& options = {})
        : door{context.io, {device_address(), 0}},
          offers{context.io, options} {}
    ~plain_region_ends() {
        door.close();
        for (auto const& s : served) s->close();
        context.stop();
    }
    plain_region_ends(plain_region_ends const&) = delete;
    plain_region_ends& operator=(plain_region_ends const&) = delete;

    /// A client that is connected, and the server's channel of it.
    std::shared_ptr<region_channel> meet(plain_channel& client) {
        auto request = door.async_get_request(asio::use_future);
        std::jthread connecting{[&] { client.connect(door.local_endpoint().port()); }};
        auto const made = std::make_shared<region_channel>(
            without_retries(context.io.get_executor(), request.get()),
            region_channel_options{.offers = offers}
        );
        made->async_accept(asio::use_future).get();
        served.push_back(made);
        return made;
    }
    error_code withdraw(std::string const& name) {
        outcome<> withdrawn;
        offers.async_withdraw(name, withdrawn.handler());
        return withdrawn.code();
    }

    running_context context;
    acceptor door;
    region_offers offers;
    std::vector<std::shared_ptr<region_channel>> served;
};

}  // namespace

TEST_CASE(
    "plain C: a key is dead when its region is withdrawn, for the offender alone", "[hostile]"
) {
    auto bytes = pattern(4096, 1);
    auto more = pattern(4096, 2);
    plain_region_ends e;
    e.offers.offer("table", std::span{bytes}, all_rights);
    e.offers.offer("other", std::span{more}, access_flags::remote_read);
    plain_channel offender;
    plain_channel honest;
    auto const of_offender = e.meet(offender);
    auto const of_honest = e.meet(honest);
    auto const found = offender.request(find_operation, find_body("table"));
    auto const other = honest.request(find_operation, find_body("other"));
    REQUIRE(found.status == 0);
    REQUIRE(other.status == 0);
    granted const table = found_in(found.body);
    CHECK(offender.read(table.address, table.key) == IBV_WC_SUCCESS);
    outcome<> withdrawn;
    e.offers.async_withdraw("table", withdrawn.handler());
    offender.confirm_withdrawal();
    CHECK_FALSE(withdrawn.code());
    CHECK(of_offender->is_open());
    // The offender goes on as if it had not answered.
    CHECK(offender.write(table.address, table.key) == IBV_WC_REM_ACCESS_ERR);
    CHECK(hostile::comes_true([&] { return !of_offender->is_open(); }));
    CHECK(std::ranges::equal(bytes, pattern(4096, 1)));
    CHECK(of_honest->is_open());
    granted const left = found_in(other.body);
    CHECK(honest.read(left.address, left.key) == IBV_WC_SUCCESS);
    // A key for reading is none for writing.
    CHECK(honest.write(left.address, left.key) == IBV_WC_REM_ACCESS_ERR);
    CHECK(std::ranges::equal(more, pattern(4096, 2)));
}

TEST_CASE("plain C: a peer that is silent keeps no memory of its owner's", "[hostile]") {
    auto bytes = pattern(4096, 1);
    plain_region_ends e{{.withdraw_timeout = 50ms}};
    e.offers.offer("table", std::span{bytes}, all_rights);
    plain_channel peer;
    auto const served = e.meet(peer);
    auto const found = peer.request(find_operation, find_body("table"));
    REQUIRE(found.status == 0);
    CHECK_FALSE(e.withdraw("table"));
    CHECK_FALSE(served->is_open());
    CHECK(served->last_failure().code == errc::timed_out);
    granted const table = found_in(found.body);
    CHECK(peer.write(table.address, table.key) != IBV_WC_SUCCESS);
    CHECK(std::ranges::equal(bytes, pattern(4096, 1)));
}

TEST_CASE("plain C: twice, foreign, forged and stale handles free nothing", "[hostile]") {
    plain_region_ends e;
    pages memory{std::size_t{64} * 1024};
    remote_pool pool{e.offers, memory.bytes(), {.peer_bytes_max = 32 * 1024, .keep_time = 60s}};
    plain_channel thief;
    plain_channel owner;
    e.meet(thief);
    auto const of_owner = e.meet(owner);
    auto const allocate = [](plain_channel& c) {
        auto const a = c.request(allocate_operation, allocate_body(4096, 1));
        REQUIRE(a.status == 0);
        return found_in(a.body, 24);
    };
    granted const theirs = allocate(owner);
    REQUIRE(owner.add(theirs.address, theirs.key, 7) == IBV_WC_SUCCESS);
    granted const own = allocate(thief);
    auto const status = [&](std::uint32_t operation, hostile::bytes const& body) {
        return thief.request(operation, body).status;
    };
    CHECK(status(free_operation, number_body(own.number)) == 0);
    CHECK(status(free_operation, number_body(own.number)) == 1);  // twice
    CHECK(status(free_operation, number_body(theirs.number)) == 1);  // foreign
    CHECK(status(free_operation, number_body(UINT64_MAX)) == 1);  // forged
    hostile::bytes share = number_body(own.number);  // stale
    auto const name = hostile::text("name");
    share.insert(share.end(), name.begin(), name.end());
    CHECK(status(share_operation, share) == 1);
    hostile::bytes resume;
    hostile::put(resume, 1, 2);
    resume.resize(8 + 16);
    CHECK(status(resume_operation, resume) == 1);  // a token of zeros
    CHECK(pool.statistics().allocations == 1);
    CHECK(owner.add(theirs.address, theirs.key, 1) == IBV_WC_SUCCESS);

    // The next owner of the block finds zeros, and the old key writes none of it.
    granted const next = allocate(owner);
    CHECK(thief.write(own.address, own.key) == IBV_WC_REM_ACCESS_ERR);
    CHECK(hostile::comes_true([&] { return !e.served[0]->is_open(); }));
    CHECK(of_owner->is_open());
    CHECK(owner.read(next.address, next.key) == IBV_WC_SUCCESS);
    CHECK(pool.statistics().allocations == 2);
    // Who leaves without a word leaves its memory: what was to be kept waits for its token.
    owner.vanish();
    CHECK(hostile::comes_true([&] { return !of_owner->is_open(); }));
    CHECK(hostile::comes_true([&] { return pool.statistics().kept_bytes == 8192; }));
    outcome<> closed;
    pool.async_close(closed.handler());
    CHECK_FALSE(closed.code());
    CHECK(pool.statistics().free_bytes == memory.bytes().size());
}

TEST_CASE("plain C: a writer whose record is not what it says loses its ring", "[hostile]") {
    auto const sequence = GENERATE(0U, 1U);
    running_context context;
    acceptor door{context.io, {device_address(), 0}};
    ring_options options;
    options.ring_bytes = 4096;
    options.records = 16;
    hostile::peer writer;
    auto request = door.async_get_request(asio::use_future);
    writer.approach(device_address(), door.local_endpoint().port());
    hostile::bytes hello = hostile::text("RING");
    hostile::put(hello, 1, 2);
    hostile::put(hello, 1, 1);  // writer
    hello.resize(32);
    writer.ask(hello);
    ring_reader reader{context.io, request.get(), options};
    auto accepted = reader.async_accept(asio::use_future);
    auto const answer = writer.await_event(RDMA_CM_EVENT_ESTABLISHED).private_data;
    accepted.get();
    hostile::bytes record;
    hostile::put(record, 8, 4);
    hostile::put(record, sequence, 4);
    hostile::put(record, 0x0102030405060708, 8);
    auto const written = writer.write_bytes_with_immediate(
        number_in_bytes(answer, 16, 8),
        static_cast<std::uint32_t>(number_in_bytes(answer, 24, 4)),
        record,
        2
    );
    CHECK(written == IBV_WC_SUCCESS);
    outcome<ring_record> read;
    reader.async_read(read.handler());
    auto const [ec, got] = read.get();
    if (sequence == 0) {
        CHECK_FALSE(ec);
        CHECK(got.bytes().size() == 8);
    } else {
        CHECK(ec == channel_errc::malformed_message);
    }
    reader.close();
    door.close();
    context.stop();
}
