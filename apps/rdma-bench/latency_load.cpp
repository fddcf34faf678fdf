#include "rdma-bench/latency_load.hpp"

#include <boost/asio/post.hpp>

#include <atomic>
#include <utility>

namespace rdma_bench {

namespace op = rcverbs::op;

using rcverbs::errc;
using rcverbs::error_code;

namespace {

// Writes between two polls of the completion queue: fewer than half of the queue.
constexpr std::uint64_t polled_every = 32;

// Starts an operation unsignaled; if the send queue is full, starts it with a handler, which waits
// for a free slot.
template <class Try, class Wait>
error_code start_unnotified(Try attempt, Wait wait) {
    error_code const ec = attempt();
    if (ec != errc::would_block) return ec;
    wait();
    return {};
}

}  // namespace

// --- reads and atomics ---------------------------------------------------------------------------

void chain_load::start() {
    if (left_ == 0) return finish();
    started_ = clock::now();
    step();
}

void chain_load::step() {
    --left_;
    start_operation(next_++, [this](error_code ec) { on_done(ec); });
}

void chain_load::on_done(error_code const& ec) {
    if (ec) {
        fail(ec);
    } else {
        // From one completion to the next, as a sequential program would measure it.
        clock::time_point const now = clock::now();
        record(now, now - std::exchange(started_, now));
        count(1);
    }
    if (left_ == 0) return finish();
    step();
}

// --- messages ------------------------------------------------------------------------------------

void message_ping_load::on_begin() {
    next_ = 0;
    on().listen(this);
}

void message_ping_load::start() {
    // The server only answers.
    if (left_ == 0 || on().which() == side::server) return finish();
    --left_;
    started_ = clock::now();
    send();
}

void message_ping_load::send() {
    rcverbs::connection& c = on().connection();
    std::uint64_t const n = next_++;
    auto const immediate = static_cast<std::uint32_t>(n);
    auto const failed = [this](error_code ec, std::size_t) {
        if (ec) fail(ec);
    };
    bool const is_send = on().terms().what == operation::send;
    error_code const ec = start_unnotified(
        [&] {
            return is_send
                       ? c.try_start(op::send(outgoing(n)))
                       : c.try_start(op::write_with_immediate(outgoing(n), target(n), immediate));
        },
        [&] {
            is_send ? c.async_send(outgoing(n), failed)
                    : c.async_write_with_immediate(outgoing(n), target(n), immediate, failed);
        }
    );
    if (ec) fail(ec);
}

void message_ping_load::on_message(std::uint64_t number, rcverbs::receive_result const& message) {
    check_message(number, message);
    if (on().which() == side::server) {
        count(1);
        return send();
    }
    clock::time_point const now = clock::now();
    record(now, (now - std::exchange(started_, now)) / 2);
    count(1);
    if (left_ == 0) return finish();
    --left_;
    send();
}

// --- writes --------------------------------------------------------------------------------------

void memory_ping_load::on_begin() {
    next_ = 0;
    is_stopped_ = false;
    // The number of the first write is 1, so 0 marks memory without a write.
    *incoming(0).bytes().rbegin() = std::byte{0};
    if (on().which() == side::server) poll_memory();
}

void memory_ping_load::start() {
    if (left_ == 0 || on().which() == side::server) return finish();
    --left_;
    started_ = clock::now();
    write();
    poll_again();
}

// The last byte has the write's number; devices write a message's bytes in order.
void memory_ping_load::write() {
    rcverbs::connection& c = on().connection();
    rcverbs::mutable_slice const& source = outgoing(0);
    source.data()[source.size() - 1] = static_cast<std::byte>(++next_ & 0xff);
    error_code const ec = start_unnotified(
        [&] { return c.try_start(op::write(source, target(0))); },
        [&] {
            c.async_write(source, target(0), [this](error_code failed, std::size_t) {
                if (failed) fail(failed);
            });
        }
    );
    if (ec) fail(ec);
}

// Polls the memory for a limited number of iterations; then completions are polled.
void memory_ping_load::poll_memory() {
    bool const is_client = on().which() == side::client;
    rcverbs::mutable_slice const& memory = incoming(0);
    // Volatile: the device writes it. The fence below keeps the reads of the other bytes behind it.
    auto const* const last =
        reinterpret_cast<unsigned char const volatile*>(memory.data() + memory.size() - 1);
    for (int i = 0; i < 2000 && !is_stopped_ && !on().has_failed(); ++i) {
        auto const wanted = static_cast<unsigned char>((is_client ? next_ : next_ + 1) & 0xff);
        if (*last != wanted) continue;
        std::atomic_thread_fence(std::memory_order_acquire);
        if (verifies() && !holds(memory.bytes().first(memory.size() - 1), round_seed(), 0))
            count_damaged();
        count(1);
        if (!is_client) {
            write();
            if (next_ % polled_every == 0) break;
            continue;
        }
        clock::time_point const now = clock::now();
        record(now, (now - std::exchange(started_, now)) / 2);
        if (left_ == 0) return finish();
        --left_;
        write();
        // Returns to poll completions while the answer is in flight, before the queue is full.
        if (next_ % polled_every == 0) break;
    }
    poll_again();
}

void memory_ping_load::poll_again() {
    if (on().has_failed() || is_stopped_) {
        if (on().which() == side::client) finish();
        return;
    }
    boost::asio::post(on().connection().get_executor(), [this] { poll_memory(); });
}

}  // namespace rdma_bench
