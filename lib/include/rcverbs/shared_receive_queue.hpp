// shared_receive_queue.hpp — one queue of receives for many connections.
//
// A server of thousands of connections that keeps receives posted on each needs memory for all of them to speak at a time. With
// a shared receive queue they all take from one supply, and a message says whose it is: received::queue_pair_number, to be
// compared with connection::queue_pair_number().
//
// Named in connection_options::shared_receives of an acceptor's or a connection's options. It belongs to one device's shared
// protection domain: that of the first connection made with it, from then on domain(). So a server takes its first request
// (acceptor::async_get_request), registers memory with domain(), starts receives here, and then accepts.
//
// A handle: copies share one queue, which is closed when the last copy is gone, those in options of connections and acceptors
// included. Any thread may start receives. All connections that use it touch its lock, once a message.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>

#include <cstdint>
#include <memory>
#include <utility>

#include <rcverbs/detail/start.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/local_slice.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/received.hpp>

namespace rcverbs {

namespace detail {

class shared_receives;

RCVERBS_EXPORT errc start_receive(
    std::shared_ptr<shared_receives> const& queue, request const& what, turn when, handler_source source
);
RCVERBS_EXPORT boost::asio::any_io_executor executor_of(shared_receives const& queue) noexcept;

}  // namespace detail

/// How a shared receive queue is made.
struct shared_receive_options {
    /// Receives that may be posted at a time. 1 to the device's shared_receive_depth_max.
    std::uint32_t depth = 512;
    /// Receives that may wait for a place; one more is refused with errc::queue_full.
    std::uint32_t waiting_max = 512;
    /// Slices that one receive scatters to. 1 to the device's segments_max.
    std::uint32_t segments_max = 4;
    /// Where handlers run that have no executor of their own: the io_context if empty. That of a poller which the connections
    /// share spares them the way to another thread.
    boost::asio::any_io_executor executor;
};

/// Receives that any of many connections fills.
///
/// Outstanding operations: shared_receive_options::depth and waiting_max.
class RCVERBS_EXPORT shared_receive_queue {
public:
    using executor_type = boost::asio::any_io_executor;

    /// No queue; is_valid() is false.
    shared_receive_queue() noexcept = default;
    /// A queue for connections of `context`, not yet of any device.
    ///
    /// @throws boost::system::system_error: errc::invalid_option.
    explicit shared_receive_queue(boost::asio::io_context& context, shared_receive_options options = {});

    /// True unless default-constructed.
    bool is_valid() const noexcept { return handle_ != nullptr; }

    /// Receives a message, or the immediate data of a write, from whichever connection it comes first.
    ///
    /// @param into   Where a sent message goes: at most segments_max slices of regions of domain() with local_write; may be empty
    ///               for immediate data alone.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, received)`; received::queue_pair_number says whose it is, on failure, too.
    /// @par Object lifetimes      The regions of `into` must live until the handler runs. What a device had begun to fill
    ///                            when its connection broke may be kept until the queue is closed.
    /// @par Ordering              Filled in the order of the calls; completed as the connections' queues are polled.
    /// @par Executor              Its associated one, which is kept at work, or shared_receive_options::executor, which is not:
    ///                            the connections see to that.
    /// @par Cancellation          total while it waits for a place; none once posted.
    /// @par Errors                errc::not_connected (no connection has been made with it, or it is closed),
    ///                            errc::queue_full, errc::too_many_segments, errc::access_denied, errc::region_gone,
    ///                            errc::foreign_domain; wc_errc::local_length or local_qp_operation (the message was longer:
    ///                            its connection breaks), asio::error::operation_aborted (closed).
    template <class Token = boost::asio::deferred_t>
    auto async_receive(local_slices into, Token&& token = Token{}) {
        return boost::asio::async_initiate<Token, void(error_code, received)>(
            [](auto&& handler, std::shared_ptr<detail::shared_receives> const& queue, detail::request const& wanted) {
                detail::handler_source const source = detail::offer<detail::arrival_result>(std::move(handler));
                errc const refusal = detail::start_receive(queue, wanted, detail::turn::wait, source);
                if (refusal != errc{}) detail::post_refusal<received>(*queue, std::move(handler), refusal);
            },
            token,
            queue(),
            detail::local_request(detail::operation_kind::receive, into)
        );
    }
    /// async_receive() without waiting for a place; errc::would_block if there is none, and then nothing has happened.
    template <class Handler>
    error_code try_receive(local_slices into, Handler&& handler) {
        return detail::to_code(detail::start_receive(
            queue(),
            detail::local_request(detail::operation_kind::receive, into),
            detail::turn::now,
            detail::offer<detail::arrival_result>(std::forward<Handler>(handler))
        ));
    }

    /// Takes no more receives. Those that wait are aborted now, those that are posted as soon as no connection uses the queue.
    void close() noexcept;

    /// The protection domain to register memory with; not open before a connection has been made with the queue.
    protection_domain domain() const;
    /// Receives posted at this moment: the credit that all peers have together.
    std::uint32_t credits() const;
    /// Where handlers run by default.
    executor_type get_executor() const noexcept { return detail::executor_of(*queue()); }

    /// For the library's own use.
    std::shared_ptr<detail::shared_receives> const& queue() const noexcept;

private:
    struct handle;
    std::shared_ptr<handle> handle_;
};

}  // namespace rcverbs
