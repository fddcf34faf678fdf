// calls.hpp — what is to be called once a lock has been released.
//
// User code is never called under a lock. Whoever holds one gathers calls here and makes them afterwards.
#pragma once

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/append.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <rcverbs/error.hpp>
#include <rcverbs/failure.hpp>

namespace rcverbs::detail {

/// A handler of a control operation that waits, with its executor's work.
template <class... Arguments>
class waiting_handler {
public:
    using handler_type = boost::asio::any_completion_handler<void(Arguments...)>;

    waiting_handler() = default;
    waiting_handler(handler_type handler, boost::asio::any_io_executor const& io)
        : work_{boost::asio::prefer(
              boost::asio::get_associated_executor(handler, io),
              boost::asio::execution::outstanding_work.tracked
          )} {
        // Not assigned: in Boost 1.81 the handler's move assignment calls itself for ever.
        handler_.swap(handler);
    }
    waiting_handler(waiting_handler&& other) noexcept
        : serial{other.serial}, work_{std::exchange(other.work_, {})} {
        handler_.swap(other.handler_);
    }
    waiting_handler& operator=(waiting_handler&& other) noexcept {
        waiting_handler moved{std::move(other)};
        handler_.swap(moved.handler_);
        std::swap(work_, moved.work_);
        serial = moved.serial;
        return *this;
    }

    explicit operator bool() const noexcept { return static_cast<bool>(handler_); }
    boost::asio::cancellation_slot slot() const noexcept {
        return boost::asio::get_associated_cancellation_slot(handler_);
    }

    /// Calls the handler as dispatch does. REQUIRES: there is one.
    void operator()(Arguments... arguments) {
        auto const executor = std::exchange(work_, {});
        handler_type handler;
        handler.swap(handler_);
        boost::asio::dispatch(executor, boost::asio::append(clearing{std::move(handler)}, std::move(arguments)...));
    }

    /// Tells one wait from the next, for cancellations that come late.
    std::uint64_t serial = 0;

private:
    // The handler, which lets go of its cancellation slot on its own executor and nowhere else: that is where signals are
    // emitted.
    struct clearing {
        using allocator_type = boost::asio::associated_allocator_t<handler_type>;
        allocator_type get_allocator() const noexcept { return boost::asio::get_associated_allocator(handler); }

        handler_type handler;
        void operator()(Arguments... arguments) {
            boost::asio::get_associated_cancellation_slot(handler).clear();
            std::move(handler)(std::move(arguments)...);
        }
    };

    handler_type handler_;
    boost::asio::any_completion_executor work_;
};

using control_waiter = waiting_handler<error_code>;

/// An ordered list of calls.
class calls {
public:
    calls() = default;
    calls(calls&&) noexcept = default;
    calls& operator=(calls&&) noexcept = default;

    bool empty() const noexcept { return list_.empty(); }

    /// Completes a handler, if there is one, and leaves none behind.
    void complete(control_waiter& waiter, error_code ec) {
        if (waiter) list_.push_back({std::exchange(waiter, {}), ec, {}});
    }
    /// Calls any function.
    void run(std::function<void()> function) { list_.push_back({{}, {}, std::move(function)}); }

    /// Makes the calls, in order. Should one throw, the rest is made by `executor`.
    void make(boost::asio::any_io_executor const& executor) {
        struct remainder {
            calls& all;
            boost::asio::any_io_executor const& executor;
            std::size_t made = 0;

            ~remainder() {
                all.list_.erase(all.list_.begin(), all.list_.begin() + static_cast<std::ptrdiff_t>(made));
                if (all.empty()) return;
                boost::asio::post(executor, [rest = std::move(all), executor = executor]() mutable {
                    rest.make(executor);
                });
            }
        };
        remainder r{*this, executor};
        while (r.made < list_.size()) {
            call c = std::move(list_[r.made++]);
            if (c.waiter) {
                c.waiter(c.code);
            } else {
                c.function();
            }
        }
    }

private:
    struct call {
        control_waiter waiter;
        error_code code;
        std::function<void()> function;
    };
    std::vector<call> list_;
};

}  // namespace rcverbs::detail
