// lender.hpp — what slot pools and window pools have in common: waiting for one of several things,
// and the lease of it. Internal.
#pragma once

#include <boost/asio/async_result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs::detail {

// What is lent, by whom; defined by the compiled part of the library.
template <class Lease>
class lending;

template <class Lease>
using lease_handler = erased_handler<error_code, Lease>;

// The compiled part of a pool.
template <class Lease>
struct lending_calls {
    static void start_acquire(lending<Lease>& from, lease_handler<Lease> handler);
    static Lease try_acquire(lending<Lease>& from) noexcept;
    static Lease acquire(lending<Lease>& from, error_code& ec);
    static void cancel(lending<Lease>& from) noexcept;
    static void close(lending<Lease>& from) noexcept;
    static std::uint32_t free_count(lending<Lease> const& from) noexcept;
    static std::size_t waiting_count(lending<Lease> const& from) noexcept;
};

/// A pool that lends what it has, one holder at a time, in the order of the calls.
///
/// Outstanding operations: any number.
template <class Lease, class Executor>
class basic_lender {
    using calls = lending_calls<Lease>;

public:
    using executor_type = Executor;

    basic_lender(basic_lender&&) noexcept = default;
    /// Closes the pool that it had.
    basic_lender& operator=(basic_lender&& other) noexcept {
        if (this != &other) {
            close();
            pool_ = std::move(other.pool_);
            executor_ = std::move(other.executor_);
        }
        return *this;
    }
    /// Closes. Leases remain valid.
    ~basic_lender() { close(); }

    /// Takes one, and waits until one is free.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, Lease)`
    /// @par Cancellation          total: nothing is taken.
    /// @par Errors                asio::error::operation_aborted: cancelled, or closed.
    template <class Token = default_token_t<Executor>>
    auto async_acquire(Token&& token = Token{}) {
        return boost::asio::async_initiate<Token, void(error_code, Lease)>(
            initiation{
                executor_,
                [](auto handler, std::shared_ptr<lending<Lease>> const& from) {
                    calls::start_acquire(*from, lease_handler<Lease>{std::move(handler)});
                }},
            token,
            pool_
        );
    }
    /// Takes one if one is free and nobody waits; else the lease is not valid.
    Lease try_acquire() noexcept { return calls::try_acquire(*pool_); }
    /// Takes one, and blocks the thread until one is free. Not for threads on which leases are
    /// returned, nor for a connection's own.
    ///
    /// @throws boost::system::system_error (asio::error::operation_aborted): closed.
    Lease acquire() {
        error_code ec;
        Lease lease = calls::acquire(*pool_, ec);
        if (ec) throw boost::system::system_error{ec, "acquire"};
        return lease;
    }

    /// Cancels all waits, blocking ones included: they end with asio::error::operation_aborted.
    void cancel() noexcept {
        if (pool_ != nullptr) calls::cancel(*pool_);
    }
    /// Cancels all waits and lends no more. Leases remain valid. Idempotent.
    void close() noexcept {
        if (pool_ != nullptr) calls::close(*pool_);
    }

    /// How many are free at this moment.
    std::uint32_t free_count() const noexcept { return calls::free_count(*pool_); }
    /// Callers that wait at this moment.
    std::size_t waiting_count() const noexcept { return calls::waiting_count(*pool_); }
    /// The executor that calls handlers without an associated executor.
    executor_type get_executor() const noexcept { return executor_; }

protected:
    basic_lender(std::shared_ptr<lending<Lease>> pool, Executor executor) noexcept
        : pool_{std::move(pool)},
          executor_{std::move(executor)} {}

    std::shared_ptr<lending<Lease>> pool_;

private:
    Executor executor_;
};

}  // namespace rcverbs::detail
