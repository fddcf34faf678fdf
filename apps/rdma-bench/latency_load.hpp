// latency_load.hpp — one operation after another, each timed: reads and atomics till their completion, messages and writes till
// the peer's answer has come.
#pragma once

#include "rdma-bench/load.hpp"

namespace rdma_bench {

/// Reads, or atomics: the next starts when the last is complete. Records the whole of it.
class chain_load final : public load {
public:
    using load::load;

private:
    void on_begin() override { next_ = 0; }
    void start() override;
    void step();
    void on_done(rcverbs::error_code const& ec);

    std::uint64_t next_ = 0;
    clock::time_point started_;
};

/// Messages to and fro. The client records half of each round trip; the server answers.
class message_ping_load final : public load, private message_sink {
public:
    using load::load;

private:
    void on_begin() override;
    void start() override;
    void on_message(std::uint64_t number, rcverbs::received const& message) override;
    void on_failure() override { finish(); }
    void send();

    std::uint64_t next_ = 0;
    clock::time_point started_;
};

/// Writes to and fro, noticed by looking at memory: no completion and no event tells of them. The client records half of each
/// round trip. Takes a processor on each side, whatever the plan says of polling.
class memory_ping_load final : public load {
public:
    using load::load;

private:
    void on_begin() override;
    void start() override;
    void on_stop() override { is_stopped_ = true; }
    void write();
    void look();
    void look_again();

    std::uint64_t next_ = 0;
    clock::time_point started_;
    bool is_stopped_ = false;
};

}  // namespace rdma_bench
