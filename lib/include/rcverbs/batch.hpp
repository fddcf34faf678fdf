// batch.hpp — several operations that are posted as one list and complete as one.
//
// One list, one doorbell, one completion: the cheapest way to move many small pieces. Only the last request asks the
// device for a completion, as long as the batch is no longer than half of the queue; a longer one is posted as far as there
// is room, the rest follows in order.
//
// Filled by one thread at a time. Not copied by submitting: it must stay as it is until the handler has run, and may then be
// submitted again, or cleared and filled anew, without allocating.
#pragma once

#include <boost/asio/append.hpp>
#include <boost/asio/deferred.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <rcverbs/data_operations.hpp>

namespace rcverbs {

/// A list of reads, writes, sends and atomics of one connection.
class batch {
public:
    /// An empty one, for this connection, with room for `size` requests.
    explicit batch(data_operations const& on, std::size_t size = 0) : core_{on.core()} { requests_.reserve(size); }

    // What they do, data_operations says. What is wrong with a request is reported by submitting.

    /// Adds a write.
    batch& write(local_slices source, remote_region target) {
        return add(detail::transfer_request(detail::operation_kind::write, source, target));
    }
    /// Adds a write that tells the peer.
    batch& write_with_immediate(local_slices source, remote_region target, std::uint32_t immediate) {
        return add(detail::transfer_request(detail::operation_kind::write_with_immediate, source, target, immediate));
    }
    /// Adds a read.
    batch& read(remote_region source, local_slices target) {
        return add(detail::transfer_request(detail::operation_kind::read, target, source));
    }
    /// Adds a fetch-and-add; the device writes what the cell held to `before`: 8 bytes of a region with local_write.
    batch& fetch_add(remote_word target, std::uint64_t addend, local_slice before) {
        return add_atomic(detail::operation_kind::fetch_add, target, addend, 0, before);
    }
    /// Adds a compare-and-swap; the device writes what the cell held to `before`: 8 bytes of a region with local_write.
    batch& compare_swap(remote_word target, std::uint64_t expected, std::uint64_t desired, local_slice before) {
        return add_atomic(detail::operation_kind::compare_swap, target, expected, desired, before);
    }
    /// Adds a send.
    batch& send(local_slices message) {
        return add(detail::local_request(detail::operation_kind::send, message));
    }
    /// Adds a send with immediate data.
    batch& send_with_immediate(local_slices message, std::uint32_t immediate) {
        return add(detail::message_request(detail::operation_kind::send_with_immediate, message, immediate));
    }
    /// Adds a send that takes a key away from the receiver.
    batch& send_with_invalidate(local_slices message, remote_key key) {
        return add(detail::invalidation_request(message, key));
    }
    /// Makes the request that was added last start only when all reads and atomics before it are complete. REQUIRES: not
    /// empty.
    batch& fence() {
        requests_.back().is_fenced = true;
        return *this;
    }

    /// How many requests it has.
    std::size_t size() const noexcept { return requests_.size(); }
    /// Empties it, keeping its room.
    void clear() noexcept { requests_.clear(); }

    /// Posts all requests in order and waits for all of them.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes)`: of all requests together.
    /// @par Object lifetimes      The batch, and all that its requests name, must live and stay as it is until the handler runs.
    /// @par Cancellation          total while nothing of it is posted, then terminal.
    /// @par Errors                Those of its requests, and errc::invalid_option if it is empty. On an error found before posting,
    ///                            nothing is posted; after one from the device, any number of the first requests may have
    ///                            been carried out.
    template <class Token = boost::asio::deferred_t>
    auto async_submit(Token&& token = Token{}) {
        return boost::asio::async_initiate<Token, void(error_code, std::size_t)>(
            [](auto&& handler, batch* self) {
                detail::handler_source const source = detail::offer<detail::bytes_result>(std::move(handler));
                errc const refusal = self->start(detail::turn::wait, source);
                if (refusal != errc{}) detail::post_refusal<std::size_t>(*self->core_, std::move(handler), refusal);
            },
            token,
            this
        );
    }
    /// async_submit() if all of it can be posted at once.
    ///
    /// @return errc::would_block, or an error of async_submit()'s that is known before anything is posted; then nothing
    ///         has been started and the handler has not been touched.
    template <class Handler>
    error_code try_submit(Handler&& handler) {
        return detail::to_code(start(detail::turn::now, detail::offer<detail::bytes_result>(std::forward<Handler>(handler))));
    }

private:
    errc start(detail::turn when, detail::handler_source source) {
        return requests_.empty() ? errc::invalid_option : detail::start_operation(core_, requests_, when, source);
    }
    batch& add(detail::request const& what) {
        requests_.push_back(what);
        return *this;
    }
    batch& add_atomic(
        detail::operation_kind kind, remote_word target, std::uint64_t operand, std::uint64_t swap, local_slice before
    ) {
        detail::request what = detail::atomic_request(kind, target, operand, swap, before);
        if (before.size() != sizeof(std::uint64_t)) what.problem = errc::out_of_range;
        return add(what);
    }

    std::shared_ptr<detail::connection_core> core_;
    std::vector<detail::request> requests_;
};

}  // namespace rcverbs
