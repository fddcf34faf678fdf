// paced_load.hpp — starts operations at a fixed rate, whether or not earlier ones have completed.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include "rdma-bench/load.hpp"

namespace rdma_bench {

/// An open loop: operation n is due n / rate after the beginning. Its latency counts from then on, also if
/// it had to wait because the plan's depth was in flight or this program was late: a stall shows in all
/// operations that were due meanwhile, and not in one.
class paced_load final : public load, private message_sink {
public:
    explicit paced_load(bench_connection& on);

private:
    void on_begin() override;
    void start() override;
    void on_stop() override;
    void on_message(std::uint64_t number, rcverbs::receive_result const& message) override;

    clock::time_point due(std::uint64_t n) const noexcept;
    void start_due();
    void on_done(rcverbs::error_code const& ec, clock::time_point due);

    boost::asio::steady_timer timer_;
    // In this run, and in the round.
    std::uint64_t started_ = 0;
    std::uint64_t next_ = 0;
    std::uint64_t in_flight_ = 0;
    bool is_waiting_ = false;
};

}  // namespace rdma_bench
