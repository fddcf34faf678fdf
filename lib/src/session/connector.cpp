#include <rcverbs/connector.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <mutex>
#include <random>

#include "connection/calls.hpp"
#include "machines/backoff.hpp"

namespace rcverbs {

namespace asio = boost::asio;

namespace detail {

// Its coroutine runs on a strand of the io_context; the lock is for those who look at it from elsewhere.
class connector_core : public std::enable_shared_from_this<connector_core> {
public:
    connector_core(asio::io_context& context, endpoint peer, connector_options options)
        : context_{context}, strand_{asio::make_strand(context)}, peer_{peer}, options_{std::move(options)}, timer_{strand_} {}

    void start(session_handler handler);
    void cancel() noexcept;

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
    asio::io_context& context() const noexcept { return context_; }

private:
    using waiter_type = waiting_handler<error_code, session>;

    asio::awaitable<error_code> connect();
    asio::awaitable<error_code> attempt();
    connection_options terms();

    asio::io_context& context_;
    asio::strand<asio::io_context::executor_type> strand_;
    endpoint const peer_;
    connector_options const options_;
    asio::steady_timer timer_;
    std::mt19937_64 random_{std::random_device{}()};
    session session_;  // the one being made
    waiter_type waiter_;
    std::atomic<bool> is_connecting_{false};
    bool is_cancelled_ = false;

    mutable std::mutex mutex_;
    protection_domain domain_;
    failure failure_;
    std::uint64_t attempts_ = 0;
};

void connector_core::start(session_handler handler) {
    auto waiter = std::make_shared<waiter_type>(std::move(handler), context_.get_executor());
    if (waiter->slot().is_connected()) {
        waiter->slot().assign([weak = weak_from_this()](asio::cancellation_type type) {
            auto const self = weak.lock();
            if (self != nullptr && type != asio::cancellation_type::none) self->cancel();
        });
    }
    bool const is_first = !is_connecting_.exchange(true);
    asio::post(strand_, [self = shared_from_this(), waiter, is_first] {
        if (!is_first) return (*waiter)(errc::operation_in_progress, session{});
        self->is_cancelled_ = false;
        asio::co_spawn(self->strand_, self->connect(), [self, waiter](std::exception_ptr failed, error_code ec) {
            // Memory is all that can run out in there.
            if (failed) ec = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
            self->is_connecting_ = false;
            session made = std::move(self->session_);
            (*waiter)(ec, ec ? session{} : std::move(made));
        });
    });
}

// A domain is kept by who holds it: the shared one of a device is found again as long as it lives, one's own has to be passed on.
connection_options connector_core::terms() {
    connection_options o = options_.connection;
    std::lock_guard const lock{mutex_};
    ++attempts_;
    if (o.private_domain && domain_.is_open()) {
        o.private_domain = false;
        o.domain = domain_;
    }
    return o;
}

asio::awaitable<error_code> connector_core::attempt() {
    try {
        session_ = session{connection{context_, terms()}, options_.session};
    } catch (boost::system::system_error const& e) {
        co_return e.code();  // no thread could be started
    }
    auto [ec] = co_await session_.async_connect(peer_, asio::as_tuple(asio::use_awaitable));
    {
        std::lock_guard const lock{mutex_};
        if (ec) {
            failure_ = session_.last_failure();
        } else {
            domain_ = session_.next_layer().domain();
        }
    }
    if (is_cancelled_) co_return asio::error::operation_aborted;
    if (ec) session_.close();
    co_return ec;
}

asio::awaitable<error_code> connector_core::connect() {
    machines::backoff waits{options_.backoff};
    for (;;) {
        error_code const ec = co_await attempt();
        if (!is_transient(ec)) co_return ec;
        auto const delay = waits.next(std::uniform_real_distribution{0.0, 1.0}(random_));
        if (!delay) co_return ec;
        timer_.expires_after(*delay);
        static_cast<void>(co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable)));
        if (is_cancelled_) co_return asio::error::operation_aborted;
    }
}

void connector_core::cancel() noexcept {
    if (!is_connecting_) return;
    asio::post(strand_, [self = shared_from_this()] {
        if (!self->is_connecting_) return;
        self->is_cancelled_ = true;
        self->timer_.cancel();
        self->session_.close();
    });
}

}  // namespace detail

connector::connector(asio::io_context& context, endpoint peer, connector_options options) {
    backoff_options const& b = options.backoff;
    bool const is_valid = b.delay_first.count() > 0 && b.delay_max >= b.delay_first && b.factor >= 1.0 && b.factor <= 100.0 &&
                          b.jitter >= 0.0 && b.jitter <= 1.0;
    if (!is_valid) throw boost::system::system_error{errc::invalid_option, "connector"};
    core_ = std::make_shared<detail::connector_core>(context, peer, std::move(options));
}

connector& connector::operator=(connector&& other) noexcept {
    if (this != &other) {
        cancel();
        core_ = std::move(other.core_);
    }
    return *this;
}

connector::~connector() { cancel(); }

void connector::start_connect(std::shared_ptr<detail::connector_core> const& core, detail::session_handler handler) {
    core->start(std::move(handler));
}

void connector::cancel() noexcept {
    if (core_ != nullptr) core_->cancel();
}

protection_domain connector::domain() const { return core_->domain(); }
std::uint64_t connector::attempts() const noexcept { return core_->attempts(); }
failure connector::last_failure() const { return core_->last_failure(); }
connector::executor_type connector::get_executor() const noexcept { return core_->context().get_executor(); }

}  // namespace rcverbs
