#include "rdma-bench/load.hpp"

#include <algorithm>
#include <cstring>

#include "rdma-bench/latency_load.hpp"
#include "rdma-bench/paced_load.hpp"
#include "rdma-bench/stream_load.hpp"

namespace rdma_bench {

void load::begin(round const& r) {
    round_ = r;
    left_ = 0;
    damaged_ = 0;
    if (operations() > 0) has_worked_before_ = true;
    operations_.store(0, std::memory_order_relaxed);
    if (latencies_ != nullptr) latencies_->clear();
    plan const& p = on_.terms();
    if (p.what != operation::connect) {
        make_slots();
        std::span<std::byte> const in = on_.incoming().bytes();
        if (p.verifies || is_atomic(p.what)) std::fill(in.begin(), in.end(), std::byte{});
        if (p.verifies) {
            for (std::size_t i = 0; i < on_.shape().slots; ++i)
                fill(outgoing(i).bytes(), r.seed, i);
            if (p.corrupts) outgoing(0).data()[r.size_bytes / 2] ^= std::byte{1};
        }
    }
    on_begin();
}

void load::run(std::uint64_t count, std::function<void()> done) {
    left_ = count;
    done_ = std::move(done);
    if (latencies_ != nullptr) latencies_->clear();
    over_time_.clear();
    began_ = clock::now();
    if (on_.has_failed()) return finish();
    start();
}

void load::stop() {
    left_ = 0;
    on_stop();
}

void load::finish() {
    ended_ = clock::now();
    if (auto const done = std::exchange(done_, nullptr)) done();
}

void load::make_slots() {
    layout const& shape = on_.shape();
    bool const is_sent = on_.terms().what == operation::send;
    std::vector<slot> made;
    for (std::size_t i = 0; i < shape.slots; ++i) {
        std::size_t const at = i * shape.stride_bytes;
        slot s;
        s.out = on_.outgoing().slice(at, round_.size_bytes);
        // The receiver's posted receives decide where a send arrives.
        if (!is_sent) s.in = on_.incoming().slice(at, round_.size_bytes);
        if (!is_sent) s.peer = on_.peer().slice(at, round_.size_bytes);
        made.push_back(s);
    }
    slots_ = std::move(made);
    if (is_atomic(on_.terms().what)) cell_ = on_.peer().word(0);
}

void load::check_message(std::uint64_t number, rcverbs::receive_result const& message) {
    if (!verifies()) return;
    bool const is_sent = on_.terms().what == operation::send;
    bool const is_next = is_sent ? message.size_bytes == round_.size_bytes
                                 : message.immediate == static_cast<std::uint32_t>(number);
    bool const is_whole =
        holds(on_.slot_of(number, round_.size_bytes), round_.seed, number % on_.shape().slots);
    if (!is_next || !is_whole) count_damaged();
}

void load::check_memory(std::uint64_t operations_of_peer) {
    // A write ping-pong verifies each write on arrival.
    bool const is_ping =
        on_.terms().what == operation::write && on_.terms().how == measure::latency;
    if (!verifies() || is_ping) return;
    // Reads fill this side's memory by its own operations, writes by the peer's.
    bool const is_read = on_.terms().what == operation::read;
    std::uint64_t const made = is_read ? operations() : operations_of_peer;
    switch (on_.terms().what) {
    case operation::write:
    case operation::read:
        for (std::uint64_t i = 0; i < std::min<std::uint64_t>(made, on_.shape().slots); ++i) {
            if (!holds(incoming(i).bytes(), round_.seed, i)) count_damaged();
        }
        break;
    case operation::fetch_add:
    case operation::compare_swap: {
        std::uint64_t cell = 0;
        std::memcpy(&cell, incoming(0).data(), sizeof cell);
        if (cell != made) count_damaged();
        break;
    }
    case operation::send:
    case operation::write_imm:
    case operation::connect: break;
    }
}

namespace {

// The passive side: no work per operation.
class passive_load final : public load {
public:
    using load::load;

private:
    void start() override { finish(); }
};

}  // namespace

std::unique_ptr<load> make_load(bench_connection& on) {
    plan const& p = on.terms();
    if (p.what == operation::connect) return std::make_unique<passive_load>(on);
    bool const is_client = on.which() == side::client;
    if (p.how != measure::latency) {
        bool const sends = is_client || p.is_bidirectional;
        if (sends && p.how == measure::paced) return std::make_unique<paced_load>(on);
        if (sends) return std::make_unique<stream_load>(on);
        if (is_received(p.what)) return std::make_unique<sink_load>(on);
        return std::make_unique<passive_load>(on);
    }
    if (p.what == operation::write) return std::make_unique<memory_ping_load>(on);
    if (is_received(p.what)) return std::make_unique<message_ping_load>(on);
    if (is_client) return std::make_unique<chain_load>(on);
    return std::make_unique<passive_load>(on);
}

}  // namespace rdma_bench
