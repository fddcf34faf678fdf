// memory_core.hpp — memory of the peer that handles refer to, and the operations on it.
//
// A count of the operations under way, and a bit that refuses new ones, in one word: starting and
// ending an operation takes no lock. Keys are read by any thread once all are known; until then in
// the channel's order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <rcverbs/connection.hpp>
#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/remote_memory.hpp>

#include "machines/piece_map.hpp"
#include "wire/region_message.hpp"

namespace rcverbs::detail {

class region_core;

class memory_core final : public std::enable_shared_from_this<memory_core> {
public:
    /// Of a read, write or atomic; the number is the bytes, or the old value.
    using waiter = protocol::waiter<error_code, std::uint64_t>;

    memory_core(
        std::shared_ptr<region_core> channel,
        std::uint64_t number,
        access_flags rights,
        machines::piece_map const& map
    );
    /// Gives it back to its owner.
    ~memory_core();
    memory_core(memory_core const&) = delete;
    memory_core& operator=(memory_core const&) = delete;

    static remote_memory handle_of(std::shared_ptr<memory_core> core) noexcept {
        return remote_memory{std::move(core)};
    }

    static std::shared_ptr<memory_core> const& core_of(remote_memory const& handle) noexcept {
        return handle.core_;
    }

    std::uint64_t number() const noexcept { return number_; }
    machines::piece_map const& map() const noexcept { return map_; }
    access_flags rights() const noexcept { return rights_; }
    region_core& channel() const noexcept { return *channel_; }
    std::shared_ptr<region_core> const& channel_ptr() const noexcept { return channel_; }
    bool is_withdrawn() const noexcept;

    std::uint64_t ready_bytes() const noexcept { return ready_bytes_.load(); }

    // Any thread.
    /// Posts an operation at once, whose handler calls leave(). False if that is not possible, or it
    /// is to be refused: then call start().
    bool start_now(std::uint64_t offset, work_request& what, handler_source source);
    void start(std::uint64_t offset, work_request& what, waiter who);
    /// An operation is not under way any more.
    void leave() noexcept;

    // In the channel's order.
    void prepare(std::uint64_t offset, std::uint64_t size, protocol::waiter<error_code> who);
    /// The peer has counted one more find.
    void on_found() noexcept { ++founds_; }
    /// It was allocated by this side, so that this side may free it.
    void mark_allocated() noexcept { is_allocated_ = true; }
    bool is_allocated() const noexcept { return is_allocated_; }
    /// Keys of the pieces from `first` on. REQUIRES: they are pieces of the map.
    void add_keys(std::uint32_t first, std::span<wire::piece_key const> keys);
    /// No operation is started any more; true if none is under way. Otherwise the channel is told
    /// later.
    bool withdraw() noexcept;

private:
    static constexpr std::uint64_t withdrawn = std::uint64_t{1} << 63;
    // Parts of one operation that are under way.
    static constexpr std::uint32_t parts_max = 8;

    struct transfer;

    error_code withdrawn_error() const noexcept;
    bool enter(std::uint64_t offset, work_request const& what, waiter& who);
    bool count() noexcept;
    void start_later(std::uint64_t offset, work_request const& what, waiter who);
    void advance(std::shared_ptr<transfer> const& t);
    void start_atomic(std::uint64_t offset, work_request const& what, waiter who);
    void prepare_next(std::uint32_t piece, std::uint32_t last, std::uint64_t number);
    void request_key(std::uint32_t piece, std::uint32_t last, std::function<void(error_code)> then);
    bool knows(std::uint32_t piece) const noexcept { return is_known_[piece]; }
    void aim(work_request& what, machines::piece_map::part const& at) const noexcept;

    std::shared_ptr<region_core> const channel_;
    std::uint64_t const number_;
    access_flags const rights_;
    machines::piece_map const map_;
    std::atomic<std::uint64_t> state_{0};
    std::atomic<bool> all_known_{false};
    std::atomic<std::uint64_t> ready_bytes_{0};
    wire::piece_keys keys_;
    boost::container::small_vector<bool, 1> is_known_;
    std::uint32_t unknown_ = 0;
    std::uint32_t founds_ = 0;
    bool is_allocated_ = false;
};

}  // namespace rcverbs::detail
