// acceptor_core.hpp — what an acceptor handle shares: the listening id and the requests that nobody has taken yet.
//
// One lock guards its state; no user code runs under it. Queue pairs are made when a request is taken, so that what
// waits costs little.
#pragma once

#include <boost/asio/io_context.hpp>

#include <deque>
#include <memory>
#include <mutex>

#include <rcverbs/acceptor.hpp>

#include "connection/admission.hpp"
#include "connection/calls.hpp"
#include "connection/core.hpp"
#include "connection/registry.hpp"

namespace rcverbs::detail {

class acceptor_core final : public std::enable_shared_from_this<acceptor_core>,
                            public registered,
                            public cm::event_sink {
public:
    acceptor_core(boost::asio::io_context& context, acceptor_options options);
    ~acceptor_core();

    error_code listen(endpoint const& local);
    void start_accept(bool establish, accept_handler handler);
    void close() noexcept { end(boost::asio::error::operation_aborted); }

    bool is_open() const;
    endpoint local() const;
    acceptor_statistics statistics() const;
    boost::asio::io_context& context() const noexcept { return context_; }

private:
    using waiter_type = waiting_handler<error_code, connection>;
    using guard = std::unique_lock<std::mutex>;

    void shut_down() noexcept override;
    void on_event(cm::event& e) override;
    void end(error_code why) noexcept;
    void refuse(cm::event& request);
    void serve(guard& lock);
    void complete(waiter_type waiter, error_code ec, connection made);
    void cancel(std::uint64_t serial);

    boost::asio::io_context& context_;
    registry& registry_;
    acceptor_options const options_;

    mutable std::mutex mutex_;
    std::unique_ptr<cm::id> id_;
    endpoint local_;
    struct waiting_request {
        cm::event request;
        std::shared_ptr<admission::place> place;
    };
    std::deque<waiting_request> requests_;
    std::shared_ptr<admission> const admission_;
    std::uint64_t requests_seen_ = 0;
    std::uint64_t refused_busy_ = 0;
    waiter_type waiter_;
    std::uint64_t serial_ = 0;
    std::weak_ptr<connection_core> establishing_;
    std::uint64_t establishing_serial_ = 0;
    bool wants_established_ = false;
    bool is_closed_ = false;
    bool is_shut_down_ = false;
};

}  // namespace rcverbs::detail
