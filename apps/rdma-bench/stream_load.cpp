#include "rdma-bench/stream_load.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

namespace rdma_bench {

namespace op = rcverbs::op;

using rcverbs::access_flags;
using rcverbs::error_code;

// --- the receiving side --------------------------------------------------------------------------

void sink_load::on_message(std::uint64_t number, rcverbs::receive_result const& message) {
    check_message(number, message);
    count(1);
}

// --- the sending side ----------------------------------------------------------------------------

stream_load::stream_load(bench_connection& on) : load{on} {
    plan const& p = on.terms();
    if (p.batch > 1) {
        for (std::uint32_t i = 0; i < p.depth / p.batch; ++i)
            lists_.push_back({rcverbs::batch{on.connection(), p.batch}});
    }
}

void stream_load::on_begin() {
    next_ = 0;
    for (list& l : lists_) l.is_filled = false;
    if (is_received(on().terms().what)) on().listen(this);
}

// Messages of the other direction, if both sides send.
void stream_load::on_message(std::uint64_t number, rcverbs::receive_result const& message) {
    check_message(number, message);
}

void stream_load::fill() {
    plan const& p = on().terms();
    while (left_ > 0 && in_flight_ + p.batch <= p.depth) {
        if (p.registers == registration::per_operation) {
            start_registered();
        } else if (p.batch > 1) {
            start_batch();
        } else {
            start_one();
        }
    }
    if (in_flight_ == 0 && left_ == 0) finish();
}

void stream_load::start_one() {
    ++in_flight_;
    --left_;
    start_operation(next_++, [this](error_code ec) { on_done(ec, 1); });
}

void stream_load::add(rcverbs::batch& to, std::uint64_t n) {
    switch (on().terms().what) {
    case operation::write: to.add(op::write(outgoing(n), target(n))); break;
    case operation::read: to.add(op::read(target(n), incoming(n))); break;
    case operation::send: to.add(op::send(outgoing(n))); break;
    case operation::write_imm:
        to.add(op::write_with_immediate(outgoing(n), target(n), static_cast<std::uint32_t>(n)));
        break;
    case operation::fetch_add: to.add(op::fetch_add(cell(), 1, outgoing(n))); break;
    case operation::compare_swap: to.add(op::compare_swap(cell(), n, n + 1, outgoing(n))); break;
    case operation::connect: break;
    }
}

void stream_load::start_batch() {
    plan const& p = on().terms();
    // Lists are submitted in turn and complete in order, so this one has completed.
    list& l = lists_[next_ / p.batch % lists_.size()];
    std::uint64_t const count = std::min<std::uint64_t>(left_, p.batch);
    bool const is_same = l.is_filled && l.requests.size() == count &&
                         l.first % on().shape().slots == next_ % on().shape().slots;
    if (!is_same || p.what == operation::write_imm || p.what == operation::compare_swap) {
        l.requests.clear();
        for (std::uint64_t i = 0; i < count; ++i) add(l.requests, next_ + i);
        l.is_filled = true;
    }
    l.first = next_;
    next_ += count;
    in_flight_ += p.batch;
    left_ -= count;
    l.requests.async_submit([this, first = l.first, count](error_code ec, std::size_t) {
        if (!ec) check_batch(first, count);
        in_flight_ -= on().terms().batch - count;
        on_done(ec, count);
    });
}

// Registers memory before each operation and deregisters it afterwards: the cost in a program that
// does not reuse its registrations.
void stream_load::start_registered() {
    rcverbs::connection& c = on().connection();
    std::uint64_t const n = next_++;
    bool const is_read = on().terms().what == operation::read;
    std::span<std::byte> const bytes = (is_read ? incoming(n) : outgoing(n)).bytes();
    error_code ec;
    auto region = std::make_unique<rcverbs::memory_region>(
        c.domain(), bytes, is_read ? access_flags::local_write : access_flags::local_read, ec
    );
    if (ec) return fail(ec);
    rcverbs::mutable_slice const slice = region->slice();
    auto done = [this, region = std::move(region)](error_code failed, std::size_t) mutable {
        region.reset();
        on_done(failed, 1);
    };
    ++in_flight_;
    --left_;
    if (is_read) {
        c.async_read(target(n), slice, std::move(done));
    } else {
        c.async_write(slice, target(n), std::move(done));
    }
}

void stream_load::on_done(error_code const& ec, std::uint64_t n) {
    in_flight_ -= n;
    if (ec) {
        fail(ec);
    } else {
        count(n);
    }
    fill();
}

// Verifies the results of atomics. Each atomic in flight has its own slot.
void stream_load::check_batch(std::uint64_t first, std::uint64_t n) {
    if (!verifies() || !is_atomic(on().terms().what)) return;
    for (std::uint64_t i = first; i < first + n; ++i) {
        std::uint64_t before = 0;
        std::memcpy(&before, outgoing(i).data(), sizeof before);
        if (before != i) count_damaged();
    }
}

}  // namespace rdma_bench
