// remote_memory.hpp — memory of the peer that is there by agreement. Experimental: it may change.
//
//     remote_memory table = co_await c.async_find("table", use_awaitable);  // region_channel.hpp
//     co_await table.async_read(4096, page.slice(), use_awaitable);
//     remote_array<std::uint64_t> counters{table};
//     std::uint64_t const before = co_await counters.async_fetch_add(7, 1, use_awaitable);
//
// The owner can take the memory back at any time: operations that are started afterwards are refused,
// and those that were started before complete, before the owner may use the memory for anything else.
// So no operation meets a key that is not valid any more, if both sides use this library.
//
// The memory may be registered in pieces, each with a key of its own; an operation across a border is
// split and completes once.
//
// Threads: any thread may start operations; handlers run on the channel's executor by default, one at
// a time with the others of its connection.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/deferred.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/detail/operation.hpp>
#include <rcverbs/detail/start.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/slice.hpp>

namespace rcverbs {

namespace detail {

class memory_core;

}  // namespace detail

/// Memory of the peer. A handle: copies refer to the same memory, and the last one that is destroyed
/// gives it back to its owner.
///
/// Outstanding operations: any number.
class RCVERBS_EXPORT remote_memory {
public:
    using executor_type = boost::asio::any_io_executor;

    /// No memory; is_valid() is false.
    remote_memory() noexcept;
    remote_memory(remote_memory const& other) noexcept;
    remote_memory(remote_memory&& other) noexcept;
    remote_memory& operator=(remote_memory const& other) noexcept;
    remote_memory& operator=(remote_memory&& other) noexcept;
    ~remote_memory();

    /// True if there is memory, withdrawn or not.
    bool is_valid() const noexcept { return core_ != nullptr; }
    /// The size in bytes. This and all below REQUIRE is_valid().
    std::uint64_t size() const noexcept;
    /// What the owner allows: any of remote_read, remote_write and remote_atomic.
    access_flags rights() const noexcept;
    /// True once the owner has taken the memory back, or the connection has ended.
    bool is_withdrawn() const noexcept;
    /// The channel's executor.
    executor_type get_executor() const noexcept;

    /// Bytes that can be accessed without asking the owner first: those of the pieces that it has
    /// registered for this side. At first those whose keys came with the answer; none, if the owner
    /// has region_offers_options::register_on. 0 once is_withdrawn().
    std::uint64_t ready_bytes() const noexcept;

    /// Asks the owner to register all pieces of a part ahead, so that no access to it has to wait for
    /// that. ready_bytes() says meanwhile how far that is.
    ///
    /// @param offset_bytes  Where the part begins.
    /// @param size_bytes    Its size.
    /// @param token         Completion token.
    /// @par Completion signature  `void(error_code)`: the whole part is ready.
    /// @par Cancellation          total: no more pieces are asked for. What is ready remains so.
    /// @par Errors                errc::out_of_range, channel_errc::region_withdrawn,
    ///                            errc::not_connected (the connection has ended), the owner's errno
    ///                            (region_channel::peer_refusal() has the limit that it has met; the
    ///                            pieces before are ready and can be used), and those of
    ///                            request_channel::async_request().
    template <class Token = boost::asio::deferred_t>
    auto async_prepare(
        std::uint64_t offset_bytes, std::uint64_t size_bytes, Token&& token = Token{}
    ) const {
        return detail::initiate_checked<Token, void(error_code)>(
            detail::initiation{
                get_executor(),
                [](auto handler, core_ptr const& core, std::uint64_t offset, std::uint64_t size) {
                    start_prepare(core, offset, size, detail::control_handler{std::move(handler)});
                }},
            token,
            core_,
            offset_bytes,
            size_bytes
        );
    }

    /// Reads into local memory.
    ///
    /// @param offset_bytes  Where to begin.
    /// @param target        As many bytes, registered with local_write in the connection's domain.
    /// @param token         Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_read)`
    /// @par Cancellation          None. Closing the channel ends it.
    /// @par Errors                errc::out_of_range, errc::access_denied, channel_errc::region_withdrawn,
    ///                            errc::not_connected (the connection has ended): nothing was posted. Those of connection::async_read, and of
    ///                            request_channel::async_request if a piece had no key yet: then all
    ///                            of the target is undefined if the memory has several pieces, and no
    ///                            part is tried again.
    template <class Token = boost::asio::deferred_t>
    auto async_read(
        std::uint64_t offset_bytes, mutable_slices const& target, Token&& token = Token{}
    ) const {
        return initiate<detail::bytes_result, Token>(
            token, offset_bytes, {detail::operation_kind::read, detail::access::list_of(target)}
        );
    }
    /// Writes from local memory.
    ///
    /// @param offset_bytes  Where to begin.
    /// @param source        The bytes, registered in the connection's domain.
    /// @param token         Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_written)`: the peer's device
    ///                            has them.
    /// @par Cancellation          As for async_read().
    /// @par Errors                As for async_read(); after an error part of the bytes may be written.
    template <class Token = boost::asio::deferred_t>
    auto async_write(
        std::uint64_t offset_bytes, const_slices const& source, Token&& token = Token{}
    ) const {
        return initiate<detail::bytes_result, Token>(
            token, offset_bytes, {detail::operation_kind::write, detail::access::list_of(source)}
        );
    }
    /// Adds to an 8-byte cell, atomically, and returns the old value.
    ///
    /// @param offset_bytes  Where the cell is; its address must be a multiple of 8.
    /// @param add           The number to add, modulo 2^64. The cell is in the owner's byte order.
    /// @param token         Completion token.
    /// @par Completion signature  `void(error_code, std::uint64_t before)`
    /// @par Cancellation          As for async_read().
    /// @par Errors                As for async_read(), and those of connection::async_fetch_add.
    template <class Token = boost::asio::deferred_t>
    auto async_fetch_add(std::uint64_t offset_bytes, std::uint64_t add, Token&& token = Token{})
        const {
        detail::work_request what{detail::operation_kind::fetch_add, {}};
        what.operand = add;
        return initiate<detail::word_result, Token>(token, offset_bytes, what);
    }
    /// Replaces an 8-byte cell by `desired` if it has the value `expected`, atomically, and returns the
    /// old value.
    ///
    /// @param offset_bytes  As for async_fetch_add().
    /// @param expected      The value to compare with.
    /// @param desired       The value to store.
    /// @param token         Completion token.
    /// @par Completion signature  `void(error_code, std::uint64_t before)`
    /// @par Cancellation          As for async_read().
    /// @par Errors                As for async_fetch_add().
    template <class Token = boost::asio::deferred_t>
    auto async_compare_swap(
        std::uint64_t offset_bytes,
        std::uint64_t expected,
        std::uint64_t desired,
        Token&& token = Token{}
    ) const {
        detail::work_request what{detail::operation_kind::compare_swap, {}};
        what.operand = expected;
        what.swap = desired;
        return initiate<detail::word_result, Token>(token, offset_bytes, what);
    }

    /// True if both refer to the same memory.
    friend bool operator==(remote_memory const&, remote_memory const&) = default;

private:
    friend class detail::memory_core;
    using core_ptr = std::shared_ptr<detail::memory_core>;
    // The number is the bytes of a read or write, and the old value of an atomic.
    using data_handler = detail::erased_handler<error_code, std::uint64_t>;

    // Of an operation that was posted at once, with its handler.
    template <class Handler>
    struct posted {
        core_ptr core;
        Handler handler;

        using allocator_type = boost::asio::associated_allocator_t<Handler>;
        allocator_type get_allocator() const noexcept {
            return boost::asio::get_associated_allocator(handler);
        }
        template <class Result>
        void operator()(error_code ec, Result result) {
            leave(core);
            std::move(handler)(ec, result);
        }
    };

    explicit remote_memory(core_ptr core) noexcept;

    static void start_prepare(
        core_ptr const& core,
        std::uint64_t offset,
        std::uint64_t size,
        detail::control_handler handler
    );

    template <class Reader, class Token>
    auto initiate(
        std::remove_reference_t<Token>& token,
        std::uint64_t offset,
        detail::work_request const& what
    ) const {
        using result = decltype(Reader{}(detail::outcome{}));
        return detail::initiate_checked<Token, void(error_code, result)>(
            detail::initiation_of<executor_type>(
                connection_of(core_),
                [](auto handler, core_ptr const& core, std::uint64_t at, detail::work_request wanted
                ) { start<Reader>(core, at, wanted, std::move(handler)); }
            ),
            token,
            core_,
            offset,
            what
        );
    }
    // A handler that runs on the connection's executor costs least: it is stored with the operation.
    template <class Reader, class Handler>
    static void start(
        core_ptr const& core, std::uint64_t offset, detail::work_request& what, Handler handler
    ) {
        if (!runs_on(handler, detail::executor_of(*connection_of(core))))
            return start(core, offset, what, data_handler{std::move(handler)});
        posted<Handler> whole{core, std::move(handler)};
        if (start_now(core, offset, what, detail::offer<Reader>(std::move(whole)))) return;
        start(core, offset, what, data_handler{std::move(whole.handler)});
    }
    template <class Handler>
    static bool runs_on(Handler const& handler, executor_type const& io) noexcept {
        if (!io) return false;  // the context is gone
        if constexpr (detail::operation::has_no_executor<Handler>) {
            return true;
        } else if constexpr (std::is_base_of_v<
                                 executor_type,
                                 boost::asio::associated_executor_t<Handler, executor_type>>) {
            return boost::asio::get_associated_executor(handler, io) == io;
        } else {
            auto const own = boost::asio::get_associated_executor(handler, io);
            auto const* const same = io.target<std::remove_const_t<decltype(own)>>();
            return same != nullptr && *same == own;
        }
    }

    static detail::connection_core const* connection_of(core_ptr const& core) noexcept;
    static void leave(core_ptr const& core) noexcept;
    // False, and nothing is changed, unless it can be posted at once.
    static bool start_now(
        core_ptr const& core,
        std::uint64_t offset,
        detail::work_request& what,
        detail::handler_source source
    );
    static void start(
        core_ptr const& core, std::uint64_t offset, detail::work_request& what, data_handler handler
    );

    core_ptr core_;
};

/// True for the types that a remote_array may have: those whose bytes are their value. A class with a
/// floating-point member has no padding for the compiler to find; specialise this for it.
template <class T>
inline constexpr bool is_remote_value = std::is_trivially_copyable_v<T> &&
                                        (std::has_unique_object_representations_v<T> ||
                                         std::is_floating_point_v<T>);

/// Memory of the peer as an array of T. Values are in the owner's byte order, and both sides must have
/// the same T.
template <class T>
requires is_remote_value<T>
class remote_array {
public:
    using value_type = T;

    /// No memory.
    remote_array() noexcept = default;
    /// Of all the memory; what is left over at its end is not used.
    explicit remote_array(remote_memory memory) noexcept : memory_{std::move(memory)} {}

    /// Number of elements. REQUIRES: memory().is_valid().
    std::uint64_t size() const noexcept { return memory_.size() / sizeof(T); }
    /// The memory.
    remote_memory const& memory() const noexcept { return memory_; }

    /// Reads elements from the one numbered `first` on, as many as `target` has room for.
    ///
    /// @param first   Number of the first element.
    /// @param target  Whole elements; as for remote_memory::async_read().
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_read)`
    /// @par Errors                As for remote_memory::async_read().
    template <class Token = boost::asio::deferred_t>
    auto async_read(std::uint64_t first, mutable_slices const& target, Token&& token = Token{})
        const {
        return memory_.async_read(offset_of(first), target, std::forward<Token>(token));
    }
    /// Writes elements from the one numbered `first` on.
    ///
    /// @param first   Number of the first element.
    /// @param source  Whole elements; as for remote_memory::async_write().
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_written)`
    /// @par Errors                As for remote_memory::async_write().
    template <class Token = boost::asio::deferred_t>
    auto async_write(std::uint64_t first, const_slices const& source, Token&& token = Token{})
        const {
        return memory_.async_write(offset_of(first), source, std::forward<Token>(token));
    }
    /// As remote_memory::async_fetch_add(), for elements of 8 bytes.
    ///
    /// @param index  Number of the element.
    /// @param add    As there.
    /// @param token  Completion token.
    template <class Token = boost::asio::deferred_t>
    requires(std::is_unsigned_v<T> && sizeof(T) == 8) auto async_fetch_add(
        std::uint64_t index, std::uint64_t add, Token&& token = Token{}
    ) const {
        return memory_.async_fetch_add(offset_of(index), add, std::forward<Token>(token));
    }
    /// As remote_memory::async_compare_swap(), for elements of 8 bytes.
    ///
    /// @param index     Number of the element.
    /// @param expected  As there.
    /// @param desired   As there.
    /// @param token     Completion token.
    template <class Token = boost::asio::deferred_t>
    requires(std::is_unsigned_v<T> && sizeof(T) == 8) auto async_compare_swap(
        std::uint64_t index, std::uint64_t expected, std::uint64_t desired, Token&& token = Token{}
    ) const {
        return memory_.async_compare_swap(
            offset_of(index), expected, desired, std::forward<Token>(token)
        );
    }

private:
    // Beyond every memory if the product overflows.
    static constexpr std::uint64_t offset_of(std::uint64_t index) noexcept {
        constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
        return index > most / sizeof(T) ? most : index * sizeof(T);
    }

    remote_memory memory_;
};

}  // namespace rcverbs
