// shared_receive_queue.hpp — one queue of receives for many connections.
//
//     shared_receive_queue receives{io};
//     acceptor_options options;
//     options.connection.placement.shared_receives = receives;
//     acceptor a{io, {"192.168.0.1", 7471}, options};
//
// A server with receives of its own per connection needs memory for all peers to send at once. With
// a shared receive queue all connections take from one supply, and each message identifies its
// connection: compare receive_result::queue_pair_number with connection::queue_pair_number().
//
// The queue belongs to the shared protection domain of one device: that of the first connection
// made with it; domain() returns it from then on. So a server takes its first request
// (acceptor::async_get_request), registers memory with domain(), starts receives here, and then
// accepts.
//
// A handle: copies share one queue, which is closed when the last copy is gone, including those in
// the options of connections and acceptors. Any thread may start receives. Every connection that
// uses the queue takes its lock once per message.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/deferred.hpp>

#include <cstdint>
#include <memory>
#include <utility>

#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/detail/start.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/op.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/receive_result.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs {

namespace detail {

class shared_receives;

RCVERBS_EXPORT errc start_receive(
    std::shared_ptr<shared_receives> const& queue,
    work_request const& what,
    turn when,
    handler_source source
);
RCVERBS_EXPORT void post_refusal(
    shared_receives const& queue, handler_source const& source, errc why
);
inline error_code refusal_code(shared_receives const&, errc why) noexcept { return why; }

}  // namespace detail

/// Options of a shared receive queue.
struct shared_receive_options {
    /// Receives that may be posted at a time. 1 to the device's shared_receive_depth_max.
    std::uint32_t depth = 512;
    /// Receives that may wait for a place; one more fails with errc::queue_full.
    std::uint32_t waiting_max = 512;
    /// Slices per receive. 1 to the device's segments_max.
    std::uint32_t segments_max = 4;
};

/// The members of basic_shared_receive_queue that do not depend on its executor type.
class RCVERBS_EXPORT shared_receive_queue_base {
public:
    /// True unless default-constructed.
    bool is_valid() const noexcept { return core_ != nullptr; }
    /// Closes the queue. Waiting receives are aborted now, posted ones as soon as no connection
    /// uses the queue.
    void close() noexcept;

    /// The protection domain to register memory with; not open before a connection has been made
    /// with the queue.
    protection_domain domain() const;
    /// Receives posted at this moment, for all peers together.
    std::uint32_t credits() const;

protected:
    shared_receive_queue_base() noexcept = default;
    shared_receive_queue_base(detail::place const& where, shared_receive_options const& options);
    shared_receive_queue_base(shared_receive_queue_base const&) = default;
    shared_receive_queue_base(shared_receive_queue_base&&) noexcept = default;
    shared_receive_queue_base& operator=(shared_receive_queue_base const&) = default;
    shared_receive_queue_base& operator=(shared_receive_queue_base&&) noexcept = default;
    ~shared_receive_queue_base() = default;

    // The last copy closes the queue.
    std::shared_ptr<detail::shared_receives> core_;

private:
    friend struct detail::access;
};

/// A queue of receives that any of its connections may consume.
///
/// Outstanding operations: shared_receive_options::depth and waiting_max.
template <class Executor = boost::asio::any_io_executor>
class basic_shared_receive_queue : public shared_receive_queue_base {
public:
    using executor_type = Executor;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_shared_receive_queue<Other>;
    };

    /// Makes no queue; is_valid() is false.
    basic_shared_receive_queue() noexcept = default;
    /// Makes a queue, which belongs to no device yet.
    ///
    /// @param where    The executor, or the thread, that calls its handlers; best the one of its
    ///                 connections. Executors that are associated with handlers must outlive the
    ///                 connections of the queue.
    /// @param options  Depth and limits.
    /// @throws boost::system::system_error: errc::invalid_option; std::system_error if a thread is
    ///                                      asked for and cannot be started.
    explicit basic_shared_receive_queue(
        runs_on<Executor> where, shared_receive_options const& options = {}
    )
        : shared_receive_queue_base{detail::access::place_of(where), options},
          executor_{where.get_executor()} {}
    /// Converts a queue with another executor type.
    template <class Other>
    requires(!std::same_as<Other, Executor> && std::convertible_to<Other, Executor>)
        basic_shared_receive_queue(basic_shared_receive_queue<Other> other)
        : shared_receive_queue_base{std::move(other)},
          executor_{detail::converted<Executor>(other.get_executor())} {}

    /// Receives a message, or the immediate data of a write, from any of the connections.
    ///
    /// @param into   Memory for a sent message: at most segments_max slices of regions of domain()
    ///               with local_write; may be empty for immediate data alone.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, receive_result)`;
    ///                            receive_result::queue_pair_number identifies the connection,
    ///                            also of a failed receive.
    /// @par Object lifetimes      The regions of `into` must live until the handler runs. A receive
    ///                            that was being filled when its connection failed may complete
    ///                            only when the queue is closed.
    /// @par Ordering              Filled in the order of the calls; completed as the connections'
    ///                            queues are polled.
    /// @par Executor              The handler's associated executor, which has work until then.
    ///                            Without one, the queue's executor, which has work only as long
    ///                            as its connections exist.
    /// @par Cancellation          total while it waits for a place; none once posted.
    /// @par Errors                errc::not_connected (no connection has been made with it, or it
    ///                            is closed), errc::queue_full, errc::too_many_segments,
    ///                            errc::access_denied, errc::region_gone, errc::foreign_domain;
    ///                            wc_errc::local_length or local_qp_operation (the message was
    ///                            longer; its connection ends), asio::error::operation_aborted
    ///                            (closed).
    template <class Token = detail::default_token_t<Executor>>
    auto async_receive(mutable_slices const& into, Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code, receive_result)>(
            detail::initiation{
                get_executor(),
                [](auto&& handler,
                   std::shared_ptr<detail::shared_receives> const& queue,
                   detail::work_request const& wanted) {
                    using type = decltype(handler);
                    detail::handler_source const source =
                        detail::offer<detail::arrival_result>(std::forward<type>(handler));
                    errc const refusal =
                        detail::start_receive(queue, wanted, detail::turn::wait, source);
                    if (refusal != errc{}) detail::post_refusal(*queue, source, refusal);
                }},
            token,
            core_,
            detail::access::request_of(op::receive(into))
        );
    }
    /// Starts a receive if it can be posted at once.
    ///
    /// @param what     op::receive(into), as for async_receive().
    /// @param handler  A plain completion handler with the signature of async_receive().
    /// @return errc::would_block, or an error of async_receive() that is detected before posting;
    ///         then nothing has been started, and the handler is unchanged.
    template <class Handler>
    [[nodiscard]] error_code try_start(op::receive_t const& what, Handler&& handler) {
        return detail::to_code(
            *core_,
            detail::start_receive(
                core_,
                detail::access::request_of(what),
                detail::turn::now,
                detail::offer<detail::arrival_result>(std::forward<Handler>(handler))
            )
        );
    }

    /// The executor that it was made with: handlers run there by default, one at a time.
    executor_type get_executor() const noexcept { return executor_.get(); }

private:
    template <class>
    friend class basic_shared_receive_queue;
    friend struct detail::access;

    detail::stored_executor<Executor> executor_;
};

/// With executors of any type.
using shared_receive_queue = basic_shared_receive_queue<>;

}  // namespace rcverbs
