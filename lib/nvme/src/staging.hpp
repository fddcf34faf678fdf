// staging.hpp — memory for data on its way between hosts and stores, of one device.
//
// A queue has queue_bytes of its own, made when it first needs them, and all queues share the common
// part, of which a host may use half, and all hosts at one address three quarters. A command takes
// common memory if there is some. Otherwise it waits its turn to go through the queue's own memory, in
// pieces if it is longer, so that no host waits for another. Safe from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include <rcverbs/memory_pool.hpp>
#include <rcverbs/protection_domain.hpp>

namespace rcverbs::nvme::detail {

/// What one host, or all hosts at one address, use of the common parts. Guarded by a mutex of the
/// target's, since the common parts of several devices share it.
struct host_account {
    /// From 1; constant, and of no other account in this process.
    std::uint64_t const number = next_number();
    std::size_t staged_bytes = 0;
    /// Of a host: the account of its address.
    std::shared_ptr<host_account> of_address;

private:
    static std::uint64_t next_number() noexcept {
        // Relaxed: a number that nobody else has.
        static std::atomic<std::uint64_t> last{0};
        return last.fetch_add(1, std::memory_order_relaxed) + 1;
    }
};

class staging_memory {
public:
    /// Bytes of a queue's own part.
    static constexpr std::size_t queue_bytes = 65536;
    static constexpr std::size_t alignment = 64;

    /// @param common_bytes  The size of the common part: a multiple of 64 KiB, one at least.
    /// @param accounts      The mutex of the accounts.
    staging_memory(
        protection_domain const& domain,
        std::size_t common_bytes,
        std::shared_ptr<std::mutex> accounts
    );

    /// Allocates from the common part; null if there is not enough now.
    ///
    /// @throws boost::system::system_error: memory could not be registered.
    void* allocate(std::size_t size_bytes, host_account& of);
    void free(void* memory, std::size_t size_bytes, host_account& of);
    mutable_slice slice_of(void* memory, std::size_t size_bytes) const {
        return pool_.slice_of(memory, size_bytes);
    }

private:
    memory_pool pool_;
    std::size_t const host_bytes_max_;
    std::size_t const address_bytes_max_;
    std::shared_ptr<std::mutex> const mutex_;
};

}  // namespace rcverbs::nvme::detail
