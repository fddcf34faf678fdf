// conformance.hpp — one contract for every asynchronous operation: where its handler runs, what it
// allocates, and how it completes when it is cancelled, exceeds the limit, or loses its connection.
// conformance_cases.hpp has the tests.
//
// An operation is described by how it is started, by what makes it complete without error
// (`prepare`, called before), and by the cancellation types that it supports. It is started on a
// stage, a type of the including file:
//
//     static awaitable<shared_ptr<stage>> set(world&, io_context&)
//     void close()               ends everything, so that everything completes
//     void destroy()             destroys what operations are started on
//     awaitable<void> ended()    when everything has ended
#pragma once

#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_future.hpp>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "fabric/fixture.hpp"
#include "support/counting_allocator.hpp"

namespace test {

/// From here on, all packets and connection manager events are lost.
inline void silence(world& w) {
    namespace fabric = rcverbs::fabric;
    w.on_packet([](fabric::packet_info const&) {
        return fabric::packet_fate{fabric::packet_fate::kind::drop, 0ns};
    });
    w.on_cm_event([](fabric::cm_event_info const&) {
        return fabric::cm_event_fate{fabric::cm_event_fate::kind::lose, 0ns};
    });
}

/// The cancellation types that a waiting operation honours.
enum class honours { total, terminal, none };

#define RCVERBS_OPERATION(name_, honours_, error_, limit_, start_, prepare_)                \
    struct name_ {                                                                          \
        static constexpr honours cancels = honours::honours_;                               \
        static error_code over_the_limit() { return error_; }                               \
        static constexpr int limit = limit_;                                                \
        static constexpr bool waits_for_end = std::string_view{#name_} == "wait_operation"; \
        template <class Token>                                                              \
        static auto start([[maybe_unused]] stage& s, Token&& token) {                       \
            return s.start_;                                                                \
        }                                                                                   \
        static void prepare([[maybe_unused]] stage& s) { prepare_; }                        \
    }

inline constexpr auto ignore = [](auto&&...) {};

/// An executor that counts the functions submitted to it.
struct counting_executor {
    asio::any_io_executor inner;
    int* calls;

    template <class F>
    void execute(F&& f) const {
        ++*calls;
        inner.execute(std::forward<F>(f));
    }
    asio::execution_context& query(asio::execution::context_t) const {
        return asio::query(inner, asio::execution::context);
    }
    static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) {
        return asio::execution::blocking.never;
    }
    bool operator==(counting_executor const&) const noexcept = default;
};

/// A completion token that asks the initiation for its executor, as cancel_after() does.
struct asking_for_executor {
    asio::any_io_executor* answer;
    std::function<void(error_code)> then;
};

// All tests share two handler types: each further type would compile every operation again.

/// A move-only handler without associations.
class plain_handler {
public:
    explicit plain_handler(std::function<void(error_code)> act)
        : act_{std::make_unique<std::function<void(error_code)>>(std::move(act))} {}

    void operator()(error_code ec, auto&&...) { (*act_)(ec); }

private:
    std::unique_ptr<std::function<void(error_code)>> act_;
};

/// A handler's associated executor, allocator and cancellation slot.
struct associations {
    counting_executor executor;
    counting_allocator<char> allocator;
    asio::cancellation_slot slot{};
};

/// A handler with all associations, too large for any preallocated storage.
class bound_handler : public plain_handler {
public:
    using executor_type = counting_executor;
    using allocator_type = counting_allocator<char>;
    using cancellation_slot_type = asio::cancellation_slot;

    bound_handler(associations const& with, std::function<void(error_code)> act)
        : plain_handler{std::move(act)},
          with_{with} {}

    executor_type get_executor() const noexcept { return with_.executor; }
    allocator_type get_allocator() const noexcept { return with_.allocator; }
    cancellation_slot_type get_cancellation_slot() const noexcept { return with_.slot; }

private:
    associations with_;
    [[maybe_unused]] std::array<char, 400> large_{};
};

/// Makes handlers, and counts the use of their associated executor and allocator.
struct handler_probe {
    int executor_calls = 0;
    int blocks = 0;
    int blocks_ever = 0;

    bound_handler handler(
        asio::io_context& io, std::function<void(error_code)> act, asio::cancellation_slot slot = {}
    ) {
        return {
            {counting_executor{io.get_executor(), &executor_calls},
             counting_allocator<char>{&blocks, &blocks_ever},
             slot},
            std::move(act)};
    }
};

}  // namespace test

namespace boost::asio {

template <class... Signature>
class async_result<test::asking_for_executor, Signature...> {
public:
    template <class Initiation, class... Arguments>
    static void initiate(Initiation&& start, test::asking_for_executor ask, Arguments&&... with) {
        static_assert(!std::same_as<typename std::decay_t<Initiation>::executor_type, void>);
        *ask.answer = start.get_executor();
        std::forward<Initiation>(start
        )([then = std::move(ask.then)](error_code ec, auto&&...) { then(ec); },
          std::forward<Arguments>(with)...);
    }
    using error_code = boost::system::error_code;
};

}  // namespace boost::asio
