// window.hpp — keys that open a range of memory to one peer, for as long as the program wants.
//
//     memory_region all{c.domain(), pages, access_flags::local_write | access_flags::bind_windows};
//     window w{c};
//     remote_region const page = co_await w.async_bind(
//         all.slice(0, 4096), access_flags::remote_read, use_awaitable);
//     co_await ask_peer_to_read(c, page);
//     co_await w.async_invalidate(use_awaitable);
//
// A memory window has a key of its own for a part of a region. Binding it and invalidating it are
// work requests, whose cost does not depend on the size, where registering memory pins its pages.
// The region itself needs no remote right: a peer has access to the bound range only, and only
// until the key is invalidated. An access with an invalidated key ends the peer's connection.
//
// Bindings and invalidations are operations like others: op::bind() and op::invalidate() are their
// values, for connection::try_start() and batches of several windows.
//
// A window belongs to one connection, and its keys work on that connection alone. A window has one
// operation at a time, by one thread at a time. It must outlive its operation, and the region must
// outlive the binding. SoftRoCE (Linux 6.1) checks the rights of a window but not its range: see
// docs/guides/memory.md.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs {

namespace detail {

class window_core;

// The region of a binding that has completed.
RCVERBS_EXPORT remote_region bound_region(outcome const& o) noexcept;

struct exposed_result {
    remote_region operator()(outcome const& o) const noexcept { return bound_region(o); }
};

}  // namespace detail

/// The members of basic_window that do not depend on its executor type.
class RCVERBS_EXPORT window_base {
public:
    /// True if it has a window.
    bool is_valid() const noexcept { return core_ != nullptr; }
    /// True if a binding has succeeded and no invalidation since. REQUIRES: is_valid().
    bool is_bound() const noexcept;
    /// The range, for the peer. Valid for use by the peer once async_bind() has completed, or for
    /// any message that is sent after async_bind() was started: both are processed in order.
    /// REQUIRES: is_valid().
    remote_region remote() const noexcept;
    /// Records that the peer has invalidated the key by async_send_with_invalidate(): the window
    /// may be bound again. The message's receive_result::invalidated has the key, where the device
    /// reports it; SoftRoCE does not. REQUIRES: is_valid().
    void mark_invalidated() noexcept;

protected:
    window_base() noexcept = default;
    explicit window_base(std::shared_ptr<detail::connection_core> const& on);
    window_base(std::shared_ptr<detail::connection_core> const& on, error_code& ec);
    window_base(window_base&&) noexcept = default;
    window_base& operator=(window_base&&) noexcept = default;
    ~window_base() = default;

    static std::shared_ptr<detail::connection_core> const& connection_of(
        detail::window_core const& w
    ) noexcept;

    std::shared_ptr<detail::window_core> core_;

private:
    friend struct detail::access;
};

/// True if the device refuses an access beyond the range of a memory window, inside its region. It is
/// tried: two queue pairs of this process write into a window of half a region, and beyond it. Where
/// it is false a key of a window opens its whole region, as on SoftRoCE of Linux 6.1. False also if the
/// device has no windows, or the trial could not be made.
///
/// Blocks for a few round trips, at most a second.
///
/// @param on  A domain of the device. REQUIRES: it is open.
RCVERBS_EXPORT bool checks_window_range(protection_domain const& on) noexcept;

namespace op {

/// The binding of a window.
class bind_t : public send_queue_operation {
public:
    /// The range, for the peer. Empty in a batch: ask the window.
    using result_type = remote_region;

private:
    friend struct detail::access;
    using reader = detail::exposed_result;
    template <class Make>
    explicit bind_t(Make const& make) noexcept : send_queue_operation{make} {}
};

/// The invalidation of a window's key.
class invalidate_t : public send_queue_operation {
public:
    /// Nothing.
    using result_type = void;

private:
    friend struct detail::access;
    using reader = detail::no_result;
    template <class Make>
    explicit invalidate_t(Make const& make) noexcept : send_queue_operation{make} {}
};

/// Opens a range to the peer: see basic_window::async_bind(). For the connection that the window
/// belongs to; the value must not outlive the window.
///
/// @param w       A window. REQUIRES: w.is_valid().
/// @param range   A slice of a region with bind_windows.
/// @param rights  The peer's.
RCVERBS_EXPORT bind_t
bind(window_base const& w, mutable_slice const& range, access_flags rights) noexcept;

/// Invalidates a window's key: see basic_window::async_invalidate(). As bind().
///
/// @param w  A window. REQUIRES: w.is_valid().
RCVERBS_EXPORT invalidate_t invalidate(window_base const& w) noexcept;

}  // namespace op

/// A memory window of type 2.
///
/// Outstanding operations: one.
template <class Executor = boost::asio::any_io_executor>
class basic_window : public window_base {
public:
    using executor_type = Executor;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_window<Other>;
    };

    /// No window; is_valid() is false.
    basic_window() noexcept = default;
    /// Allocates a window of this connection, which must have a queue pair: after async_resolve(),
    /// or on the accepting side.
    ///
    /// @throws boost::system::system_error: errc::windows_unsupported (the device has none of type
    ///         2), errc::not_connected, errno ENOMEM (the device's windows are used up).
    template <class Other>
    requires std::convertible_to<Other, Executor>
    explicit basic_window(basic_connection<Other> const& on)
        : window_base{detail::access::core_of(on)} {}
    /// The same; on failure is_valid() is false, and `ec` has one of the errors above.
    template <class Other>
    requires std::convertible_to<Other, Executor> basic_window(
        basic_connection<Other> const& on, error_code& ec
    )
        : window_base{detail::access::core_of(on), ec} {}
    basic_window(basic_window&&) noexcept = default;
    /// Frees the window that it had.
    basic_window& operator=(basic_window&&) noexcept = default;
    /// Frees the window. If it is bound, its key is invalid afterwards. REQUIRES: no operation of
    /// it is outstanding.
    ~basic_window() = default;

    /// The connection's executor. REQUIRES: is_valid().
    executor_type get_executor() const noexcept {
        return detail::recovered<Executor>(detail::executor_of(*connection_of(*core_)));
    }

    /// Opens a range to the peer, with a new key.
    ///
    /// @param range   A slice of a memory_region, registered_buffer or pool with bind_windows. It must stay
    ///                registered until the key is invalid.
    /// @param rights  Any of remote_read, remote_write, remote_atomic; the last two need a region
    ///                with local_write.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, remote_region)`
    /// @par Ordering              Posted and completed in order with sends, reads and writes.
    /// @par Cancellation          As async_send().
    /// @par Errors                errc::window_bound (it is bound already),
    ///                            errc::operation_in_progress, errc::access_denied,
    ///                            errc::region_gone, errc::foreign_domain, errc::out_of_range (an
    ///                            empty range), errc::queue_full, errc::not_connected,
    ///                            wc_errc::memory_window_bind, wc_errc::flushed,
    ///                            asio::error::operation_aborted.
    template <class Token = detail::default_token_t<Executor>>
    auto async_bind(mutable_slice range, access_flags rights, Token&& token = Token{}) {
        return detail::initiate<Executor>(
            connection_of(*core_), op::bind(*this, range, rights), std::forward<Token>(token)
        );
    }

    /// Invalidates the key. Accesses of the peer that arrive later fail, and end the connection.
    /// Its earlier reads and writes stay valid. Once this has completed, the range may be used for
    /// other purposes.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Ordering              As async_bind().
    /// @par Cancellation          As async_send().
    /// @par Errors                errc::window_unbound, errc::operation_in_progress,
    ///                            errc::queue_full, errc::not_connected, wc_errc::flushed,
    ///                            asio::error::operation_aborted. After the end of the connection
    ///                            its keys are invalid.
    template <class Token = detail::default_token_t<Executor>>
    auto async_invalidate(Token&& token = Token{}) {
        return detail::initiate<Executor>(
            connection_of(*core_), op::invalidate(*this), std::forward<Token>(token)
        );
    }

private:
    friend struct detail::access;

    // Of a connection that the library knows.
    explicit basic_window(std::shared_ptr<detail::connection_core> const& on) : window_base{on} {}
};

template <class Executor>
basic_window(basic_connection<Executor> const&) -> basic_window<Executor>;

/// With executors of any type.
using window = basic_window<>;

}  // namespace rcverbs
