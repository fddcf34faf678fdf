// repeating_signals.hpp — calls a function for each signal until it is stopped.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <functional>
#include <initializer_list>
#include <memory>

namespace demo {

/// To be used on its executor only.
class repeating_signals {
public:
    explicit repeating_signals(boost::asio::any_io_executor executor);
    repeating_signals(repeating_signals const&) = delete;
    repeating_signals& operator=(repeating_signals const&) = delete;
    ~repeating_signals() { stop(); }

    /// Calls `call` with the number of each signal that arrives. `call` may call stop().
    void start(std::initializer_list<int> numbers, std::function<void(int)> call);
    /// Takes effect at once, also if a signal has just arrived. (A signal_set that is cancelled then
    /// completes without an error, and a handler that waits again would do so for ever.) Until this
    /// object is destroyed, the signals are ignored.
    void stop() noexcept;

private:
    struct run;

    std::shared_ptr<run> run_;
};

}  // namespace demo
