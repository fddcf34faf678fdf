// Every operation with every completion token and adaptor of Boost.Asio: compiled, never run. What
// Boost 1.81 has not is compiled where Boost has it.
#include <boost/asio/append.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/consign.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/prepend.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/version.hpp>
#if BOOST_VERSION >= 108200
#include <boost/asio/bind_immediate_executor.hpp>
#endif
#if BOOST_VERSION >= 108600
#include <boost/asio/cancel_after.hpp>
#include <boost/asio/cancel_at.hpp>
#endif

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <rcverbs/rcverbs.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/window.hpp>

namespace asio = boost::asio;
using namespace rcverbs;

namespace {

asio::io_context io;
asio::cancellation_signal signal;
error_code code;

template <class Start>
void use_tokens(Start const& start) {
    static_cast<void>(start(asio::deferred));
    static_cast<void>(start(asio::use_awaitable));
    static_cast<void>(start(asio::use_future));
    start(asio::detached);
    static_cast<void>(start(asio::as_tuple(asio::use_awaitable)));
    static_cast<void>(start(asio::redirect_error(asio::use_awaitable, code)));
    start(asio::bind_executor(io, asio::detached));
    start(asio::bind_allocator(std::allocator<std::byte>{}, asio::detached));
    start(asio::bind_cancellation_slot(signal.slot(), asio::detached));
    static_cast<void>(start(asio::append(asio::deferred, 1)));
    static_cast<void>(start(asio::prepend(asio::deferred, 1)));
    start(asio::consign(asio::detached, std::make_shared<int>(1)));
    asio::experimental::make_parallel_group(start(asio::deferred), start(asio::deferred))
        .async_wait(asio::experimental::wait_for_all(), asio::detached);
#if BOOST_VERSION >= 108200
    start(asio::bind_immediate_executor(io.get_executor(), asio::detached));
#endif
#if BOOST_VERSION >= 108600
    using namespace std::chrono_literals;
    start(asio::cancel_after(1s, asio::detached));
    static_cast<void>(start(asio::cancel_after(1s, asio::as_tuple(asio::use_awaitable))));
    start(asio::cancel_at(std::chrono::steady_clock::now(), asio::detached));
#endif
}

template <class Object>
using with_default =
    typename asio::as_tuple_t<asio::use_awaitable_t<>>::template as_default_on_t<Object>;

#define RCVERBS_USE(call_) use_tokens([&](auto&& token) { return call_; })
#define RCVERBS_TOKEN std::forward<decltype(token)>(token)

}  // namespace

// Referred to by nobody.
void compile_data_operations(
    connection& c,
    batch& several,
    window& w,
    shared_receive_queue& receives,
    mutable_slice mine,
    remote_region theirs,
    remote_atomic cell
) {
    RCVERBS_USE(c.async_write(mine, theirs, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_write_with_immediate(mine, theirs, 1, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_read(theirs, mine, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_fetch_add(cell, 1, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_compare_swap(cell, 1, 2, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_send(mine, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_send_with_immediate(mine, 1, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_send_with_invalidate(mine, remote_key{}, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_receive(mine, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::write(mine, theirs).fenced(), RCVERBS_TOKEN));
    RCVERBS_USE(c.async_receive(memory_lease{}, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_receive(slot_lease{}, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::write(memory_lease{}, 1, theirs).fenced(), RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::read(theirs, memory_lease{}), RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::send(memory_lease{}, 1), RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::fetch_add(cell, 1, memory_lease{}), RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::compare_swap(cell, 1, 2, memory_lease{}), RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::fetch_add(cell, 1, mine), RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::receive(mine), RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::bind(w, mine, access_flags::remote_read), RCVERBS_TOKEN));
    RCVERBS_USE(c.async_start(op::invalidate(w), RCVERBS_TOKEN));
    RCVERBS_USE(several.async_submit(RCVERBS_TOKEN));
    RCVERBS_USE(w.async_bind(mine, access_flags::remote_read, RCVERBS_TOKEN));
    RCVERBS_USE(w.async_invalidate(RCVERBS_TOKEN));
    RCVERBS_USE(receives.async_receive(mine, RCVERBS_TOKEN));
}

void compile_connecting(
    connection& c, acceptor& door, connector& again, endpoint const& peer, slot_pool& slots
) {
    std::span<std::byte const> const data;
    RCVERBS_USE(c.async_resolve(peer, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_establish(data, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_connect(peer, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_accept(data, RCVERBS_TOKEN));
    RCVERBS_USE(c.async_disconnect(RCVERBS_TOKEN));
    RCVERBS_USE(c.async_wait_disconnected(RCVERBS_TOKEN));
    RCVERBS_USE(door.async_get_request(RCVERBS_TOKEN));
    RCVERBS_USE(door.async_accept(RCVERBS_TOKEN));
    RCVERBS_USE(door.async_wait_idle(RCVERBS_TOKEN));
    RCVERBS_USE(again.async_connect(RCVERBS_TOKEN));
    RCVERBS_USE(slots.async_acquire(RCVERBS_TOKEN));
}

void compile_protocols(
    session& s,
    message_channel& messages,
    request_channel& requests,
    request_client& client,
    request& asked,
    endpoint const& peer,
    mutable_slice mine
) {
    std::span<std::byte const> const data;
    std::vector<named_region> const regions;
    RCVERBS_USE(s.async_connect(peer, RCVERBS_TOKEN));
    RCVERBS_USE(s.async_accept(RCVERBS_TOKEN));
    RCVERBS_USE(s.async_publish(regions, RCVERBS_TOKEN));
    RCVERBS_USE(s.async_wait_regions(RCVERBS_TOKEN));
    RCVERBS_USE(s.async_exchange(regions, RCVERBS_TOKEN));
    RCVERBS_USE(s.async_send_done(RCVERBS_TOKEN));
    RCVERBS_USE(s.async_wait_done(RCVERBS_TOKEN));
    RCVERBS_USE(s.async_disconnect(RCVERBS_TOKEN));
    RCVERBS_USE(s.async_finish(RCVERBS_TOKEN));
    RCVERBS_USE(messages.async_connect(peer, RCVERBS_TOKEN));
    RCVERBS_USE(messages.async_accept(RCVERBS_TOKEN));
    RCVERBS_USE(messages.async_send(data, 1, RCVERBS_TOKEN));
    RCVERBS_USE(messages.async_send(mine, 1, RCVERBS_TOKEN));
    RCVERBS_USE(messages.async_receive(RCVERBS_TOKEN));
    RCVERBS_USE(messages.async_fetch(message{}, mine, RCVERBS_TOKEN));
    RCVERBS_USE(messages.async_finish(RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_connect(peer, RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_accept(RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_request(1, data, RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_request(1, mine, RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_request(ask{1}.body(data), RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_request(ask{1}.head(data).body(data).into(mine), RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_request(ask{1}.head(data).body(mine).into(mine), RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_notify(1, data, RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_notify(ask{1}.head(data).body(mine), RCVERBS_TOKEN));
    RCVERBS_USE(client.async_request(ask{1}.body(data), RCVERBS_TOKEN));
    RCVERBS_USE(client.async_request(ask{1}.head(data).body(mine).into(mine), RCVERBS_TOKEN));
    RCVERBS_USE(client.async_finish(RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_next(RCVERBS_TOKEN));
    RCVERBS_USE(requests.async_finish(RCVERBS_TOKEN));
    RCVERBS_USE(asked.async_answer(1, data, RCVERBS_TOKEN));
    RCVERBS_USE(asked.async_answer(1, mine, RCVERBS_TOKEN));
    RCVERBS_USE(asked.async_answer(answer{1}.head(data).body(data), RCVERBS_TOKEN));
    RCVERBS_USE(asked.async_answer(answer{1}.head(data).body(mine), RCVERBS_TOKEN));
}

// Its handlers need an executor of their own.
void compile_memory_pool(memory_pool& pool) {
    pool.async_allocate(64, 64, asio::bind_executor(io, asio::detached));
    static_cast<void>(pool.async_allocate(64, 64, asio::bind_executor(io, asio::use_future)));
}

asio::awaitable<void> compile_default_tokens(
    with_default<connection>& c,
    with_default<acceptor>& door,
    with_default<session>& s,
    with_default<message_channel>& messages,
    with_default<request_channel>& requests,
    mutable_slice mine,
    remote_region theirs
) {
    auto [written, bytes] = co_await c.async_write(mine, theirs);
    static_cast<void>(bytes);
    auto [accepted, made] = co_await door.async_accept();
    auto [finished] = co_await s.async_finish();
    auto [received, m] = co_await messages.async_receive();
    auto [next, r] = co_await requests.async_next();
    std::span<std::byte const> const none;
    auto [asked, reply_to_it] = co_await requests.async_request(ask{1}.into(mine));
    auto [noticed] = co_await requests.async_notify(ask{1});
    static_cast<void>(asked ? asked : noticed);
    code = written    ? written
           : accepted ? accepted
           : finished ? finished
           : received ? received
                      : next;
}
