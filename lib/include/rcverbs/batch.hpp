// batch.hpp — several operations that are posted as one list and complete as one.
//
//     batch b{c};
//     for (std::size_t i = 0; i < from.size(); ++i) b.add(op::write(from[i], to[i]));
//     co_await b.async_submit(use_awaitable);
//
// A batch costs one doorbell and one completion, which makes it the cheapest way to move many small
// pieces. Only the last request is signaled, as long as the batch fills at most half of the send
// queue; of a longer batch, the requests without a free place are posted later, in order.
//
// One thread at a time fills a batch. Submitting does not copy it: leave it unchanged until the
// handler has run. Then it may be submitted again, or cleared and filled again, without allocation.
#pragma once

#include <boost/asio/async_result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <rcverbs/connection.hpp>
#include <rcverbs/detail/initiation.hpp>

namespace rcverbs {

/// A list of reads, writes, sends and atomics of one connection.
template <class Executor = boost::asio::any_io_executor>
class basic_batch {
public:
    using executor_type = Executor;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_batch<Other>;
    };

    /// Makes an empty batch for this connection, with room for `size` requests.
    template <class Other>
    requires std::convertible_to<Other, Executor>
    explicit basic_batch(basic_connection<Other> const& on, std::size_t size = 0)
        : core_{detail::access::core_of(on)} {
        requests_.reserve(size);
    }
    /// Moves the requests, also of a batch that is submitted: then this one must stay unchanged.
    /// The source becomes an empty batch of the same connection.
    basic_batch(basic_batch&& other) noexcept
        : basic_batch{other.core_, std::exchange(other.requests_, {})} {}
    // The target of an assignment may be submitted.
    basic_batch& operator=(basic_batch&&) = delete;

    /// The connection's executor.
    executor_type get_executor() const noexcept {
        return detail::recovered<Executor>(detail::executor_of(*core_));
    }

    /// Adds an operation. Submitting reports an invalid one.
    ///
    /// @param what  One of rcverbs::op but a receive, such as op::write(source, target).fenced().
    ///              Copied.
    basic_batch& add(op::send_queue_operation const& what) {
        requests_.push_back(detail::access::request_of(what));
        return *this;
    }

    /// Number of requests.
    std::size_t size() const noexcept { return requests_.size(); }
    /// Removes all requests and keeps the memory.
    void clear() noexcept { requests_.clear(); }

    /// Posts all requests in order and waits for all of them.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes)`: of all requests together.
    /// @par Object lifetimes      The batch and the memory of its requests must live unchanged
    ///                            until the handler runs.
    /// @par Cancellation          total while no request is posted, then terminal.
    /// @par Errors                Those of its requests, and errc::invalid_option if it is empty.
    ///                            On an error found before posting, nothing is posted; after one
    ///                            from the device, any number of the first requests may have been
    ///                            carried out.
    template <class Token = detail::default_token_t<Executor>>
    auto async_submit(Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code, std::size_t)>(
            detail::initiation_of<Executor>(
                core_.get(),
                [](auto&& handler, basic_batch* self) {
                    using type = decltype(handler);
                    detail::handler_source const source =
                        detail::offer<detail::bytes_result>(std::forward<type>(handler));
                    errc const refusal = self->start(detail::turn::wait, source);
                    if (refusal != errc{}) detail::post_refusal(*self->core_, source, refusal);
                }
            ),
            token,
            this
        );
    }
    /// Submits the batch if all of it can be posted at once.
    ///
    /// @return errc::would_block, or an error of async_submit() that is detected before posting;
    ///         then nothing has been started and the handler is unchanged.
    template <class Handler>
    [[nodiscard]] error_code try_submit(Handler&& handler) {
        return detail::to_code(
            *core_,
            start(
                detail::turn::now,
                detail::offer<detail::bytes_result>(std::forward<Handler>(handler))
            )
        );
    }

private:
    basic_batch(
        std::shared_ptr<detail::connection_core> core, std::vector<detail::work_request> requests
    ) noexcept
        : core_{std::move(core)},
          requests_{std::move(requests)} {}

    errc start(detail::turn when, detail::handler_source source) {
        return requests_.empty() ? errc::invalid_option
                                 : detail::start_operation(core_, requests_, when, source);
    }

    std::shared_ptr<detail::connection_core> core_;
    std::vector<detail::work_request> requests_;
};

template <class Executor>
basic_batch(basic_connection<Executor> const&) -> basic_batch<Executor>;
template <class Executor>
basic_batch(basic_connection<Executor> const&, std::size_t) -> basic_batch<Executor>;

/// With executors of any type.
using batch = basic_batch<>;

}  // namespace rcverbs
