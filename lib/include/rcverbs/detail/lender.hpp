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

/// The members of a pool that do not depend on its executor type.
template <class Lease>
class lender_base {
public:
    /// Takes one if one is free and nobody waits; else the lease is not valid.
    Lease try_acquire() noexcept;
    /// Takes one, and blocks the thread until one is free. Not for threads on which leases are
    /// returned, nor for a connection's own.
    ///
    /// @throws boost::system::system_error (asio::error::operation_aborted): closed.
    Lease acquire();

    /// Cancels all waits, blocking ones included: they end with asio::error::operation_aborted.
    void cancel() noexcept;
    /// Cancels all waits and lends no more. Leases remain valid. Idempotent.
    void close() noexcept;

    /// How many are free at this moment.
    std::uint32_t free_count() const noexcept;
    /// Callers that wait at this moment.
    std::size_t waiting_count() const noexcept;

protected:
    explicit lender_base(std::shared_ptr<lending<Lease>> pool) noexcept : pool_{std::move(pool)} {}
    lender_base(lender_base&&) noexcept = default;
    lender_base& operator=(lender_base&& other) noexcept {
        if (this != &other) {
            close();
            pool_ = std::move(other.pool_);
        }
        return *this;
    }
    ~lender_base() { close(); }

    static void start_acquire(lending<Lease>& from, lease_handler<Lease> handler);

    std::shared_ptr<lending<Lease>> pool_;
};

/// A pool that lends what it has, one holder at a time, in the order of the calls. `Base` is derived
/// from lender_base<Lease>.
///
/// Outstanding operations: any number.
template <class Base, class Lease, class Executor>
class basic_lender : public Base {
public:
    using executor_type = Executor;

    basic_lender(basic_lender&&) noexcept = default;
    /// Closes the pool that it had.
    basic_lender& operator=(basic_lender&&) noexcept = default;
    /// Closes. Leases remain valid.
    ~basic_lender() = default;

    /// Takes one, and waits until one is free.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, Lease)`
    /// @par Cancellation          total: nothing is taken.
    /// @par Errors                asio::error::operation_aborted: cancelled, or closed.
    template <class Token = default_token_t<Executor>>
    auto async_acquire(Token&& token = Token{}) {
        return initiate_checked<Token, void(error_code, Lease)>(
            initiation{
                executor_,
                [](auto handler, std::shared_ptr<lending<Lease>> const& from) {
                    Base::start_acquire(*from, lease_handler<Lease>{std::move(handler)});
                }},
            token,
            this->pool_
        );
    }

    /// The executor that calls handlers without an associated executor.
    executor_type get_executor() const noexcept { return executor_; }

protected:
    /// @param executor   Of the pool.
    /// @param arguments  Of the constructor of `Base`.
    template <class... Arguments>
    explicit basic_lender(Executor executor, Arguments&&... arguments)
        : Base{std::forward<Arguments>(arguments)...},
          executor_{std::move(executor)} {}

private:
    Executor executor_;
};

}  // namespace rcverbs::detail
