// repeating_timer.hpp — calls a function at an interval until it is stopped.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <chrono>
#include <functional>
#include <memory>

namespace demo {

/// To be used on its executor only.
class repeating_timer {
public:
    explicit repeating_timer(boost::asio::any_io_executor executor);
    repeating_timer(repeating_timer const&) = delete;
    repeating_timer& operator=(repeating_timer const&) = delete;
    ~repeating_timer() { stop(); }

    /// Calls `call` after each `interval`. `call` may call stop().
    void start(std::chrono::milliseconds interval, std::function<void()> call);
    /// Takes effect at once, also if an interval has just passed. (A steady_timer that is cancelled
    /// then completes without an error, and a handler that waits again would do so for ever.)
    void stop() noexcept;

private:
    struct run;

    boost::asio::any_io_executor executor_;
    std::shared_ptr<run> run_;
};

}  // namespace demo
