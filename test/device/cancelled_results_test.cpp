// Operations that take something: a message, a request, a record, a connection, memory. What one has been given that is cancelled, or whose
// handler is destroyed, before the handler runs, is for the next one.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>

#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/experimental/ring.hpp>
#include <rcverbs/slot_pool.hpp>
#include <rcverbs/experimental/request_server.hpp>

#include "device/region_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

constexpr int no_number = -1;

// One kind of operation. What it takes has numbers: 1, 2 …
class taking {
public:
    using done = std::function<void(error_code, int)>;

    explicit taking(asio::io_context& io) : io_{io}, door_{io, {device_address(), 0}} {}
    virtual ~taking() = default;

    virtual asio::awaitable<void> meet() = 0;
    // The peer provides the next one.
    virtual asio::awaitable<void> provide(int number) = 0;
    // Starts an operation.
    virtual void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) = 0;
    virtual asio::awaitable<void> part() = 0;
    // How many there may be that are not taken.
    virtual int most() const { return 4; }

protected:
    template <class Function>
    static auto handler(asio::any_io_executor const& on, asio::cancellation_slot slot, Function f) {
        return asio::bind_cancellation_slot(slot, asio::bind_executor(on, std::move(f)));
    }
    template <class Left, class Right>
    asio::awaitable<void> finish(Left& left, Right& right) {
        co_await (
            left.async_finish(asio::use_awaitable) && right.async_finish(asio::use_awaitable)
        );
    }

    asio::io_context& io_;
    acceptor door_;
};

class taking_messages final : public taking {
public:
    using taking::taking;

    asio::awaitable<void> meet() override {
        client_ = message_channel{io_};
        auto const answer = [&]() -> asio::awaitable<void> {
            server_ = message_channel{io_, co_await door_.async_get_request(asio::use_awaitable)};
            co_await server_.async_accept(asio::use_awaitable);
        };
        co_await (answer() && client_.async_connect(door_.local_endpoint(), asio::use_awaitable));
    }
    asio::awaitable<void> provide(int number) override {
        co_await client_.async_send(
            std::span<std::byte const>{}, static_cast<std::uint64_t>(number), asio::use_awaitable
        );
    }
    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        server_.async_receive(handler(on, slot, [then](error_code ec, message m) {
            then(ec, m.is_valid() ? static_cast<int>(m.tag()) : no_number);
        }));
    }
    asio::awaitable<void> part() override { co_await finish(client_, server_); }

private:
    message_channel client_;
    message_channel server_;
};

class taking_requests final : public taking {
public:
    using taking::taking;

    asio::awaitable<void> meet() override {
        client_ = request_channel{io_};
        auto const answer = [&]() -> asio::awaitable<void> {
            server_ = request_channel{io_, co_await door_.async_get_request(asio::use_awaitable)};
            co_await server_.async_accept(asio::use_awaitable);
        };
        co_await (answer() && client_.async_connect(door_.local_endpoint(), asio::use_awaitable));
    }
    asio::awaitable<void> provide(int number) override {
        client_.async_request(
            static_cast<std::uint32_t>(number),
            std::span<std::byte const>{},
            [this](error_code ec, reply const&) { answered_ += ec ? 0 : 1; }
        );
        co_return;
    }
    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        server_.async_next(handler(on, slot, [this, then](error_code ec, request r) {
            then(ec, r.is_valid() ? static_cast<int>(r.operation()) : no_number);
            if (!r.is_valid()) return;
            ++taken_;
            auto const kept = std::make_shared<request>(std::move(r));
            kept->async_answer(0, std::span<std::byte const>{}, [kept](error_code) {});
        }));
    }
    asio::awaitable<void> part() override {
        co_await finish(client_, server_);
        CHECK(answered_ == taken_);
    }

private:
    request_channel client_;
    request_channel server_;
    std::atomic<int> taken_{0};
    int answered_ = 0;
};

class taking_requests_of_clients final : public taking {
public:
    using taking::taking;

    asio::awaitable<void> meet() override {
        server_ = request_server{io_, {device_address(), 0}};
        client_ = request_channel{io_};
        co_await client_.async_connect(server_.local_endpoint(), asio::use_awaitable);
    }
    asio::awaitable<void> provide(int number) override {
        client_.async_request(
            static_cast<std::uint32_t>(number),
            std::span<std::byte const>{},
            [](error_code, reply const&) {}
        );
        co_return;
    }
    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        server_.async_next(handler(on, slot, [then](error_code ec, request r) {
            then(ec, r.is_valid() ? static_cast<int>(r.operation()) : no_number);
        }));
    }
    asio::awaitable<void> part() override { co_await finish(client_, server_); }

private:
    request_server server_;
    request_channel client_;
};

class taking_records final : public taking {
public:
    using taking::taking;

    asio::awaitable<void> meet() override {
        client_ = ring_writer{io_};
        auto const answer = [&]() -> asio::awaitable<void> {
            server_.emplace(io_, co_await door_.async_get_request(asio::use_awaitable));
            co_await server_->async_accept(asio::use_awaitable);
        };
        co_await (answer() && client_.async_connect(door_.local_endpoint(), asio::use_awaitable));
    }
    asio::awaitable<void> provide(int number) override {
        co_await client_.async_write(std::as_bytes(std::span{&number, 1}), asio::use_awaitable);
    }
    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        server_->async_read(handler(on, slot, [then](error_code ec, ring_record r) {
            int number = no_number;
            if (r.is_valid()) std::memcpy(&number, r.bytes().data(), sizeof(number));
            then(ec, number);
        }));
    }
    asio::awaitable<void> part() override { co_await client_.async_finish(asio::use_awaitable); }

private:
    ring_writer client_;
    std::optional<ring_reader> server_;
};

class taking_of_regions : public taking {
public:
    explicit taking_of_regions(asio::io_context& io) : taking{io}, ends_{io} {}

    asio::awaitable<void> meet() override { co_await meet_regions(io_, ends_); }
    asio::awaitable<void> part() override { co_await part_regions(ends_); }

protected:
    region_ends ends_;
};

class taking_notices final : public taking_of_regions {
public:
    using taking_of_regions::taking_of_regions;

    asio::awaitable<void> provide(int number) override {
        co_await ends_.client.next_layer().async_notify(
            static_cast<std::uint32_t>(number), std::span<std::byte const>{}, asio::use_awaitable
        );
    }
    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        ends_.server.async_next(handler(on, slot, [then](error_code ec, request r) {
            then(ec, r.is_valid() ? static_cast<int>(r.operation()) : no_number);
        }));
    }
};

class taking_changes final : public taking_of_regions {
public:
    using taking_of_regions::taking_of_regions;

    asio::awaitable<void> provide(int number) override {
        ends_.offers.offer(std::to_string(number), std::span<std::byte const>{bytes_});
        co_return;
    }
    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        ends_.client.async_next_change(handler(on, slot, [then](error_code ec, region_change c) {
            then(ec, c.name.empty() ? no_number : std::stoi(c.name));
        }));
    }

private:
    std::vector<std::byte> bytes_ = std::vector<std::byte>(4096);
};

class taking_clients : public taking {
public:
    using taking::taking;

    asio::awaitable<void> meet() override { co_return; }
    asio::awaitable<void> provide(int number) override {
        co_spawn(io_, visit(clients_.emplace_back(io_), number), asio::detached);
        co_return;
    }
    asio::awaitable<void> part() override {
        co_await until(io_, [this] {
            return connected_ + rejected_ == int(clients_.size()) &&
                   server_.size() == clients_.size();
        });
        CHECK(rejected_ == 0);
        door_.close();
    }

protected:
    static int number_in(std::span<std::byte const> private_data) {
        int number = 0;
        std::memcpy(&number, private_data.data(), sizeof(number));
        return number;
    }
    void keep(connection c) { server_.push_back(std::move(c)); }

private:
    asio::awaitable<void> visit(connection& c, int number) {
        auto [ec] = co_await c.async_resolve(door_.local_endpoint(), awaiting);
        if (!ec) {
            auto const data = std::as_bytes(std::span{&number, 1});
            auto [failed] = co_await c.async_establish(data, awaiting);
            ec = failed;
        }
        ++(ec ? rejected_ : connected_);
    }

    std::list<connection> clients_;
    std::list<connection> server_;
    int connected_ = 0;
    int rejected_ = 0;
};

class taking_connection_requests final : public taking_clients {
public:
    using taking_clients::taking_clients;

    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        door_
            .async_get_request(handler(on, slot, [this, then](error_code ec, connection_request r) {
                then(ec, r.is_valid() ? number_in(r.private_data()) : no_number);
                if (!r.is_valid()) return;
                auto const asked = std::make_shared<connection_request>(std::move(r));
                asio::post(io_, [this, asked] {
                    auto const c = std::make_shared<connection>(io_, std::move(*asked));
                    c->async_accept({}, [this, c](error_code) { keep(std::move(*c)); });
                });
            }));
    }
};

class taking_connections final : public taking_clients {
public:
    using taking_clients::taking_clients;

    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        door_.async_accept(handler(on, slot, [this, then](error_code ec, connection c) {
            then(ec, c.is_valid() ? number_in(c.private_data()) : no_number);
            if (!c.is_valid()) return;
            auto const accepted = std::make_shared<connection>(std::move(c));
            asio::post(io_, [this, accepted] { keep(std::move(*accepted)); });
        }));
    }
};

// One block, which is free or not.
class taking_memory final : public taking {
public:
    explicit taking_memory(asio::io_context& io)
        : taking{io},
          pool_{
              open_domain(io, {device_address(), 0}), {.bytes_max = bytes, .chunk_bytes = bytes}} {
        block_ = pool_.allocate(bytes, 64);
    }
    ~taking_memory() override { pool_.deallocate(block_, bytes, 64); }

    asio::awaitable<void> meet() override { co_return; }
    asio::awaitable<void> provide(int number) override {
        co_await until(io_, [this] { return block_ != nullptr; });
        number_ = number;
        pool_.deallocate(block_.exchange(nullptr), bytes, 64);
    }
    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        pool_.async_allocate(bytes, 64, handler(on, slot, [this, then](error_code ec, void* block) {
                                 int const number = block != nullptr ? number_.load() : no_number;
                                 if (block != nullptr) block_ = block;
                                 then(ec, number);
                             }));
    }
    asio::awaitable<void> part() override {
        CHECK(pool_.statistics().used_bytes == bytes);
        co_return;
    }
    int most() const override { return 1; }

private:
    static constexpr std::size_t bytes = std::size_t{64} << 10;

    memory_pool pool_;
    std::atomic<void*> block_{nullptr};
    std::atomic<int> number_{0};
};

class taking_leased final : public taking {
public:
    using taking::taking;

    asio::awaitable<void> meet() override {
        both_ = co_await connect(io_);
        slots_.emplace(
            io_, both_.server.domain(), slot_pool_options{.slots = 64, .slot_bytes = 64}
        );
        from_ = registered_buffer{both_.client.domain(), 64, access_flags::local_write};
    }
    asio::awaitable<void> provide(int number) override {
        std::memcpy(from_.bytes().data(), &number, sizeof(number));
        co_await both_.client.async_send(from_.slice(0, sizeof(number)), asio::use_awaitable);
    }
    void start(asio::any_io_executor on, asio::cancellation_slot slot, done then) override {
        both_.server.async_receive(
            slots_->acquire(),
            handler(
                on,
                slot,
                [then](error_code ec, leased_receive_result got) {
                    int number = no_number;
                    if (!ec) std::memcpy(&number, got.bytes().data(), sizeof(number));
                    then(ec, number);
                }
            )
        );
    }
    asio::awaitable<void> part() override { co_await disconnect(both_); }

private:
    test::pair both_;
    std::optional<slot_pool> slots_;
    registered_buffer from_;
};

struct kind_of_taking {
    char const* name;
    std::unique_ptr<taking> (*make)(asio::io_context& io);
};

template <class Taking>
std::unique_ptr<taking> made(asio::io_context& io) {
    return std::make_unique<Taking>(io);
}

std::vector<kind_of_taking> const kinds{
    {"messages", made<taking_messages>},
    {"requests", made<taking_requests>},
    {"requests of a server", made<taking_requests_of_clients>},
    {"records of a ring", made<taking_records>},
    {"requests of a region channel", made<taking_notices>},
    {"changes of offers", made<taking_changes>},
    {"connection requests", made<taking_connection_requests>},
    {"connections", made<taking_connections>},
    {"memory of a pool", made<taking_memory>},
    {"leased receives", made<taking_leased>}};

// The result of an operation.
struct taken {
    std::optional<error_code> code;
    int number = no_number;

    taking::done handler() {
        return [this](error_code ec, int what) {
            code = ec;
            number = what;
        };
    }
};

// Takes the next one; fails the test if there is none within a minute.
asio::awaitable<int> next(asio::io_context& io, taking& from) {
    auto const got = std::make_shared<taken>();
    from.start(io.get_executor(), {}, [got](error_code ec, int what) {
        got->code = ec;
        got->number = what;
    });
    asio::steady_timer limit{io, 60s};
    while (!got->code && limit.expiry() > std::chrono::steady_clock::now()) co_await pause(io, 1ms);
    REQUIRE(got->code);
    CHECK_FALSE(*got->code);
    co_return got->number;
}

// The handlers of an io_context that this test runs by hand, and how many were given to it.
struct hands {
    asio::io_context io;
    std::atomic<int> given{0};

    struct executor {
        hands* to;

        asio::execution_context& query(asio::execution::context_t) const noexcept { return to->io; }
        static constexpr auto query(asio::execution::blocking_t) noexcept {
            return asio::execution::blocking.never;
        }
        template <class Function>
        void execute(Function&& f) const {
            asio::post(to->io, std::forward<Function>(f));
            ++to->given;
        }
        bool operator==(executor const&) const = default;
    };
    executor get_executor() { return {this}; }
};

// Fails the test if fewer than `count` results are on their way within a minute.
asio::awaitable<void> arrival(asio::io_context& io, hands const& at, int count) {
    asio::steady_timer limit{io, 60s};
    while (at.given < count && limit.expiry() > std::chrono::steady_clock::now())
        co_await pause(io, 1ms);
    REQUIRE(at.given >= count);
    // Accepting a connection takes several steps, which may use the executor, too.
    co_await pause(io, 200ms);
}

// An awaitable operation, on the executor of the coroutine.
template <class Token>
auto take(taking& from, Token&& token) {
    return asio::async_initiate<Token, void(error_code, int)>(
        [&from](auto handler) {
            auto const on = asio::get_associated_executor(handler);
            auto const slot = asio::get_associated_cancellation_slot(handler);
            auto const kept = std::make_shared<decltype(handler)>(std::move(handler));
            from.start(on, slot, [kept](error_code ec, int what) { std::move (*kept)(ec, what); });
        },
        token
    );
}

}  // namespace

TEST_CASE("a result that a cancelled operation has not taken is for the next one", "[device]") {
    auto const which = GENERATE(range(std::size_t{0}, kinds.size()));
    INFO(kinds[which].name);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const all = kinds[which].make(io);
        co_await all->meet();
        // Handlers run on `hands`, when this test says so.
        hands on_hands;
        int const count = std::min(2, all->most());
        std::array<asio::cancellation_signal, 2> signals;
        std::array<taken, 2> results;
        for (int i = 0; i < count; ++i) {
            auto const at = static_cast<std::size_t>(i);
            all->start(on_hands.get_executor(), signals[at].slot(), results[at].handler());
        }
        for (int i = 0; i < count; ++i) co_await all->provide(i + 1);
        co_await arrival(io, on_hands, count);
        // The later one comes back first.
        for (int i = count; i-- > 0;)
            signals[static_cast<std::size_t>(i)].emit(asio::cancellation_type::total);
        on_hands.io.poll();
        on_hands.io.restart();
        for (int i = 0; i < count; ++i) {
            REQUIRE(results[static_cast<std::size_t>(i)].code);
            CHECK(*results[static_cast<std::size_t>(i)].code == asio::error::operation_aborted);
            CHECK(results[static_cast<std::size_t>(i)].number == no_number);
        }
        for (int i = 0; i < count; ++i) {
            int const number = co_await next(io, *all);
            CHECK(number == i + 1);
        }

        // A cancellation that comes when the handler has run has no effect.
        int const before = on_hands.given;
        all->start(on_hands.get_executor(), signals[0].slot(), results[0].handler());
        co_await all->provide(3);
        co_await arrival(io, on_hands, before + 1);
        on_hands.io.poll();
        signals[0].emit(asio::cancellation_type::total);
        CHECK_FALSE(*results[0].code);
        CHECK(results[0].number == 3);
        co_await all->part();
    });
}

TEST_CASE("a result whose handler is destroyed before it runs is for the next one", "[device]") {
    auto const which = GENERATE(range(std::size_t{0}, kinds.size()));
    INFO(kinds[which].name);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const all = kinds[which].make(io);
        co_await all->meet();
        taken none;
        {
            hands on_hands;
            all->start(on_hands.get_executor(), {}, none.handler());
            co_await all->provide(1);
            co_await arrival(io, on_hands, 1);
        }
        CHECK_FALSE(none.code);
        int const number = co_await next(io, *all);
        CHECK(number == 1);
        co_await all->part();
    });
}

TEST_CASE("waits of a limited time lose nothing, on one thread and on two", "[device]") {
    auto const which = GENERATE(range(std::size_t{0}, kinds.size()));
    bool const is_elsewhere = GENERATE(false, true);
    bool const is_timer_first = GENERATE(false, true);
    // One that is being accepted when its wait is cancelled is closed, as async_accept() says.
    std::string const name = kinds[which].name;
    if (name == "connections") return;
    // docs/internals/testing.md, "Not explained yet".
    if (name == "memory of a pool" && is_elsewhere) return;
    INFO(
        kinds[which].name << (is_elsewhere ? ", on a thread of its own" : "")
                          << (is_timer_first ? ", the timer first" : "")
    );
    constexpr int count = 12;
    asio::thread_pool pool{1};
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const all = kinds[which].make(io);
        co_await all->meet();
        std::atomic<int> taken_count{0};
        std::atomic<int> wrong{0};
        std::atomic<bool> has_ended{false};
        asio::any_io_executor reader_at = io.get_executor();
        if (is_elsewhere) reader_at = asio::make_strand(pool);
        auto const read = [&]() -> asio::awaitable<void> {
            asio::steady_timer timer{co_await asio::this_coro::executor};
            for (unsigned waits = 0; taken_count < count && !has_ended; ++waits) {
                // Some are too short for what a wait takes, some are not.
                timer.expires_after(std::chrono::microseconds{20U << (waits % 10)});
                std::optional<int> got;
                if (is_timer_first) {
                    auto first = co_await (timer.async_wait(awaiting) || take(*all, awaiting));
                    if (auto const* r = std::get_if<1>(&first); r != nullptr && !std::get<0>(*r))
                        got = std::get<1>(*r);
                } else {
                    auto first = co_await (take(*all, awaiting) || timer.async_wait(awaiting));
                    if (auto const* r = std::get_if<0>(&first); r != nullptr && !std::get<0>(*r))
                        got = std::get<1>(*r);
                }
                if (got && *got != ++taken_count) ++wrong;
            }
        };
        auto reader = asio::co_spawn(reader_at, read(), asio::use_future);
        for (int i = 1; i <= count; ++i) {
            // No more than may wait.
            asio::steady_timer limit{io, 60s};
            while (i - taken_count > all->most()) {
                REQUIRE(limit.expiry() > std::chrono::steady_clock::now());
                co_await pause(io, 1ms);
            }
            co_await all->provide(i);
            asio::steady_timer gap{io, std::chrono::microseconds{(13 * i) % 97}};
            co_await gap.async_wait(asio::use_awaitable);
        }
        asio::steady_timer limit{io, 60s};
        while (taken_count < count && limit.expiry() > std::chrono::steady_clock::now())
            co_await pause(io, 1ms);
        has_ended = true;
        while (reader.wait_for(0s) != std::future_status::ready) co_await pause(io, 1ms);
        reader.get();
        CHECK(taken_count == count);
        CHECK(wrong == 0);
        co_await all->part();
    });
    pool.join();
}
