// memory_pool_core.hpp — what a memory_pool does: chunks, the free memory in them, caches of small
// blocks for the threads, and the allocations that wait.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include <rcverbs/memory_pool.hpp>

#include <rcverbs/detail/wait_list.hpp>
#include "memory/best_fit.hpp"
#include "memory/chunk.hpp"
#include "memory/waiting_allocation.hpp"

namespace rcverbs::detail {

class memory_pool_core : public std::enable_shared_from_this<memory_pool_core> {
public:
    static std::shared_ptr<memory_pool_core> make(
        std::span<protection_domain const> domains, memory_pool_options options
    );
    memory_pool_core(
        std::span<protection_domain const> domains, memory_pool_options const& options
    );
    /// One of them.
    protection_domain const& domain() const noexcept { return domains_.front(); }

    /// A block, or null and the reason.
    std::byte* allocate(std::size_t size_bytes, std::size_t alignment, error_code& ec);
    void deallocate(std::byte* block, std::size_t size_bytes, std::size_t alignment) noexcept;
    void start_allocate(
        std::size_t size_bytes,
        std::size_t alignment,
        boost::asio::any_io_executor const& executor,
        allocate_handler handler
    );
    void reserve(std::size_t size_bytes, error_code& ec);
    std::size_t release_unused() noexcept;
    mutable_slice slice_of(
        void const* memory, std::size_t size_bytes, protection_domain const* domain
    ) const;
    remote_region remote_of(void const* memory, std::size_t size_bytes) const;
    memory_pool_statistics statistics() const;

private:
    using guard = std::unique_lock<std::mutex>;

    // Small blocks are powers of two, aligned to their size or to 4096.
    static constexpr unsigned class_first = 6;  // 64 bytes
    static constexpr unsigned class_count = 10;  // up to 32768 bytes
    static constexpr std::size_t alignment_max = 4096;
    static constexpr std::size_t shard_count = 16;
    // A shard keeps at most so many free bytes of one class, and fetches a quarter of that.
    static constexpr std::size_t cached_bytes_max = std::size_t{256} << 10;

    struct alignas(64) shard {
        std::mutex mutex;
        std::array<std::vector<std::byte*>, class_count> free;
        std::size_t bytes = 0;
    };
    struct waiter {
        std::shared_ptr<waiting_allocation> what;

        boost::asio::cancellation_slot slot() const noexcept { return what->slot(); }
        void note(bool const* is_cancelled) const noexcept { what->note(is_cancelled); }
    };

    /// False for what is larger than the pool can ever be.
    bool can_ever_serve(std::size_t size_bytes, std::size_t alignment) const noexcept;
    static bool is_small(std::size_t size_bytes, std::size_t alignment) noexcept {
        return size_bytes <= memory_pool::small_bytes_max && alignment <= alignment_max;
    }
    // What the backend is asked for.
    static std::pair<std::size_t, std::size_t> block_of(
        std::size_t size_bytes, std::size_t alignment
    ) noexcept;
    static unsigned class_of(std::size_t block_bytes) noexcept;

    shard& my_shard() noexcept;
    std::byte* from_cache(std::size_t block_bytes);
    void flush(shard& of, unsigned of_class, std::size_t keep) noexcept;
    void flush_all() noexcept;
    std::byte* from_chunks(std::size_t block_bytes, std::size_t alignment, error_code& ec) noexcept;
    void to_chunks(std::byte* block, std::size_t block_bytes) noexcept;
    // True if there is more memory now; else the reason why there is not. REQUIRES: the lock.
    bool grow(guard& lock, std::size_t least_bytes, error_code& ec) noexcept;
    std::optional<chunk> make_chunk(std::size_t size_bytes, error_code& ec) noexcept;
    bool add(chunk& made) noexcept;
    void count_use(std::size_t size_bytes) noexcept;
    std::size_t deregister_unused() noexcept;
    void serve() noexcept;
    bool serve(waiting_allocation& next) noexcept;
    void complete(waiting_allocation& what, error_code ec, std::byte* block) noexcept;
    void cancel(std::uint64_t serial);
    chunk const& chunk_of(void const* memory, std::size_t size_bytes) const;
    std::byte* finish(std::byte* block, std::size_t size_bytes) noexcept;

    std::vector<protection_domain> const domains_;
    memory_pool_options const options_;
    std::array<shard, shard_count> shards_;

    mutable std::mutex mutex_;
    std::condition_variable has_grown_;
    best_fit free_;
    std::size_t registered_bytes_ = 0;
    std::size_t pending_bytes_ = 0;  // of chunks that are being registered
    std::size_t leaving_bytes_ = 0;  // of chunks that are being deregistered
    wait_list<waiter> waiters_;
    // The wait that is being served, and whether it was cancelled meanwhile.
    std::uint64_t serving_serial_ = 0;
    bool is_cancelled_ = false;
    bool is_serving_ = false;
    bool serve_again_ = false;

    // Found by the end of a slice's way to a key; changed with mutex_ held, too.
    mutable std::shared_mutex chunks_mutex_;
    std::map<std::byte const*, chunk> chunks_;

    std::atomic<std::size_t> waiting_{0};
    std::atomic<std::size_t> used_bytes_{0};
    std::atomic<std::size_t> used_bytes_max_{0};
};

}  // namespace rcverbs::detail
