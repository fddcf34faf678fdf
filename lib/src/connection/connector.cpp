#include <rcverbs/connector.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <mutex>
#include <optional>
#include <random>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "connection/option_problems.hpp"
#include "hosting/deferred_completions.hpp"
#include "hosting/executors.hpp"
#include "hosting/members.hpp"
#include "hosting/poller_thread.hpp"
#include <rcverbs/detail/option_check.hpp>
#include <rcverbs/detail/timeouts.hpp>
#include "machines/backoff.hpp"

namespace rcverbs {

namespace asio = boost::asio;

namespace detail {

// The coroutine runs on a strand of the executor; the lock guards the state that observers read on
// other threads. The connector may outlive its context, so context_is_going() releases what belongs to the
// context.
class connector_core final : public std::enable_shared_from_this<connector_core>,
                             public hosting::member {
public:
    template <class... Arguments>
    static std::shared_ptr<connector_core> make(Arguments&&... arguments) {
        auto made = std::make_shared<connector_core>(std::forward<Arguments>(arguments)...);
        made->membership_.join(made->strand_, made, hosting::rank::object);
        return made;
    }
    connector_core(
        place where,
        std::vector<endpoint> peers,
        connection_options connection,
        backoff_options const& backoff,
        std::function<void(std::uint64_t, failure const&)> on_retry,
        std::shared_ptr<connector_target> target
    )
        : thread_{hosting::thread_of(where.executor)},
          where_{std::move(where)},
          strand_{asio::make_strand(where_.executor)},
          peers_{std::move(peers)},
          connection_{std::move(connection)},
          backoff_{backoff},
          on_retry_{std::move(on_retry)},
          target_{std::move(target)},
          timer_{strand_} {}

    void start(control_handler handler, std::shared_ptr<connector_claim> const& claim);
    void release() noexcept { is_connecting_ = false; }
    /// Closes a connection that nobody takes.
    void abandon() noexcept;
    void cancel() noexcept;
    void shorten_delay() noexcept;

    protection_domain domain() const {
        std::lock_guard const lock{mutex_};
        return domain_;
    }
    failure last_failure() const {
        std::lock_guard const lock{mutex_};
        return failure_;
    }
    std::uint64_t attempts() const noexcept {
        std::lock_guard const lock{mutex_};
        return attempts_;
    }

private:
    asio::awaitable<error_code> connect();
    asio::awaitable<error_code> attempt_each();
    asio::awaitable<error_code> attempt();
    asio::awaitable<void> pause(std::chrono::milliseconds delay);
    connection_options terms();
    void context_is_going(boost::asio::execution_context const&) noexcept override;

    hosting::membership membership_;
    std::shared_ptr<hosting::poller_thread> const thread_;
    place where_;
    asio::any_io_executor strand_;
    std::vector<endpoint> const peers_;
    connection_options const connection_;
    backoff_options const backoff_;
    std::function<void(std::uint64_t, failure const&)> const on_retry_;
    std::shared_ptr<connector_target> const target_;
    std::optional<asio::steady_timer> timer_;
    std::mt19937_64 random_{std::random_device{}()};
    // True until release(), when the handler has the connection.
    std::atomic<bool> is_connecting_{false};
    // Used on the strand: an attempt, or a delay before one, is under way.
    bool is_trying_ = false;
    bool is_cancelled_ = false;
    std::size_t present_ = 0;  // of peers_, that of the present attempt or connection
    std::chrono::steady_clock::time_point pause_end_;
    std::chrono::steady_clock::time_point pause_end_least_;
    std::atomic<bool> is_shut_down_{false};

    mutable std::mutex mutex_;
    protection_domain domain_;
    failure failure_;
    std::uint64_t attempts_ = 0;
};

// --- who takes the connection --------------------------------------------------------------------

connector_claim::connector_claim(std::shared_ptr<connector_core> core) noexcept
    : core_{std::move(core)} {}

connector_claim::~connector_claim() {
    if (is_due_) core_->abandon();
}

void connector_claim::take() noexcept {
    is_due_ = false;
    core_->release();
}

void connector_core::abandon() noexcept {
    if (is_shut_down_) return;
    try {
        asio::post(strand_, [self = shared_from_this()] {
            self->target_->close();
            self->release();
        });
    } catch (...) {
        // Without memory it stays open, and the connector busy.
    }
}

// --- connecting ----------------------------------------------------------------------------------

void connector_core::start(control_handler handler, std::shared_ptr<connector_claim> const& claim) {
    auto waiter = std::make_shared<control_waiter>(std::move(handler), where_.executor);
    if (waiter->slot().is_connected()) {
        waiter->slot().assign([weak = weak_from_this()](asio::cancellation_type type) {
            auto const self = weak.lock();
            if (self != nullptr && type != asio::cancellation_type::none) self->cancel();
        });
    }
    asio::post(strand_, [self = shared_from_this(), waiter, weak = std::weak_ptr{claim}] {
        if (self->is_connecting_.exchange(true)) return (*waiter)(errc::operation_in_progress);
        self->is_cancelled_ = false;
        self->is_trying_ = true;
        asio::co_spawn(
            self->strand_,
            self->connect(),
            [self, waiter, weak](std::exception_ptr const& failed, error_code ec) {
                // The coroutine throws only if an allocation fails.
                if (failed)
                    ec = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory
                    );
                // From now on the connection belongs to the handler, which takes it on its executor.
                self->is_trying_ = false;
                if (ec) {
                    self->target_->close();
                    self->release();
                } else if (auto const alive = weak.lock()) {
                    alive->offer();
                } else {
                    self->abandon();
                }
                if (*waiter) (*waiter)(ec);
            }
        );
    });
}

// A domain lives as long as it is held. A device's shared domain is found again; an isolated domain
// must be passed on to the next attempt.
connection_options connector_core::terms() {
    connection_options o = connection_;
    std::lock_guard const lock{mutex_};
    ++attempts_;
    auto const* const sharing = std::get_if<domain_sharing>(&o.placement.domain);
    bool const is_isolated = sharing != nullptr && *sharing == domain_sharing::isolated;
    if (is_isolated && domain_.is_open()) o.placement.domain = domain_;
    return o;
}

asio::awaitable<error_code> connector_core::attempt() {
    // Type-erased by connector_target, so that this coroutine does not depend on the protocol.
    // An exception must not leave an initiating function that a coroutine awaits: it would end the
    // process.
    bool has_thrown = false;
    auto const start = [this, &has_thrown](auto token) {
        return asio::async_initiate<decltype(token), void(error_code)>(
            [this, &has_thrown](auto handler) {
                auto const executor = asio::get_associated_executor(handler, strand_);
                auto const shared = std::make_shared<decltype(handler)>(std::move(handler));
                auto const then = [shared](error_code ec) { std::move (*shared)(ec); };
                error_code why;
                try {
                    return target_->attempt(
                        where_, terms(), peers_[present_], asio::bind_executor(executor, then)
                    );
                } catch (boost::system::system_error const& e) {
                    why = e.code();
                } catch (std::system_error const& e) {
                    why = {e.code().value(), boost::system::system_category()};
                } catch (...) {
                    why = make_error_code(boost::system::errc::not_enough_memory);
                }
                has_thrown = true;
                asio::post(executor, [then, why] { then(why); });
            },
            token
        );
    };
    auto const [ec] = co_await start(asio::as_tuple(asio::use_awaitable));
    {
        std::lock_guard const lock{mutex_};
        if (has_thrown) {
            failure_ = {step::resolve_address, ec, peers_[present_], 0};
        } else if (ec) {
            failure_ = target_->last_failure();
        } else {
            domain_ = target_->domain();
            failure_ = {};
        }
    }
    if (is_cancelled_) co_return asio::error::operation_aborted;
    if (ec && !has_thrown) target_->close();
    co_return ec;
}

// Each endpoint once. Of the errors, one that is transient.
asio::awaitable<error_code> connector_core::attempt_each() {
    error_code found;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
        error_code const ec = co_await attempt();
        if (!ec || is_cancelled_) co_return ec;
        if (!is_transient(found)) found = ec;
        present_ = (present_ + 1) % peers_.size();
    }
    co_return found;
}

asio::awaitable<void> connector_core::pause(std::chrono::milliseconds delay) {
    using clock = std::chrono::steady_clock;
    pause_end_ = clock::now() + bounded(delay);
    pause_end_least_ = clock::now() + bounded(backoff_.delay_first);
    while (!is_cancelled_ && clock::now() < pause_end_) {
        timer_->expires_at(pause_end_);
        static_cast<void>(co_await timer_->async_wait(asio::as_tuple(asio::use_awaitable)));
    }
    pause_end_ = {};
}

asio::awaitable<error_code> connector_core::connect() {
    machines::backoff waits{backoff_};
    for (;;) {
        error_code const ec = co_await attempt_each();
        if (!is_transient(ec)) co_return ec;
        auto const delay = waits.next(std::uniform_real_distribution{0.0, 1.0}(random_));
        if (!delay) co_return ec;
        if (on_retry_) on_retry_(attempts(), last_failure());
        co_await pause(*delay);
        if (is_cancelled_) co_return asio::error::operation_aborted;
    }
}

void connector_core::cancel() noexcept {
    if (is_shut_down_) return;
    asio::post(strand_, [self = shared_from_this()] {
        if (!self->is_trying_) return;
        self->is_cancelled_ = true;
        self->timer_->cancel();
        self->target_->close();
    });
}

void connector_core::shorten_delay() noexcept {
    if (is_shut_down_) return;
    try {
        asio::post(strand_, [self = shared_from_this()] {
            if (self->pause_end_ <= self->pause_end_least_) return;
            self->pause_end_ = self->pause_end_least_;
            self->timer_->cancel();
        });
    } catch (...) {
        // Without memory the delay stays as it is.
    }
}

void connector_core::context_is_going(asio::execution_context const&) noexcept {
    is_shut_down_ = true;
    is_connecting_ = false;
    timer_.reset();
    strand_ = {};
    if (thread_ == nullptr) where_ = {};
}

}  // namespace detail

connector_base::connector_base(
    detail::place const& where,
    std::vector<endpoint> peers,
    connection_options options,
    backoff_options const& b,
    std::function<void(std::uint64_t, failure const&)> on_retry,
    std::shared_ptr<detail::connector_target> target
) {
    if (peers.empty()) detail::throw_if_refused("connector: there is no endpoint");
    detail::option_check check{"backoff_options"};
    check.from("delay_first", b.delay_first, std::chrono::milliseconds{1})
        .from("delay_max", b.delay_max, b.delay_first)
        .from("attempts_max", b.attempts_max, 1U)
        .within("factor", b.factor, 1.0, 100.0)
        .within("jitter", b.jitter, 0.0, 1.0);
    detail::throw_if_refused(check.problem());
    detail::throw_if_refused(detail::problem_of(options));
    core_ = detail::connector_core::make(
        where, std::move(peers), std::move(options), b, std::move(on_retry), std::move(target)
    );
}

connector_base& connector_base::operator=(connector_base&& other) noexcept {
    if (this == &other) return *this;
    cancel();
    core_ = std::move(other.core_);
    return *this;
}

void connector_base::cancel() noexcept {
    if (core_ != nullptr) core_->cancel();
}
void connector_base::shorten_delay() noexcept {
    if (core_ != nullptr) core_->shorten_delay();
}
protection_domain connector_base::domain() const { return core_->domain(); }
std::uint64_t connector_base::attempts() const noexcept { return core_->attempts(); }
failure connector_base::last_failure() const { return core_->last_failure(); }

void connector_base::start(
    detail::connector_core& core,
    detail::control_handler handler,
    std::shared_ptr<detail::connector_claim> const& claim
) {
    core.start(std::move(handler), claim);
}

}  // namespace rcverbs
