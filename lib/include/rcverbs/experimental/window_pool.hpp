// window_pool.hpp — memory windows of one connection, lent for one request each.
//
//     window_pool windows{c, {.windows = 64}};
//     window_lease lease = co_await windows.async_acquire(use_awaitable);
//     remote_region const page = co_await lease->async_bind(
//         pages.slice(0, 4096), access_flags::remote_read, use_awaitable);
//     co_await reply_to(c, page);
//     co_await lease->async_invalidate(use_awaitable);  // now the page may change
//
// Windows are a limited resource of the device, and allocating one is a system call: a pool
// allocates them once. A lease that is dropped while its window is bound, by an exception for
// example, frees the window, which makes its key invalid at once, and allocates another. That is
// two system calls, so invalidate windows in the usual course of things.
//
// Waiting is first come, first served. Threads: any thread may acquire and release; construction,
// moves and destruction need the owner.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <rcverbs/connection.hpp>
#include <rcverbs/detail/lender.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/runs_on.hpp>
#include <rcverbs/window.hpp>

namespace rcverbs {

namespace detail {

class window_pool_core;

}  // namespace detail

/// Size of a window pool.
struct window_pool_options {
    /// Number of windows. 1 to 65536, and as many as the device has.
    std::uint32_t windows = 64;
};

/// The right to use one window; returns the window when it is destroyed.
///
/// One thread at a time uses it. REQUIRES: no operation of the window is outstanding when the lease
/// is destroyed or released.
class RCVERBS_EXPORT window_lease {
public:
    /// No window; is_valid() is false.
    window_lease() noexcept;
    window_lease(window_lease&& other) noexcept;
    /// Returns its own window first.
    window_lease& operator=(window_lease&& other) noexcept;
    /// Returns the window.
    ~window_lease();

    /// True if it has a window.
    bool is_valid() const noexcept { return pool_ != nullptr; }
    /// The window. REQUIRES: is_valid().
    window& get() const noexcept { return *window_; }
    /// The same.
    window* operator->() const noexcept { return window_; }
    /// Returns the window now; is_valid() is false afterwards.
    void release() noexcept;

private:
    friend class detail::window_pool_core;
    friend class detail::lending<window_lease>;
    window_lease(
        std::shared_ptr<detail::window_pool_core> pool, window& lent, std::uint32_t index
    ) noexcept;
    void disarm() noexcept;

    std::shared_ptr<detail::window_pool_core> pool_;
    window* window_ = nullptr;
    std::uint32_t index_ = 0;
};

namespace detail {

extern template class RCVERBS_EXPORT lender_base<window_lease>;

}  // namespace detail

/// The members of basic_window_pool that do not depend on its executor type.
class RCVERBS_EXPORT window_pool_base : public detail::lender_base<window_lease> {
protected:
    window_pool_base(
        detail::place const& where,
        std::shared_ptr<detail::connection_core> const& on,
        window_pool_options const& options
    );
    window_pool_base(window_pool_base&&) noexcept = default;
    window_pool_base& operator=(window_pool_base&&) noexcept = default;
    ~window_pool_base() = default;
};

/// A pool of memory windows of one connection.
///
/// Outstanding operations: any number; they get windows in the order of the calls.
template <class Executor = boost::asio::any_io_executor>
class basic_window_pool : public detail::basic_lender<window_pool_base, window_lease, Executor> {
    using base = detail::basic_lender<window_pool_base, window_lease, Executor>;

public:
    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_window_pool<Other>;
    };

    /// Allocates the windows.
    ///
    /// @param on       The connection, which must have a queue pair: after async_resolve(), or on
    ///                 the accepting side. Its executor calls handlers that have none.
    /// @param options  How many.
    /// @throws boost::system::system_error: errc::invalid_option, and the errors of window.
    explicit basic_window_pool(
        basic_connection<Executor> const& on, window_pool_options const& options = {}
    )
        : base{
              on.get_executor(),
              detail::place{detail::erase(on.get_executor()), nullptr},
              detail::access::core_of(on),
              options} {}
};

template <class Executor>
basic_window_pool(basic_connection<Executor> const&) -> basic_window_pool<Executor>;
template <class Executor>
basic_window_pool(basic_connection<Executor> const&, window_pool_options const&)
    -> basic_window_pool<Executor>;

/// With executors of any type.
using window_pool = basic_window_pool<>;

}  // namespace rcverbs
