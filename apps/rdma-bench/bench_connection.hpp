// bench_connection.hpp — one measured connection, with the memory of its operations on both sides.
//
// Except for construction and connecting, everything runs on the connection's executor, so no lock
// is needed; members that other threads read are atomic. It must outlive its connection's last
// handler: close the connection, and wait for async_wait_disconnected.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include <rcverbs/rcverbs.hpp>

#include "rdma-bench/memory.hpp"
#include "rdma-bench/protocol.hpp"

namespace rdma_bench {

/// The role of this program.
enum class side { client, server };

/// Receives a connection's messages.
class message_sink {
public:
    virtual void on_message(std::uint64_t number, rcverbs::receive_result const& message) = 0;
    /// The connection has failed: no more messages.
    virtual void on_failure() {}

protected:
    ~message_sink() = default;
};

class bench_connection {
public:
    /// Takes a connection that is not connected yet.
    ///
    /// @param token  What both sides name in their greetings.
    bench_connection(rcverbs::connection c, plan const& p, side s, std::uint64_t token)
        : token_{token},
          connection_{std::move(c)},
          plan_{p},
          side_{s},
          layout_{p} {}
    bench_connection(bench_connection const&) = delete;
    bench_connection& operator=(bench_connection const&) = delete;

    /// Connects, and sends the peer this side's region. Throws boost::system::system_error;
    /// problem() has the details.
    boost::asio::awaitable<void> connect(rcverbs::endpoint server);
    /// The same for a connection request.
    boost::asio::awaitable<void> accept();

    rcverbs::connection& connection() noexcept { return connection_; }
    plan const& terms() const noexcept { return plan_; }
    layout const& shape() const noexcept { return layout_; }
    side which() const noexcept { return side_; }
    rcverbs::memory_region const& outgoing() const noexcept { return outgoing_; }
    rcverbs::memory_region const& incoming() const noexcept { return incoming_; }
    rcverbs::remote_region const& peer() const noexcept { return peer_; }

    /// Sets the receiver of messages, null for none. Message numbers start at 0 again.
    void listen(message_sink* sink) noexcept {
        sink_ = sink;
        messages_ = 0;
    }
    /// The slot that a message arrived in.
    std::span<std::byte> slot_of(std::uint64_t message, std::size_t size_bytes) const noexcept;

    /// Records that the connection is unusable, and why; later calls have no effect.
    void fail(rcverbs::error_code const& ec);
    /// The same for an error outside of the connection; closes the connection.
    void fail(rcverbs::error_code const& ec, std::string problem);
    bool has_failed() const noexcept { return has_failed_.load(std::memory_order_acquire); }
    /// The recorded failure, with all details. REQUIRES: has_failed().
    std::string const& problem() const noexcept { return problem_; }
    rcverbs::error_code code() const noexcept { return code_; }

private:
    void make_memory();
    void post_receives();
    void post_receive();
    rcverbs::remote_region exposed() const noexcept;
    void greet();
    void note(rcverbs::error_code const& ec, std::string problem);

    // Destroyed after connection_, which uses the memory until it is closed.
    pages outgoing_pages_;
    pages incoming_pages_;
    rcverbs::memory_region outgoing_;
    rcverbs::memory_region incoming_;
    std::uint64_t const token_;
    rcverbs::connection connection_;
    plan const& plan_;
    side const side_;
    layout const layout_;
    rcverbs::remote_region peer_;
    message_sink* sink_ = nullptr;
    // The number of the next receive to post, and of the oldest posted one.
    std::uint64_t next_receive_ = 0;
    std::uint64_t oldest_receive_ = 0;
    std::uint64_t messages_ = 0;
    std::uint64_t last_receive_ = 0;
    std::atomic<bool> has_failed_{false};
    rcverbs::error_code code_;
    std::string problem_;
};

}  // namespace rdma_bench
