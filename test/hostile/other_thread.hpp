// other_thread.hpp — rcverbs on a thread of its own, for tests whose peer's calls block.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <future>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include "device/fixture.hpp"

namespace test::hostile {

using rcverbs::error_code;

/// An io_context that runs on its own thread, because the peer's calls block.
class running_context {
public:
    ~running_context() { stop(); }
    asio::io_context io;

    void stop() {
        work_.reset();
        if (thread_.joinable()) thread_.join();
    }

private:
    asio::executor_work_guard<asio::io_context::executor_type> work_{io.get_executor()};
    std::thread thread_{[this] { io.run(); }};
};

/// The result of an operation of any kind, for another thread to wait for.
template <class... Values>
class outcome {
public:
    auto handler() {
        return [p = promise_](error_code ec, Values... values) {
            p->set_value({ec, std::move(values)...});
        };
    }
    std::tuple<error_code, Values...> get() { return future_.get(); }
    error_code code() { return std::get<0>(get()); }

private:
    using value_type = std::tuple<error_code, Values...>;
    std::shared_ptr<std::promise<value_type>> promise_ =
        std::make_shared<std::promise<value_type>>();
    std::future<value_type> future_ = promise_->get_future();
};

/// Waits for a condition that another thread fulfils.
template <class Condition>
bool comes_true(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(5ms);
    }
    return false;
}

}  // namespace test::hostile
