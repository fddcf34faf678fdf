// lane.hpp — one connection that is measured, with the memory that its operations use on this side and the peer's.
//
// Everything but making and connecting it happens on the connection's executor, so a lane needs no lock; what others may read
// meanwhile is atomic. It must outlive its connection's last handler: close it, and wait for async_wait_disconnected.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <rcverbs/rcverbs.hpp>

#include "rdma-bench/memory.hpp"
#include "rdma-bench/plan.hpp"

namespace rdma_bench {

/// Which of the two a program is.
enum class side { client, server };

/// How a plan's memory is divided; the same on both sides.
struct layout {
    /// From one slot to the next.
    std::size_t stride_bytes;
    /// Operation n reads and writes slot n % slots.
    std::size_t slots;
    /// Receives that are kept posted, and the slots that they go to in turn.
    std::size_t receives;
    std::size_t receive_slots;

    explicit layout(plan const& p) noexcept;
};

/// What a lane's ends tell each other in the connection manager's private data: the region that the peer may use.
inline constexpr std::size_t greeting_bytes = 32;
std::array<std::byte, greeting_bytes> encode_greeting(rcverbs::remote_region const& exposed) noexcept;
/// None if it is no greeting of this program's.
std::optional<rcverbs::remote_region> decode_greeting(std::span<std::byte const> private_data) noexcept;

/// Told of a lane's messages.
class message_sink {
public:
    virtual void on_message(std::uint64_t number, rcverbs::received const& message) = 0;
    /// None will come any more.
    virtual void on_failure() {}

protected:
    ~message_sink() = default;
};

class lane {
public:
    /// For a connection that is not connected yet.
    lane(rcverbs::connection c, plan const& p, side s) : connection_{std::move(c)}, plan_{p}, side_{s}, layout_{p} {}
    lane(lane const&) = delete;
    lane& operator=(lane const&) = delete;

    /// Connects, telling the peer of the memory. Throws boost::system::system_error; problem() has the details.
    boost::asio::awaitable<void> connect(rcverbs::endpoint server);
    /// The same for a request.
    boost::asio::awaitable<void> accept();

    rcverbs::connection& connection() noexcept { return connection_; }
    plan const& terms() const noexcept { return plan_; }
    layout const& shape() const noexcept { return layout_; }
    side which() const noexcept { return side_; }
    rcverbs::memory_region const& outgoing() const noexcept { return outgoing_; }
    rcverbs::memory_region const& incoming() const noexcept { return incoming_; }
    rcverbs::remote_region const& peer() const noexcept { return peer_; }

    /// Who is told of messages from now on. Its numbers start at 0 again.
    void listen(message_sink* sink) noexcept {
        sink_ = sink;
        messages_ = 0;
    }
    /// The slot that a message arrived in.
    std::span<std::byte> slot_of(std::uint64_t message, std::size_t size_bytes) const noexcept;

    /// Remembers why it is of no use any more; the first counts.
    void fail(rcverbs::error_code const& ec);
    bool has_failed() const noexcept { return has_failed_.load(std::memory_order_acquire); }
    /// Why, with all that is known. REQUIRES: has_failed().
    std::string const& problem() const noexcept { return problem_; }
    rcverbs::error_code code() const noexcept { return code_; }

private:
    void make_memory();
    void post_receives();
    void post_receive();
    rcverbs::remote_region exposed() const noexcept;
    void greet(std::span<std::byte const> private_data);

    // The connection goes first: its memory is in use until then.
    pages outgoing_pages_;
    pages incoming_pages_;
    rcverbs::memory_region outgoing_;
    rcverbs::memory_region incoming_;
    rcverbs::connection connection_;
    plan const& plan_;
    side const side_;
    layout const layout_;
    rcverbs::remote_region peer_;
    message_sink* sink_ = nullptr;
    // Where the next receive goes, and the oldest one that is posted.
    std::uint64_t next_receive_ = 0;
    std::uint64_t oldest_receive_ = 0;
    std::uint64_t messages_ = 0;
    std::uint64_t last_receive_ = 0;
    std::atomic<bool> has_failed_{false};
    rcverbs::error_code code_;
    std::string problem_;
};

}  // namespace rdma_bench
