// latency_load.hpp — times single operations: reads and atomics until their completion, messages
// and writes until the peer's answer arrives.
#pragma once

#include "rdma-bench/load.hpp"

namespace rdma_bench {

/// Reads or atomics: each starts when the previous one completes. Records the full duration.
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

/// A ping-pong of messages. The client records half of each round trip; the server answers.
class message_ping_load final : public load, private message_sink {
public:
    using load::load;

private:
    void on_begin() override;
    void start() override;
    void on_message(std::uint64_t number, rcverbs::receive_result const& message) override;
    void on_failure() override { finish(); }
    void send();

    std::uint64_t next_ = 0;
    clock::time_point started_;
};

/// A ping-pong of writes, detected by polling the memory: neither completions nor events report
/// them. The client records half of each round trip. Occupies one processor on each side, whatever
/// polling mode the plan has.
class memory_ping_load final : public load {
public:
    using load::load;

private:
    void on_begin() override;
    void start() override;
    void on_stop() override { is_stopped_ = true; }
    void write();
    void poll_memory();
    void poll_again();

    std::uint64_t next_ = 0;
    clock::time_point started_;
    bool is_stopped_ = false;
};

}  // namespace rdma_bench
