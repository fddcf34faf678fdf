// remote_heap: a stack and a queue without locks in memory of a third program. A server lends memory; one client allocates it and shares it
// under a name; another one finds it; both push and pop with atomics of RDMA, and the server's program does nothing.
//
// The memory is an array of words. Nodes have two of them: next and value. A link is the number of a node and a tag that changes whenever the
// link does, so that a client that has read a link notices at its compare-and-swap that somebody was faster, even if the same node is there
// again. The rule for nodes that were popped: they belong to the client that has popped them, which uses them for what it pushes next. They
// never go back to the pool while another client has the memory, so a link that is out of date leads to a node in any case. A client that
// sleeps between reading and swapping while the others change the link 65,536 times would not notice; use wider tags if yours may.
#include "examples/both_ends.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>

#include <rcverbs/experimental/remote_allocator.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

using namespace example;
using namespace asio::experimental::awaitable_operators;
using namespace std::chrono_literals;
using words = rcverbs::remote_array<std::uint64_t>;

// The number of a node in 48 bits, 0 for none, and a tag in 16.
struct tagged {
    std::uint64_t word = 0;

    std::uint64_t node() const { return word & ((std::uint64_t{1} << 48) - 1); }
    // The link that takes its place.
    tagged to(std::uint64_t node) const { return {((word >> 48) + 1) << 48 | node}; }
};

// The first words of the memory; nodes begin behind them.
constexpr std::uint64_t stack_top = 0;
constexpr std::uint64_t queue_head = 1;
constexpr std::uint64_t queue_tail = 2;
constexpr std::uint64_t next_of(std::uint64_t node) { return 2 + 2 * node; }
constexpr std::uint64_t value_of(std::uint64_t node) { return next_of(node) + 1; }

// One client's view: the shared words, and the nodes that are its own.
class heap {
public:
    heap(rcverbs::region_channel& over, rcverbs::remote_memory memory, std::uint64_t first_node, std::uint64_t nodes)
        : words_{std::move(memory)},
          page_{over.domain(), sizeof(std::uint64_t), rcverbs::access_flags::local_write},
          own_(nodes) {
        std::iota(own_.begin(), own_.end(), first_node);
    }

    asio::awaitable<void> push(std::uint64_t value) {
        std::uint64_t const node = take();
        co_await store(value_of(node), value);
        for (;;) {
            tagged const top = co_await load(stack_top);
            co_await relink(next_of(node), top.node());
            if (co_await swap(stack_top, top, top.to(node))) co_return;
        }
    }

    asio::awaitable<std::optional<std::uint64_t>> pop() {
        for (;;) {
            tagged const top = co_await load(stack_top);
            if (top.node() == 0) co_return std::nullopt;
            tagged const next = co_await load(next_of(top.node()));
            if (!co_await swap(stack_top, top, top.to(next.node()))) continue;
            std::uint64_t const value = (co_await load(value_of(top.node()))).word;
            own_.push_back(top.node());
            co_return value;
        }
    }

    // A queue has a node in front of its first value. The tail may be one node behind; whoever sees that moves it.
    asio::awaitable<void> make_queue() {
        std::uint64_t const node = take();
        co_await store(queue_head, node);
        co_await store(queue_tail, node);
    }

    asio::awaitable<void> enqueue(std::uint64_t value) {
        std::uint64_t const node = take();
        co_await store(value_of(node), value);
        co_await relink(next_of(node), 0);
        for (;;) {
            tagged const tail = co_await load(queue_tail);
            tagged const next = co_await load(next_of(tail.node()));
            if (next.node() != 0) {
                co_await swap(queue_tail, tail, tail.to(next.node()));
            } else if ((co_await load(queue_tail)).word == tail.word && co_await swap(next_of(tail.node()), next, next.to(node))) {
                co_await swap(queue_tail, tail, tail.to(node));
                co_return;
            }
        }
    }

    asio::awaitable<std::optional<std::uint64_t>> dequeue() {
        for (;;) {
            tagged const head = co_await load(queue_head);
            tagged const tail = co_await load(queue_tail);
            tagged const next = co_await load(next_of(head.node()));
            if ((co_await load(queue_head)).word != head.word) continue;
            if (next.node() == 0) co_return std::nullopt;
            if (head.node() == tail.node()) {
                co_await swap(queue_tail, tail, tail.to(next.node()));
                continue;
            }
            // It is read before the swap: afterwards the node in front is somebody else's.
            std::uint64_t const value = (co_await load(value_of(next.node()))).word;
            if (!co_await swap(queue_head, head, head.to(next.node()))) continue;
            own_.push_back(head.node());
            co_return value;
        }
    }

private:
    std::uint64_t take() {
        expect(!own_.empty(), "a client has as many nodes as it pushes");
        std::uint64_t const node = own_.back();
        own_.pop_back();
        return node;
    }
    // Atomics read, too: a plain read is not ordered with them on every device.
    asio::awaitable<tagged> load(std::uint64_t word) { co_return tagged{co_await words_.async_fetch_add(word, 0, use_awaitable)}; }
    // For words that no other client changes now.
    asio::awaitable<void> store(std::uint64_t word, std::uint64_t value) {
        std::memcpy(page_.bytes().data(), &value, sizeof value);
        co_await words_.async_write(word, page_.slice(), use_awaitable);
    }
    asio::awaitable<bool> swap(std::uint64_t word, tagged from, tagged to) {
        co_return co_await words_.async_compare_swap(word, from.word, to.word, use_awaitable) == from.word;
    }
    // Of a node of its own. A client that is late may still try to change the link, so the tag goes on.
    asio::awaitable<void> relink(std::uint64_t word, std::uint64_t node) {
        for (tagged now = co_await load(word); !co_await swap(word, now, now.to(node)); now = co_await load(word)) {}
    }

    words words_;
    rcverbs::registered_buffer page_;
    std::vector<std::uint64_t> own_;
};

constexpr std::uint64_t values_each = 50;

// Pushes values of its own, and pops as many of anybody's.
asio::awaitable<void> use(heap& h, std::uint64_t first, std::multiset<std::uint64_t>& popped, std::multiset<std::uint64_t>& dequeued) {
    for (std::uint64_t i = 0; i < values_each; ++i) {
        co_await h.push(first + i);
        co_await h.enqueue(first + i);
        if (auto const value = co_await h.pop()) popped.insert(*value);
        if (auto const value = co_await h.dequeue()) dequeued.insert(*value);
    }
}

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    // The server: memory, and nothing else.
    constexpr std::size_t pool_bytes = 65536;
    std::unique_ptr<std::byte[], void (*)(void*)> const memory{
        static_cast<std::byte*>(std::aligned_alloc(rcverbs::remote_pool::block_bytes_min, pool_bytes)), std::free};
    rcverbs::acceptor door{io, {address, 0}};
    rcverbs::region_offers offers{io};
    rcverbs::region_channel_options const options{.offers = offers};
    rcverbs::remote_pool pool{offers, {memory.get(), pool_bytes}};
    std::vector<rcverbs::region_channel> peers;
    auto const connect = [&]() -> asio::awaitable<rcverbs::region_channel> {
        rcverbs::region_channel client{io};
        auto const accept = [&]() -> asio::awaitable<void> {
            peers.emplace_back(io, co_await door.async_get_request(use_awaitable), options);
            co_await peers.back().async_accept(use_awaitable);
        };
        co_await (accept() && client.async_connect(door.local_endpoint(), use_awaitable));
        co_return client;
    };

    rcverbs::region_channel first = co_await connect();
    rcverbs::region_channel second = co_await connect();
    rcverbs::remote_allocator const allocator{first};
    constexpr std::uint64_t nodes_each = 2 * values_each + 1;
    rcverbs::remote_allocation const mine =
        co_await allocator.async_allocate(next_of(2 * nodes_each + 1) * sizeof(std::uint64_t), use_awaitable);
    co_await allocator.async_share(mine.memory, "heap", use_awaitable);
    heap one{first, mine.memory, 1, nodes_each};
    heap two{second, co_await second.async_find("shared/heap", 5s, use_awaitable), 1 + nodes_each, nodes_each};
    co_await one.make_queue();

    std::multiset<std::uint64_t> popped;
    std::multiset<std::uint64_t> dequeued;
    co_await (use(one, 1000, popped, dequeued) && use(two, 2000, popped, dequeued));
    while (auto const value = co_await one.pop()) popped.insert(*value);
    while (auto const value = co_await two.dequeue()) dequeued.insert(*value);

    std::multiset<std::uint64_t> all;
    for (std::uint64_t i = 0; i < values_each; ++i) all.insert({1000 + i, 2000 + i});
    expect(popped == all, "each value that was pushed is popped once");
    expect(dequeued == all, "each value that was enqueued is dequeued once");
    std::cout << all.size() << " values went through the stack, and as many through the queue\n";

    // The one that has allocated it frees it; the other one's handle is of no use any more.
    co_await allocator.async_free(mine.memory, use_awaitable);
    co_await pool.async_close(use_awaitable);
    expect(pool.statistics().free_bytes == pool_bytes, "all memory is free again");
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
