// memory_pool.hpp — a std::pmr::memory_resource of registered memory.
//
//     memory_pool pool{c.domain(), {.bytes_max = std::size_t{1} << 30}};
//     std::pmr::vector<std::byte> message{4096, &pool};
//     mutable_slice const bytes = pool.slice_of(message.data(), message.size());
//     co_await c.async_send(bytes, use_awaitable);
//
// The pool registers memory in chunks, and allocates from them by best fit, coalescing what is
// freed. Containers of std::pmr, or any program that takes a memory resource, then hold memory
// that can be sent, read and written without a copy and without a registration per operation.
// Small blocks, up to small_bytes_max, come from caches that are sharded by thread.
//
// The pool never registers more than bytes_max bytes. When that is reached, allocate() throws, and
// async_allocate() waits until memory is freed. Free memory only when no operation uses it any
// more. Threads: any thread may allocate, free and ask for slices; construction and destruction
// need the owner. The pool outlives everything that is allocated from it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/system_executor.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <new>
#include <optional>
#include <span>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs {

namespace detail {

class memory_pool_core;

using allocate_handler = erased_handler<error_code, void*>;

}  // namespace detail

/// The size of a memory pool's pages.
enum class page_size {
    /// The system's, usually 4 KiB; transparent huge pages where the system makes them.
    standard,
    /// 2 MiB, reserved by the administrator (vm.nr_hugepages).
    huge_2m,
    /// 1 GiB, reserved by the administrator.
    huge_1g,
};

/// Sizes, rights and placement of a memory pool.
struct memory_pool_options {
    /// Bytes that the pool may register. 1 chunk or more.
    std::size_t bytes_max = std::size_t{256} << 20;
    /// Bytes that are registered at a time; a larger allocation gets a chunk of its own. Rounded up
    /// to pages. 64 KiB or more.
    std::size_t chunk_bytes = std::size_t{16} << 20;
    /// Bytes that the constructor registers, in parallel. 0 to bytes_max, in whole pages.
    std::size_t reserve_bytes = 0;
    /// Threads that register at a time, in the constructor and in reserve(). 1 to 64.
    std::uint32_t registration_threads_max = 4;
    /// Rights of the device and of peers to the memory.
    access_flags rights = access_flags::local_write;
    /// The page size; where the system has no such pages, standard ones are used, and
    /// memory_pool_statistics::huge_bytes shows it.
    page_size pages = page_size::standard;
    /// The NUMA node of the memory; empty for the system's choice. Where the system refuses,
    /// memory_pool_statistics::node_bytes shows it.
    std::optional<std::uint32_t> numa_node = {};
    /// True to zero each block when it is allocated. Chunks are zero when they are made, so a peer
    /// that may read them never sees other memory of the process.
    bool is_zeroed = false;
};

/// A memory pool's figures; a snapshot.
struct memory_pool_statistics {
    /// Bytes registered.
    std::size_t registered_bytes = 0;
    /// Bytes registered in pages of the size that was asked for, unless that is standard.
    std::size_t huge_bytes = 0;
    /// Bytes registered on the NUMA node that was asked for.
    std::size_t node_bytes = 0;
    /// Chunks registered.
    std::size_t chunks = 0;
    /// Bytes allocated, as requested.
    std::size_t used_bytes = 0;
    /// The most bytes that were allocated at a time.
    std::size_t used_bytes_max = 0;
    /// Bytes that are free, without those in caches.
    std::size_t free_bytes = 0;
    /// Bytes of the largest block that can be allocated without a further chunk.
    std::size_t largest_free_bytes = 0;
    /// Bytes of free small blocks in the caches of threads.
    std::size_t cached_bytes = 0;
    /// Allocations that wait for memory.
    std::size_t waiting = 0;

    /// The share of free memory outside of the largest free block: 0 for none, close to 1 for free
    /// memory in many small pieces.
    double fragmentation() const noexcept {
        if (free_bytes == 0) return 0;
        return 1.0 - static_cast<double>(largest_free_bytes) / static_cast<double>(free_bytes);
    }
};

/// Thrown by memory_pool::allocate() when bytes_max is reached, or the system has no memory.
class RCVERBS_EXPORT memory_pool_exhausted : public std::bad_alloc {
public:
    /// The limit of registered bytes, or the error of the registration that failed.
    explicit memory_pool_exhausted(error_code const& ec) noexcept : code_{ec} {}
    char const* what() const noexcept override;
    /// errc::pool_exhausted, or the errno of the registration.
    error_code const& code() const noexcept { return code_; }

private:
    error_code code_;
};

/// A memory resource whose memory is registered in one protection domain, or in several.
class RCVERBS_EXPORT memory_pool : public std::pmr::memory_resource {
public:
    /// The largest size and alignment that the caches serve, in bytes.
    static constexpr std::size_t small_bytes_max = 32768;

    /// Makes a pool for one protection domain.
    ///
    /// @param domain   The domain of the connections that use the memory.
    /// @param options  Sizes, rights, placement.
    /// @throws boost::system::system_error: errc::invalid_option, and the errors of memory_region
    ///         for reserve_bytes.
    explicit memory_pool(protection_domain const& domain, memory_pool_options const& options = {});
    /// Makes a pool for several domains, such as one per device: all memory is registered in each.
    ///
    /// @param domains  1 to 16 different domains, copied.
    /// @param options  As above; bytes_max counts each byte once.
    /// @throws as above.
    explicit memory_pool(
        std::span<protection_domain const> domains, memory_pool_options const& options = {}
    );
    memory_pool(memory_pool const&) = delete;
    memory_pool& operator=(memory_pool const&) = delete;
    /// Deregisters and frees all chunks. REQUIRES: nothing is allocated, and nothing waits.
    ~memory_pool() override;

    /// Allocates as allocate(), and waits until there is memory. Waits are served in order.
    ///
    /// @param size_bytes  1 to bytes_max.
    /// @param alignment   A power of two, 1 to 4096.
    /// @param token       Completion token.
    /// @par Completion signature  `void(error_code, void*)`
    /// @par Executor              The handler's associated executor; it has work until then.
    ///                            REQUIRES: the handler has one, by a coroutine or bind_executor,
    ///                            or the token is `blocking`.
    /// @par Cancellation          total: nothing is allocated.
    /// @par Errors                errc::pool_exhausted (larger than the pool can ever serve),
    ///                            asio::error::operation_aborted, errno of a registration.
    template <class Token = boost::asio::deferred_t>
    auto async_allocate(std::size_t size_bytes, std::size_t alignment, Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code, void*)>(
            detail::initiation{
                boost::asio::system_executor{},
                []<class Handler>(
                    Handler handler, memory_pool* pool, std::size_t size, std::size_t align
                ) {
                    static_assert(
                        detail::runs_anywhere<Handler> ||
                            !std::same_as<
                                boost::asio::associated_executor_t<Handler>,
                                boost::asio::system_executor>,
                        "the handler needs an executor: use bind_executor"
                    );
                    boost::asio::any_io_executor const executor =
                        boost::asio::get_associated_executor(handler);
                    pool->start_allocate(
                        size, align, executor, detail::allocate_handler{std::move(handler)}
                    );
                }},
            token,
            this,
            size_bytes,
            alignment
        );
    }

    /// Registers chunks until `size_bytes` bytes are registered, in parallel.
    ///
    /// @throws boost::system::system_error: errc::pool_exhausted, and the errors of memory_region.
    void reserve(std::size_t size_bytes);
    /// Frees the blocks in the caches, and deregisters chunks without allocations. Returns the
    /// number of bytes that were deregistered.
    std::size_t release_unused() noexcept;

    /// The slice of memory that was allocated from this pool, for the first domain.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if the range is not inside one chunk
    ///                                     of the pool.
    mutable_slice slice_of(void const* memory, std::size_t size_bytes) const;
    /// The slice for one of the domains.
    ///
    /// @throws as above; errc::foreign_domain if the domain is not one of the pool's.
    mutable_slice slice_of(
        void const* memory, std::size_t size_bytes, protection_domain const& domain
    ) const;
    /// The range for a peer, with the rights of the pool, for the first domain.
    ///
    /// @throws as slice_of().
    remote_region remote_of(void const* memory, std::size_t size_bytes) const;

    /// A snapshot of the figures.
    memory_pool_statistics statistics() const;

private:
    void* do_allocate(std::size_t size_bytes, std::size_t alignment) override;
    void do_deallocate(void* memory, std::size_t size_bytes, std::size_t alignment) override;
    bool do_is_equal(std::pmr::memory_resource const& other) const noexcept override {
        return this == &other;
    }
    void start_allocate(
        std::size_t size_bytes,
        std::size_t alignment,
        boost::asio::any_io_executor const& executor,
        detail::allocate_handler handler
    );

    std::shared_ptr<detail::memory_pool_core> const core_;
};

}  // namespace rcverbs
