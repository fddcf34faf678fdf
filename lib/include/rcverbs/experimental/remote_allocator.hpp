// remote_allocator.hpp — memory that a peer lends to others. Experimental: it may change.
//
//     // The side with the memory:
//     region_offers mine{io};
//     remote_pool pool{mine, memory, {.peer_bytes_max = 64 << 20}};
//     region_channel server{io, std::move(asked), {.offers = mine}};
//     co_await server.async_accept(use_awaitable);
//
//     // The side that uses it:
//     remote_allocator heap{c};  // a region_channel
//     remote_allocation const a = co_await heap.async_allocate(1 << 20, use_awaitable);
//     co_await a.memory.async_write(0, page.slice(), use_awaitable);
//     co_await heap.async_share(a.memory, "log", use_awaitable);  // others find "shared/log"
//     co_await heap.async_free(a.memory, use_awaitable);
//
// A block belongs to the connection that allocated it, and is free again when that connection ends,
// however it ends; or, if it was allocated to be kept, when nobody has resumed it in time. What a
// connection may have is limited. Memory is zero when it is allocated, and nobody who had it before
// can access it.
//
// Built on region_channel.hpp, which has the keys. Threads: any thread may start operations; handlers
// run on the channel's executor by default.
#pragma once

#include <boost/asio/async_result.hpp>

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/experimental/region_channel.hpp>
#include <rcverbs/experimental/remote_memory.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/protection_domain.hpp>

namespace rcverbs {

namespace detail {

class offers_core;
class region_core;

}  // namespace detail

/// Options of a pool.
struct remote_pool_options {
    /// Bytes that one connection may have, in whole blocks of 4096 bytes or more. Empty: a quarter of
    /// the pool.
    std::optional<std::uint64_t> peer_bytes_max = {};
    /// Allocations of one connection. 1 to 65536.
    std::uint32_t peer_allocations_max = 256;
    /// How long an allocation that is to be kept waits for async_resume() after its connection has
    /// ended. Of 0 ms nothing is kept.
    std::chrono::milliseconds keep_time{0};
    /// Bytes that are kept, in whole blocks; what is more is freed. Empty: a quarter of the pool.
    std::optional<std::uint64_t> kept_bytes_max = {};
    /// A domain that connections share: placement_options::domain. The pool is registered in it once,
    /// and those connections get keys by memory windows, if the device checks the range of a window,
    /// which is tried. All other connections, and all if the device does not, get a registration for
    /// each allocation.
    protection_domain domain = {};
};

/// Counters of a pool.
struct remote_pool_statistics {
    /// Bytes that can be allocated.
    std::uint64_t free_bytes = 0;
    /// The largest block of them.
    std::uint64_t largest_free_bytes = 0;
    /// Bytes that wait for async_resume().
    std::uint64_t kept_bytes = 0;
    /// Blocks that are not free.
    std::size_t allocations = 0;
    /// True if connections of the options' domain get keys by memory windows.
    bool has_window_keys = false;
};

/// Memory that the peers of all channels with a list of offers can allocate from. A handle: copies
/// refer to the same pool.
///
/// Blocks are a power of two of block_bytes_min, at a multiple of their size from the beginning of the
/// memory. Threads: any.
class RCVERBS_EXPORT remote_pool {
public:
    using executor_type = boost::asio::any_io_executor;

    /// Bytes of the smallest block.
    static constexpr std::size_t block_bytes_min = 4096;

    /// No pool; only assignment and destruction are useful.
    remote_pool() noexcept;
    /// Makes a pool, and zeroes its memory.
    ///
    /// @param offers   Whose channels may allocate. It has no pool yet. Its executor zeroes what was
    ///                 freed, 1 MiB at a time.
    /// @param memory   Its address is a multiple of block_bytes_min, its size too, at most 8 TiB. The
    ///                 program's; neither freed nor moved until async_close() has completed, or the
    ///                 context of the list's executor is destroyed: blocks are zeroed after the end of
    ///                 the channels that had them.
    /// @param options  Limits, and the domain. With a domain it blocks until the device was tried: a
    ///                 few round trips, at most a second.
    /// @throws boost::system::system_error: errc::invalid_option; with a domain, also as
    ///         memory_region.
    remote_pool(
        region_offers const& offers,
        std::span<std::byte> memory,
        remote_pool_options const& options = {}
    );

    /// True unless default-constructed. All below REQUIRE it.
    bool is_valid() const noexcept { return list_ != nullptr; }
    /// The executor of the list of offers.
    executor_type get_executor() const;
    /// A snapshot of the counters.
    remote_pool_statistics statistics() const;

    /// Takes all memory back, and gives none any more.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`: no peer can access the memory any more.
    /// @par Cancellation          None: it completes within the withdraw_timeout of the list of
    ///                            offers, and the time that the connection of a silent peer needs
    ///                            to end.
    template <class Token = boost::asio::deferred_t>
    auto async_close(Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code)>(
            detail::initiation{
                get_executor(),
                [](auto handler, list_ptr const& list) {
                    start_close(list, detail::control_handler{std::move(handler)});
                }},
            token,
            list_
        );
    }

private:
    using list_ptr = std::shared_ptr<detail::offers_core>;
    static void start_close(list_ptr const& list, detail::control_handler handler);

    list_ptr list_;
};

/// Proves a right to memory that was kept. Whoever knows it can take the memory: keep it secret.
struct resume_token {
    std::array<std::byte, 16> bytes{};

    /// True if the memory is kept. False if the pool keeps nothing (keep_time 0).
    bool is_valid() const noexcept { return *this != resume_token{}; }
    friend bool operator==(resume_token const&, resume_token const&) = default;
};

/// What was allocated.
struct remote_allocation {
    /// As large as was asked for, and zero. Not valid if there was an error.
    remote_memory memory;
    /// Valid if the memory is kept.
    resume_token token;
    /// Bytes that this connection may still allocate, in whole blocks; also after
    /// channel_errc::quota_exceeded and channel_errc::pool_exhausted.
    std::uint64_t bytes_left = 0;
    /// Of the pool's largest free block, after these two errors.
    std::uint64_t largest_free_bytes = 0;
};

/// How memory is allocated.
struct allocate_options {
    /// Alignment of the address in the peer's memory, in bytes. A power of two.
    std::uint64_t alignment = 8;
    /// True: it outlives the connection, for async_resume().
    bool is_kept = false;
};

/// The members of basic_remote_allocator that do not depend on its executor type.
class RCVERBS_EXPORT remote_allocator_base {
public:
    /// What begins the name of shared memory, for async_find().
    static constexpr std::string_view shared_prefix = "shared/";

protected:
    using core_ptr = std::shared_ptr<detail::region_core>;
    using allocation_handler = detail::erased_handler<error_code, remote_allocation>;

    remote_allocator_base() noexcept = default;
    explicit remote_allocator_base(region_channel_base const& over) noexcept;
    core_ptr const& core() const noexcept { return core_; }

    static void start_allocate(
        core_ptr const& core,
        std::uint64_t bytes,
        allocate_options const& options,
        allocation_handler handler
    );
    static void start_resume(
        core_ptr const& core, resume_token const& key, allocation_handler handler
    );
    static void start_free(
        core_ptr const& core, remote_memory const& what, detail::control_handler handler
    );
    static void start_share(
        core_ptr const& core,
        remote_memory const& what,
        std::string const& name,
        detail::control_handler handler
    );

private:
    core_ptr core_;
};

/// Allocates from the pool of a channel's peer. A handle of the channel, which it does not keep open.
///
/// Outstanding operations: any number.
template <class Executor = boost::asio::any_io_executor>
class basic_remote_allocator : public remote_allocator_base {
    using base = remote_allocator_base;

public:
    using executor_type = Executor;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_remote_allocator<Other>;
    };

    /// Of no channel; only assignment and destruction are useful.
    basic_remote_allocator() noexcept = default;
    /// Of this channel. REQUIRES: it is not default-constructed.
    explicit basic_remote_allocator(basic_region_channel<Executor> const& over)
        : base{over},
          executor_{over.get_executor()} {}

    /// The channel's executor.
    executor_type get_executor() const noexcept { return executor_.get(); }

    /// Allocates memory of the peer.
    ///
    /// @param bytes    How much. Above 0.
    /// @param options  Alignment, and whether it is kept.
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code, remote_allocation)`
    /// @par Cancellation          None, so that no memory is lost.
    /// @par Errors                channel_errc::quota_exceeded, channel_errc::pool_exhausted,
    ///                            channel_errc::no_pool, the peer's errno if it could not register
    ///                            the memory (EINVAL: the address of its memory has not this
    ///                            alignment), errc::invalid_option, channel_errc::version_mismatch,
    ///                            and those of request_channel::async_request().
    template <class Token = detail::default_token_t<Executor>>
    auto async_allocate(
        std::uint64_t bytes, allocate_options const& options, Token&& token = Token{}
    ) const {
        return initiate<error_code, remote_allocation>(
            [bytes, options](core_ptr const& core, allocation_handler handler) {
                base::start_allocate(core, bytes, options, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }
    /// The same with default options.
    ///
    /// @param bytes  As above.
    /// @param token  As above.
    template <class Token = detail::default_token_t<Executor>>
    requires(!std::convertible_to<Token, allocate_options>) auto async_allocate(
        std::uint64_t bytes, Token&& token = Token{}
    ) const {
        return async_allocate(bytes, allocate_options{}, std::forward<Token>(token));
    }
    /// Takes memory that was kept, from a connection that has ended, or from one that still has it:
    /// that one loses it.
    ///
    /// @param key    Of the allocation.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, remote_allocation)`: with what was written to it.
    /// @par Cancellation          None.
    /// @par Errors                channel_errc::no_such_allocation (also if its time was over), errno
    ///                            EBUSY (it was taken from this connection, whose operations are still
    ///                            under way: try again), and
    ///                            those of async_allocate().
    template <class Token = detail::default_token_t<Executor>>
    auto async_resume(resume_token const& key, Token&& token = Token{}) const {
        return initiate<error_code, remote_allocation>(
            [key](core_ptr const& core, allocation_handler handler) {
                base::start_resume(core, key, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }
    /// Frees memory: operations that are started later are refused, those under way complete first,
    /// and other peers that have it, because it was shared, are asked to stop.
    ///
    /// @param what   Of async_allocate() or async_resume() of this channel.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`: the memory is zero and free.
    /// @par Cancellation          None.
    /// @par Errors                channel_errc::no_such_allocation, and those of
    ///                            request_channel::async_request().
    template <class Token = detail::default_token_t<Executor>>
    auto async_free(remote_memory const& what, Token&& token = Token{}) const {
        return initiate<error_code>(
            [what](core_ptr const& core, detail::control_handler handler) {
                base::start_free(core, what, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }
    /// Lets other peers of the pool's owner use the memory, with all rights: they find it as
    /// `shared/name`, until it is free. An allocation has one such name.
    ///
    /// @param what   As for async_free().
    /// @param name   1 to region_offers::name_bytes_max bytes, less those of shared_prefix.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          None.
    /// @par Errors                boost::system::errc::file_exists (the name, or the allocation has
    ///                            one), channel_errc::no_such_allocation, errc::invalid_option (the
    ///                            name), and those of request_channel::async_request().
    template <class Token = detail::default_token_t<Executor>>
    auto async_share(remote_memory const& what, std::string_view name, Token&& token = Token{})
        const {
        return initiate<error_code>(
            [what, called = std::string{name}](
                core_ptr const& core, detail::control_handler handler
            ) { base::start_share(core, what, called, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

private:
    template <class... Arguments, class Start, class Token>
    auto initiate(Start start, Token&& token) const {
        return protocol::initiate<Arguments...>(
            get_executor(), core(), std::move(start), std::forward<Token>(token)
        );
    }

    detail::stored_executor<Executor> executor_;
};

template <class Executor>
basic_remote_allocator(basic_region_channel<Executor> const&) -> basic_remote_allocator<Executor>;

/// With executors of any type.
using remote_allocator = basic_remote_allocator<>;

}  // namespace rcverbs
