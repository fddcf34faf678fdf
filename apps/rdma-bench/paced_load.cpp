#include "rdma-bench/paced_load.hpp"

namespace rdma_bench {

using rcverbs::error_code;

paced_load::paced_load(bench_connection& on) : load{on}, timer_{on.connection().get_executor()} {}

void paced_load::on_begin() {
    next_ = 0;
    if (is_received(on().terms().what)) on().listen(this);
}

// Messages of the other direction, if both sides send.
void paced_load::on_message(std::uint64_t number, rcverbs::receive_result const& message) {
    check_message(number, message);
}

void paced_load::start() {
    started_ = 0;
    start_due();
}

void paced_load::on_stop() { timer_.cancel(); }

load::clock::time_point paced_load::due(std::uint64_t n) const noexcept {
    auto const seconds = static_cast<double>(n) / static_cast<double>(on().terms().rate);
    return began() +
           std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>{seconds});
}

void paced_load::start_due() {
    clock::time_point const now = clock::now();
    while (left_ > 0 && in_flight_ < on().terms().depth && due(started_) <= now) {
        clock::time_point const when = due(started_++);
        ++in_flight_;
        --left_;
        start_operation(next_++, [this, when](error_code ec) { on_done(ec, when); });
    }
    if (is_waiting_) return;
    if (left_ == 0) {
        if (in_flight_ == 0) finish();
        return;
    }
    // At the plan's depth, a completion starts the next.
    if (in_flight_ == on().terms().depth) return;
    is_waiting_ = true;
    timer_.expires_at(due(started_));
    timer_.async_wait([this](error_code) {
        is_waiting_ = false;
        start_due();
    });
}

void paced_load::on_done(error_code const& ec, clock::time_point when) {
    --in_flight_;
    if (ec) {
        fail(ec);
        timer_.cancel();
    } else {
        clock::time_point const now = clock::now();
        record(now, now - when);
        count(1);
    }
    start_due();
}

}  // namespace rdma_bench
