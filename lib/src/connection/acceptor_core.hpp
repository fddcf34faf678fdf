// acceptor_core.hpp — the state shared by acceptor handles: the listening id, the pending requests
// and the waiting handlers.
//
// One lock guards the state; no user code runs under it. No resources are created for a request
// before it is taken, so a pending request costs little.
#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>

#include <boost/asio/steady_timer.hpp>

#include <rcverbs/acceptor.hpp>

#include "connection/connection_limiter.hpp"
#include "hosting/deferred_completions.hpp"
#include "connection/core.hpp"
#include "connection/connection_services.hpp"
#include "hosting/poller_thread.hpp"
#include <rcverbs/detail/wait_list.hpp>
#include "connection/waiting_request.hpp"

namespace rcverbs::detail {

class acceptor_core final : public std::enable_shared_from_this<acceptor_core>,
                            public hosting::member,
                            public cm::event_sink {
public:
    acceptor_core(place const& where, acceptor_options options);
    ~acceptor_core();

    error_code listen(endpoint const& local);
    void start_get_request(request_handler handler);
    void start_accept(place where, accept_handler handler);
    void start_wait_idle(control_handler handler);
    void cancel() noexcept;
    void close_connections() noexcept;
    void close() noexcept { end(boost::asio::error::operation_aborted); }

    bool is_open() const;
    endpoint local() const;
    acceptor_statistics statistics() const;
    failure last_failure() const;
    std::size_t connections_max() const noexcept { return limiter_->connections_max(); }

private:
    using guard = std::unique_lock<std::mutex>;

    // The handlers that wait: for a request, or for an accepted connection.
    struct request_wait {
        waiting_handler<error_code, connection_request> handler;
    };
    struct accept_wait {
        waiting_handler<error_code, std::shared_ptr<connection_core>> handler;
        place where;
    };
    struct waiter {
        std::variant<request_wait, accept_wait> what;

        boost::asio::cancellation_slot slot() const noexcept {
            return std::visit([](auto const& w) { return w.handler.slot(); }, what);
        }
        void note(bool const* is_cancelled) noexcept {
            std::visit([&](auto& w) { w.handler.note(is_cancelled); }, what);
        }
        /// False if the handler went with its context.
        bool is_wanted() const noexcept {
            return std::visit([](auto const& w) { return static_cast<bool>(w.handler); }, what);
        }
    };
    using waiting_list = wait_list<waiter>;
    using idle_list = wait_list<waiting_handler<error_code>, boost::asio::any_io_executor>;
    using waiting = waiting_list::removed;  // one, or all
    // The connection that is being accepted for a wait.
    struct attempt {
        std::weak_ptr<connection_core> core;
        bool is_cancelled = false;
    };
    using request_list = std::deque<std::shared_ptr<waiting_request>>;
    // A connection whose handler was cancelled when it was accepted already; closed unless taken.
    struct accepted {
        std::shared_ptr<connection_core> core;
        place where;
        std::chrono::steady_clock::time_point since;
    };
    using accepted_list = std::list<accepted>;
    // A connection on its way to its handler.
    struct accepting {
        std::shared_ptr<acceptor_core> owner;
        accept_wait wait;
        std::shared_ptr<connection_core> core;
    };

    void context_is_going(boost::asio::execution_context const&) noexcept override;
    void on_event(cm::event& e) override;
    void end(error_code why) noexcept;
    void on_request(guard& lock, cm::event& e);
    void refuse(cm::event& request, refusal why);
    template <class Wait>
    void start(Wait wait);
    void serve();
    void answer(guard& lock, waiting taken, std::shared_ptr<waiting_request> request);
    std::shared_ptr<connection_core> make_connection(
        place const& where, waiting_request& request, error_code& ec
    );
    void accept(waiting taken, std::shared_ptr<connection_core> core);
    void take_expired(request_list& expired);
    void take_expired(accepted_list& expired);
    void arm_expiry();
    void on_expiry();
    void fail(waiting all, error_code ec);
    void complete(request_wait wait, error_code ec, connection_request request);
    void complete(accept_wait wait, error_code ec, std::shared_ptr<connection_core> core);
    static void hand_over(std::shared_ptr<accepting> const& what, error_code ec);
    void take_back(std::shared_ptr<waiting_request> const& request) noexcept;
    void take_back(accepted what) noexcept;
    bool give_accepted(guard& lock);
    void cancel(std::uint64_t serial);
    void on_idle() noexcept;
    void cancel_idle(std::uint64_t serial);
    void end_idle(error_code why);
    static void complete_idle(idle_list::removed all, error_code ec);

    std::shared_ptr<hosting::poller_thread> const thread_;
    connection_services& services_;
    hosting::membership membership_;
    boost::asio::any_io_executor executor_;
    acceptor_options const options_;

    mutable std::mutex mutex_;
    std::unique_ptr<cm::id> id_;
    endpoint local_;
    request_list requests_;
    accepted_list accepted_;
    // Runs while requests or accepted connections wait, so that an expired one gives its permit back.
    std::optional<boost::asio::steady_timer> expiry_;
    bool is_expiry_armed_ = false;
    waiting_list waiters_;
    std::map<std::uint64_t, attempt> attempts_;
    std::shared_ptr<connection_limiter> const limiter_;
    std::uint64_t requests_seen_ = 0;
    std::uint64_t refused_busy_ = 0;
    std::uint64_t dropped_ = 0;
    failure failure_;
    bool is_serving_ = false;
    bool is_closed_ = false;
    bool is_shut_down_ = false;

    // A permit may be returned while mutex_ is held. May be locked inside it, not the other way. Posting
    // to the handlers' context under it, so that the context is not destroyed meanwhile.
    std::mutex idle_mutex_;
    // Guarded by idle_mutex_.
    idle_list idle_waiters_;
    std::shared_ptr<acceptor_core> kept_;  // this, while idle_waiters_ has some
};

}  // namespace rcverbs::detail
