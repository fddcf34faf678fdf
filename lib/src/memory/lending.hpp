// lending.hpp — lends numbered things, one holder at a time, to callers in the order of their calls:
// asynchronous ones and threads that block. Base of slot_pool_core and window_pool_core.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include <rcverbs/detail/lender.hpp>
#include <rcverbs/runs_on.hpp>

#include "hosting/members.hpp"
#include <rcverbs/detail/wait_list.hpp>
#include "hosting/executors.hpp"

namespace rcverbs::detail {

/// `Lease` is movable, tells is_valid(), and has disarm(), which makes it forget what it holds.
template <class Lease>
class lending : public std::enable_shared_from_this<lending<Lease>>, public hosting::member {
public:
    void start_acquire(lease_handler<Lease> handler) {
        executor_ptr const executor = present_executor();
        if (executor == nullptr) return;  // nobody is left to call
        // Declared before the lock: a handler is never made or destroyed under it.
        auto const what = std::make_shared<delivery>();
        what->handler = {std::move(handler), *executor};
        guard lock{mutex_};
        bool const is_refused = is_closed_;
        if (!is_refused) waiters_.add(waiter{what}, this->weak_from_this(), &lending::cancel_one);
        lock.unlock();
        if (is_refused) {
            static_cast<void>(deliver(what, boost::asio::error::operation_aborted));
        } else {
            serve();
        }
    }

    Lease try_acquire() noexcept {
        guard const lock{mutex_};
        if (is_closed_ || free_.empty() || !waiters_.empty()) return {};
        std::uint32_t const index = free_.back();
        free_.pop_back();
        return lend(index);
    }

    Lease acquire(error_code& ec) {
        blocked self;
        guard lock{mutex_};
        if (!is_closed_) {
            waiters_.add(waiter{&self}, this->weak_from_this(), &lending::cancel_one);
            lock.unlock();
            serve();
            lock.lock();
            self.wakes.wait(lock, [&] { return self.is_done; });
        }
        if (!self.lease.is_valid()) ec = boost::asio::error::operation_aborted;
        return std::move(self.lease);
    }

    void give_back(std::uint32_t index) noexcept {
        {
            guard const lock{mutex_};
            free_.push_back(index);  // there is room for all
        }
        serve();
    }

    void cancel() noexcept {
        waiting taken;
        {
            guard const lock{mutex_};
            taken = waiters_.take_all();
        }
        abort(std::move(taken));
    }

    void close() noexcept {
        {
            guard const lock{mutex_};
            is_closed_ = true;
        }
        cancel();
    }

    std::uint32_t free_count() const noexcept {
        guard const lock{mutex_};
        return static_cast<std::uint32_t>(free_.size());
    }
    std::size_t waiting_count() const noexcept {
        guard const lock{mutex_};
        return waiters_.size();
    }

protected:
    lending(place const& where, std::uint32_t count)
        : thread_{hosting::thread_of(where.executor)},
          executor_{std::make_shared<boost::asio::any_io_executor const>(where.executor)},
          free_(count) {
        // The first is lent first.
        std::iota(free_.rbegin(), free_.rend(), 0U);
    }
    ~lending() = default;
    /// Call it once the object is complete.
    void join_context() {
        membership_.join(*executor_, this->weak_from_this(), hosting::rank::object);
    }

private:
    using guard = std::unique_lock<std::mutex>;
    using executor_ptr = std::shared_ptr<boost::asio::any_io_executor const>;

    // A handler that waits, and the lease that it gets.
    struct delivery {
        waiting_handler<error_code, Lease> handler;
        Lease lease;
    };
    // A thread that waits.
    struct blocked {
        std::condition_variable wakes;
        Lease lease;
        bool is_done = false;
    };
    struct waiter {
        std::variant<std::shared_ptr<delivery>, blocked*> who;

        boost::asio::cancellation_slot slot() const noexcept {
            auto const* const handler = std::get_if<std::shared_ptr<delivery>>(&who);
            return handler != nullptr ? (*handler)->handler.slot()
                                      : boost::asio::cancellation_slot{};
        }
        void note(bool const* is_cancelled) noexcept {
            std::get<std::shared_ptr<delivery>>(who)->handler.note(is_cancelled);
        }
    };
    using waiting = typename wait_list<waiter>::removed;

    virtual Lease lend(std::uint32_t index) noexcept = 0;

    // Handlers are destroyed uncalled, as Asio does with its own; threads wake.
    void context_is_going(boost::asio::execution_context const&) noexcept override {
        waiting dropped;
        executor_ptr gone;
        std::lock_guard const posting{posting_};
        {
            guard const lock{mutex_};
            is_closed_ = true;
            dropped = waiters_.take_all();
            gone.swap(executor_);
        }
        abort(std::move(dropped));
    }

    // Gives what is free to waiters, in their order. A handler is never called from here: this may
    // be a destructor of the program's.
    void serve() noexcept {
        for (;;) {
            guard lock{mutex_};
            if (free_.empty() || waiters_.empty()) return;
            std::uint32_t const index = free_.back();
            free_.pop_back();
            // Neither this nor put_back() allocates.
            waiting first = waiters_.take_first();
            if (auto* const thread = std::get_if<blocked*>(&first.front().handler.who)) {
                (*thread)->lease = lend(index);
                (*thread)->is_done = true;
                // Under the lock: the thread's stack is gone soon after it wakes.
                (*thread)->wakes.notify_one();
                continue;
            }
            auto const& what = std::get<std::shared_ptr<delivery>>(first.front().handler.who);
            what->lease = lend(index);
            lock.unlock();
            if (deliver(what, {})) continue;
            // No memory to post the handler: its turn comes with the next return.
            lock.lock();
            what->lease.disarm();
            free_.push_back(index);
            waiters_.put_back(first);
            return;
        }
    }

    // False if there was no memory to post a handler; then `what` is unchanged.
    bool deliver(std::shared_ptr<delivery> const& what, error_code ec) noexcept {
        std::lock_guard const posting{posting_};
        executor_ptr const executor = present_executor();
        if (executor == nullptr) return true;  // its context is gone, and the handler with it
        try {
            // A lease that the handler does not take returns by itself.
            boost::asio::post(*executor, [what, ec] {
                what->handler.hand_over({}, ec, std::move(what->lease));
            });
            return true;
        } catch (...) {
            return false;
        }
    }

    // A handler for which there is no memory is destroyed uncalled.
    void abort(waiting all) noexcept {
        for (auto& one : all) {
            if (auto* const thread = std::get_if<blocked*>(&one.handler.who)) {
                guard const lock{mutex_};
                (*thread)->is_done = true;
                (*thread)->wakes.notify_one();
            } else {
                static_cast<void>(deliver(
                    std::get<std::shared_ptr<delivery>>(one.handler.who),
                    boost::asio::error::operation_aborted
                ));
            }
        }
    }

    void cancel_one(std::uint64_t serial) {
        waiting taken;
        {
            guard const lock{mutex_};
            taken = waiters_.take(serial);
        }
        abort(std::move(taken));
    }

    executor_ptr present_executor() const {
        guard const lock{mutex_};
        return executor_;
    }

    std::shared_ptr<hosting::poller_thread> const thread_;
    hosting::membership membership_;

    // Held while a handler is posted, so that its context cannot be destroyed meanwhile. An executor of
    // the program's own may use this object.
    std::recursive_mutex posting_;
    mutable std::mutex mutex_;
    // Null once its context is destroyed. Shared, since the executor itself, which may be the
    // program's own, is neither copied nor destroyed under the lock.
    executor_ptr executor_;
    std::vector<std::uint32_t> free_;
    wait_list<waiter> waiters_;
    bool is_closed_ = false;
};

// Each pool instantiates these.

template <class Lease>
void lender_base<Lease>::start_acquire(lending<Lease>& from, lease_handler<Lease> handler) {
    from.start_acquire(std::move(handler));
}
template <class Lease>
Lease lender_base<Lease>::try_acquire() noexcept {
    return pool_->try_acquire();
}
template <class Lease>
Lease lender_base<Lease>::acquire() {
    error_code ec;
    Lease lease = pool_->acquire(ec);
    if (ec) throw boost::system::system_error{ec, "acquire"};
    return lease;
}
template <class Lease>
void lender_base<Lease>::cancel() noexcept {
    if (pool_ != nullptr) pool_->cancel();
}
template <class Lease>
void lender_base<Lease>::close() noexcept {
    if (pool_ != nullptr) pool_->close();
}
template <class Lease>
std::uint32_t lender_base<Lease>::free_count() const noexcept {
    return pool_->free_count();
}
template <class Lease>
std::size_t lender_base<Lease>::waiting_count() const noexcept {
    return pool_->waiting_count();
}

}  // namespace rcverbs::detail
