// stream_load.hpp — keeps the plan's depth of operations in flight; and the receiving side.
#pragma once

#include <vector>

#include "rdma-bench/load.hpp"

namespace rdma_bench {

/// Verifies and counts incoming messages.
class sink_load : public load, private message_sink {
public:
    using load::load;

private:
    void on_begin() override { on().listen(this); }
    void start() override { finish(); }
    void on_message(std::uint64_t number, rcverbs::receive_result const& message) override;
};

/// Keeps operations in flight, posted one at a time or in batches.
class stream_load final : public load, private message_sink {
public:
    explicit stream_load(bench_connection& on);

private:
    void on_begin() override;
    void start() override { fill(); }
    void on_message(std::uint64_t number, rcverbs::receive_result const& message) override;

    void fill();
    void start_one();
    void start_batch();
    void start_registered();
    void add(rcverbs::batch& to, std::uint64_t n);
    void on_done(rcverbs::error_code const& ec, std::uint64_t count);
    void check_batch(std::uint64_t first, std::uint64_t count);

    // A list that is submitted repeatedly; filled again if its requests change.
    struct list {
        rcverbs::batch requests;
        std::uint64_t first = 0;
        bool is_filled = false;
    };

    std::vector<list> lists_;
    std::uint64_t in_flight_ = 0;
    // The number of the next operation in this round, warm-up included.
    std::uint64_t next_ = 0;
};

}  // namespace rdma_bench
