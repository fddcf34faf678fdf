// What all handles of protocols have in common: how they are made, executor types, default tokens; that a
// connector connects each, and that a driver can be put on each.
#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/region_channel.hpp>
#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/request_server.hpp>
#include <rcverbs/experimental/ring.hpp>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

template <class T>
using awaitable_by_default =
    typename asio::as_tuple_t<asio::use_awaitable_t<>>::template as_default_on_t<T>;

// Everything but the operations.
template <class T>
concept protocol_handle =
    std::default_initializable<T> && std::is_nothrow_move_constructible_v<T> &&
    std::is_move_assignable_v<T> && !std::is_copy_constructible_v<T> &&
    std::constructible_from<T, asio::io_context&> && std::constructible_from<T, own_thread_t> &&
    std::constructible_from<T, asio::io_context&, typename T::options_type> &&
    std::constructible_from<T, asio::io_context&, connection_request> &&
    std::constructible_from<
        T,
        asio::io_context&,
        connection_request,
        typename T::options_type,
        error_code&> &&
    std::constructible_from<T, connection, typename T::options_type> &&
    std::constructible_from<T, typename T::next_layer_type> && requires(T & t, T const& c) {
    { c.get_executor() } -> std::same_as<typename T::executor_type>;
    { c.is_open() } -> std::same_as<bool>;
    { c.last_failure() } -> std::same_as<failure>;
    { t.next_layer() } -> std::same_as<typename T::next_layer_type&>;
    { T::needed(typename T::options_type{}) } -> std::same_as<connection_options>;
    t.close();
    t.async_connect(endpoint{});
    t.async_accept();
};

// Its default token is another one, and both types convert.
template <class T>
concept with_default_token =
    std::constructible_from<T, awaitable_by_default<T> &&>&& connectable<awaitable_by_default<
        T>>&& requires(awaitable_by_default<T>& t, awaitable_by_default<basic_connector<T>>& c) {
    { t.async_connect(endpoint{}) } -> std::same_as<asio::awaitable<std::tuple<error_code>>>;
    { t.async_accept() } -> std::same_as<asio::awaitable<std::tuple<error_code>>>;
    {
        c.async_connect()
        } -> std::same_as<asio::awaitable<std::tuple<error_code, awaitable_by_default<T>>>>;
};

// Of an object that makes its connections itself, at or towards an endpoint.
template <class T>
concept service_handle = std::default_initializable<T> && std::is_nothrow_move_constructible_v<T> &&
                         std::is_nothrow_move_assignable_v<T> && !std::is_copy_constructible_v<T> &&
                         std::constructible_from<T, asio::io_context&, endpoint> &&
                         std::constructible_from<T, own_thread_t, endpoint> &&
                         std::constructible_from<T, poller, endpoint> && requires(T const& c) {
    { c.get_executor() } -> std::same_as<typename T::executor_type>;
    { c.last_failure() } -> std::same_as<failure>;
};

// It runs on an executor with another default token; `start` starts an operation that is given none.
template <class T, class Result, class Start>
constexpr bool completes_by_default(Start) {
    return std::default_initializable<awaitable_by_default<T>> &&
           std::constructible_from<awaitable_by_default<T>, asio::io_context&, endpoint> &&
           std::same_as<std::invoke_result_t<Start, awaitable_by_default<T>&>, Result>;
}

template <class... Results>
using awaited = asio::awaitable<std::tuple<error_code, Results...>>;

// A handle, and its peer's.
template <class T, class Peer = T>
struct kind {
    using type = T;
    using peer_type = Peer;
};

// A protocol on any other one: it hears how that ends.
class listener final : public protocol::driver {
public:
    template <class Below>
    explicit listener(Below& below) : driver{below} {}

    void wait(protocol::waiter<error_code> who) { ends_.add(std::move(who)); }

private:
    void on_end(failure const& why) override { ends_.fail_all(why.code); }

    protocol::wait_list<error_code> ends_{*this};
};

}  // namespace

static_assert(protocol_handle<session> && with_default_token<session>);
static_assert(protocol_handle<message_channel> && with_default_token<message_channel>);
static_assert(protocol_handle<request_channel> && with_default_token<request_channel>);
static_assert(protocol_handle<region_channel> && with_default_token<region_channel>);
static_assert(protocol_handle<ring_writer> && with_default_token<ring_writer>);
static_assert(protocol_handle<ring_reader> && with_default_token<ring_reader>);
static_assert(
    service_handle<request_client> &&
    completes_by_default<request_client, awaited<reply>>([](auto& c) {
        return c.async_request(ask{1});
    })
);
static_assert(
    service_handle<request_server> &&
    completes_by_default<request_server, awaited<request>>([](auto& s) { return s.async_next(); })
);
static_assert(
    service_handle<acceptor> &&
    completes_by_default<acceptor, awaited<connection_request>>([](auto& a) {
        return a.async_get_request();
    })
);
static_assert(
    service_handle<connector> &&
    completes_by_default<connector, awaited<awaitable_by_default<session>>>([](auto& c) {
        return c.async_connect();
    })
);
// Of a channel.
static_assert(std::default_initializable<remote_allocator> && std::copyable<remote_allocator>);
static_assert(std::same_as<
              decltype(std::declval<awaitable_by_default<remote_allocator> const&>()
                           .async_allocate(1)),
              awaited<remote_allocation>>);

TEMPLATE_TEST_CASE(
    "a connector connects every kind of handle, and a protocol on top hears its end",
    "[device]",
    (kind<session>),
    (kind<message_channel>),
    (kind<request_channel>),
    (kind<region_channel>),
    (kind<ring_writer, ring_reader>),
    (kind<ring_reader, ring_writer>)
) {
    using handle = typename TestType::type;
    using peer_handle = typename TestType::peer_type;
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        peer_handle peer;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            peer = peer_handle{io, std::move(asked)};
            co_await peer.async_accept(asio::use_awaitable);
        };
        basic_connector<handle> to_peer{io, door.local_endpoint()};
        handle client;
        auto const connect = [&]() -> asio::awaitable<void> {
            client = co_await to_peer.async_connect(asio::use_awaitable);
        };
        co_await (answer() && connect());
        CHECK(client.is_open());
        CHECK(peer.is_open());
        auto const above = protocol::make<listener>(client);
        std::optional<error_code> ended;
        protocol::initiate<error_code>(
            above,
            [](listener& l, auto who) { l.wait(std::move(who)); },
            [&](error_code ec) { ended = ec; }
        );
        co_await pause(io, 1ms);
        CHECK_FALSE(ended);
        // Assignment closes what was there.
        client = handle{};
        while (!ended) co_await pause(io, 1ms);
        CHECK(*ended == asio::error::operation_aborted);
        while (peer.is_open()) co_await pause(io, 1ms);
        CHECK(peer.last_failure().reason != close_reason::open);
    });
}
