// Every asynchronous operation of connections, acceptors and shared receive queues keeps the
// contract in conformance.hpp. See session_conformance_test.cpp for sessions and connectors.

#include <rcverbs/experimental/window.hpp>

#include "fabric/conformance.hpp"

using namespace rcverbs;
using namespace test;

namespace {

constexpr access_flags all_remote =
    access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;

/// Two connected ends with memory.
struct stage {
    world& w;
    asio::io_context& io;
    test::pair ends;
    registered_buffer ours;
    registered_buffer theirs;
    batch several;
    // A second pair's acceptor and an unconnected connection.
    acceptor open_acceptor;
    connection fresh;
    // A connection that takes its receives from a shared queue, and a memory window that its peer
    // can invalidate.
    shared_receive_queue shared;
    test::pair sharing;
    registered_buffer place;
    test::plain_window window;
    // A pool whose only slot is lent.
    slot_pool slots;
    slot_lease lent;
    // Windows of the client: one that is free, and one that is bound.
    rcverbs::window unbound;
    rcverbs::window bound;

    stage(
        world& world,
        asio::io_context& context,
        test::pair pair,
        shared_receive_queue queue,
        test::pair sharing_pair
    )
        : w{world},
          io{context},
          ends{std::move(pair)},
          ours{ends.client.domain(), 4096, access_flags::local_write | access_flags::bind_windows},
          theirs{ends.server.domain(), 4096, all_remote},
          several{ends.client},
          open_acceptor{stepped(context), {"10.0.0.1", 0}},
          fresh{stepped(context)},
          shared{std::move(queue)},
          sharing{std::move(sharing_pair)},
          place{shared.domain(), 64, access_flags::local_write},
          window{ends.server, theirs.bytes().first(64)},
          slots{context, ends.client.domain(), {.slots = 1}},
          lent{slots.try_acquire()},
          unbound{ends.client},
          bound{ends.client} {
        bound.async_bind(ours.slice(0, 64), access_flags::remote_read, ignore);
        several.add(op::write(ours.slice(0, 8), theirs.remote().slice(0, 8)))
            .add(op::write(ours.slice(8, 8), theirs.remote().slice(8, 8)));
    }

    static asio::awaitable<std::shared_ptr<stage>> set(world& w, asio::io_context& io);

    // Windows are bound and invalidated by the device alone, at once: behind a write they take time.
    template <class Token>
    auto bind(Token&& token) {
        write();
        return unbound.async_bind(
            ours.slice(64, 64), access_flags::remote_read, std::forward<Token>(token)
        );
    }
    template <class Token>
    auto invalidate(Token&& token) {
        write();
        return bound.async_invalidate(std::forward<Token>(token));
    }
    void write() {
        ends.client.async_write(ours.slice(0, 64), theirs.remote().slice(0, 64), ignore);
    }

    void close() {
        ends.client.close();
        ends.server.close();
        fresh.close();
        open_acceptor.close();
        sharing.client.close();
        sharing.server.close();
        shared.close();
        slots.close();
    }

    void destroy() {
        { connection const gone = std::move(ends.client); }
        { connection const gone = std::move(fresh); }
        { acceptor const gone = std::move(open_acceptor); }
        { slot_pool const gone = std::move(slots); }
        shared.close();
        { connection const gone = std::move(sharing.server); }
    }

    asio::awaitable<void> ended() {
        for (connection* const c : {&ends.client, &ends.server, &sharing.client, &sharing.server}) {
            if (c->is_valid()) co_await c->async_wait_disconnected(awaiting);
        }
    }
};

asio::awaitable<std::shared_ptr<stage>> stage::set(world& w, asio::io_context& io) {
    connection_options options;
    options.queue_pair.send_queue_depth = 4;
    options.queue_pair.receive_queue_depth = 4;
    options.queue_pair.waiting_operations_max = 4;
    test::pair p = co_await meet(io, options, options);
    shared_receive_options few;
    few.depth = 4;
    few.waiting_max = 4;
    shared_receive_queue queue{io, few};
    connection_options server;
    server.placement.shared_receives = queue;
    test::pair sharing = co_await meet(io, {}, server);
    auto made = std::make_shared<stage>(w, io, std::move(p), std::move(queue), std::move(sharing));
    co_await sleep(io, 1ms);  // until the windows are bound
    co_return made;
}

// The capacity for data operations: four posted, four waiting, and the four unused slots of the
// receive queue.
constexpr int data_limit = 12;

RCVERBS_OPERATION(
    write_operation,
    terminal,
    errc::queue_full,
    data_limit,
    ends.client.async_write(
        s.ours.slice(0, 64), s.theirs.remote().slice(0, 64), std::forward<Token>(token)
    ),
);
RCVERBS_OPERATION(
    write_with_immediate_operation,
    terminal,
    errc::queue_full,
    data_limit,
    ends.client.async_write_with_immediate(
        s.ours.slice(0, 64), s.theirs.remote().slice(0, 64), 1, std::forward<Token>(token)
    ),
    s.ends.server.async_receive({}, ignore)
);
RCVERBS_OPERATION(
    read_operation,
    terminal,
    errc::queue_full,
    data_limit,
    ends.client.async_read(
        s.theirs.remote().slice(0, 64), s.ours.slice(0, 64), std::forward<Token>(token)
    ),
);
RCVERBS_OPERATION(
    fetch_add_operation,
    terminal,
    errc::queue_full,
    data_limit,
    ends.client.async_fetch_add(s.theirs.remote().word(64), 1, std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    compare_swap_operation,
    terminal,
    errc::queue_full,
    data_limit,
    ends.client.async_compare_swap(s.theirs.remote().word(64), 0, 1, std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    send_operation,
    terminal,
    errc::queue_full,
    data_limit,
    ends.client.async_send(s.ours.slice(0, 64), std::forward<Token>(token)),
    s.ends.server.async_receive(s.theirs.slice(0, 64), ignore)
);
RCVERBS_OPERATION(
    send_with_immediate_operation,
    terminal,
    errc::queue_full,
    data_limit,
    ends.client.async_send_with_immediate(s.ours.slice(0, 64), 0, std::forward<Token>(token)),
    s.ends.server.async_receive(s.theirs.slice(0, 64), ignore)
);
RCVERBS_OPERATION(
    send_with_invalidate_operation,
    terminal,
    errc::queue_full,
    data_limit,
    ends.client.async_send_with_invalidate(
        s.ours.slice(0, 64), s.window.remote().key(), std::forward<Token>(token)
    ),
    s.ends.server.async_receive(s.theirs.slice(64, 64), ignore)
);
RCVERBS_OPERATION(
    shared_receive_operation,
    none,
    errc::queue_full,
    8,
    shared.async_receive(s.place.slice(), std::forward<Token>(token)),
    s.sharing.client.async_send({}, ignore)
);
RCVERBS_OPERATION(
    receive_operation,
    terminal,
    errc::queue_full,
    data_limit,
    ends.client.async_receive(s.ours.slice(0, 64), std::forward<Token>(token)),
    s.ends.server.async_send(s.theirs.slice(0, 64), ignore)
);
RCVERBS_OPERATION(
    batch_operation,
    terminal,
    errc::queue_full,
    data_limit,
    several.async_submit(std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    connect_operation,
    terminal,
    errc::operation_in_progress,
    1,
    fresh.async_connect(s.open_acceptor.local_endpoint(), std::forward<Token>(token)),
    s.open_acceptor.async_accept(ignore)
);
RCVERBS_OPERATION(
    resolve_operation,
    terminal,
    errc::operation_in_progress,
    1,
    fresh.async_resolve(s.open_acceptor.local_endpoint(), std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    disconnect_operation,
    terminal,
    errc::operation_in_progress,
    1,
    ends.client.async_disconnect(std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    wait_operation,
    total,
    errc::operation_in_progress,
    1,
    ends.client.async_wait_disconnected(std::forward<Token>(token)),
    s.ends.server.close()
);
RCVERBS_OPERATION(
    get_request_operation,
    total,
    errc{},
    0,
    open_acceptor.async_get_request(std::forward<Token>(token)),
    s.fresh.async_connect(s.open_acceptor.local_endpoint(), ignore)
);
RCVERBS_OPERATION(
    accept_operation,
    total,
    errc{},
    0,
    open_acceptor.async_accept(std::forward<Token>(token)),
    s.fresh.async_connect(s.open_acceptor.local_endpoint(), ignore)
);

RCVERBS_OPERATION(
    acquire_slot_operation,
    total,
    errc{},
    0,
    slots.async_acquire(std::forward<Token>(token)),
    s.lent.release()
);

RCVERBS_OPERATION(
    bind_window_operation,
    terminal,
    errc::operation_in_progress,
    1,
    bind(std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    invalidate_window_operation,
    terminal,
    errc::operation_in_progress,
    1,
    invalidate(std::forward<Token>(token)),
);

}  // namespace

#define RCVERBS_ALL_OPERATIONS                                                                    \
    write_operation, write_with_immediate_operation, read_operation, fetch_add_operation,         \
        compare_swap_operation, send_operation, send_with_immediate_operation, receive_operation, \
        batch_operation, connect_operation, resolve_operation, disconnect_operation,              \
        wait_operation, accept_operation, get_request_operation, send_with_invalidate_operation,  \
        shared_receive_operation, acquire_slot_operation, bind_window_operation,                  \
        invalidate_window_operation

#include "fabric/conformance_cases.hpp"
