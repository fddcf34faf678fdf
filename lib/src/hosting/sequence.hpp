// sequence.hpp — runs an object's functions on an executor, in order and one at a time.
//
// Like Asio's strand, with any number of threads, but for functions that are posted again and
// again: they are linked, not copied. If the executor is an io_context's own, the one handler that
// the sequence has in its queue always uses the same memory. So polling allocates nothing.
//
// When the handler runs, it calls the functions posted so far. Functions posted meanwhile wait for
// the next run, so that other handlers in the executor's queue can run. Any thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include <rcverbs/detail/order_task.hpp>

#include "hosting/light_mutex.hpp"

namespace rcverbs::hosting {

/// Linked tasks.
class task_list {
public:
    bool is_empty() const noexcept { return first_ == nullptr; }
    void push_back(order_task& t) noexcept;
    void push_front(task_list& other) noexcept;
    /// Null if there is none.
    order_task* pop_front() noexcept;

private:
    order_task* first_ = nullptr;
    order_task* last_ = nullptr;
};

class sequence : public std::enable_shared_from_this<sequence> {
public:
    using task = order_task;

    explicit sequence(boost::asio::any_io_executor executor);
    ~sequence();

    /// REQUIRES: the task is not posted.
    void post(task& what) { post(what, posted_); }
    /// Runs the task at once if nobody runs the sequence, else posts it. REQUIRES: a handler of the sequence's executor calls it; the
    /// task is not posted.
    void dispatch(task& what);
    /// As post(), before all that is posted, and before the rest of the tasks that are running: for what
    /// an exception has interrupted.
    template <class Function>
    void resume(Function&& function) {
        post(*new owned_task<std::decay_t<Function>>{std::forward<Function>(function)}, resumed_);
    }
    /// Posts any function, in memory of its own.
    template <class Function>
    void call(Function&& function) {
        post(*new owned_task<std::decay_t<Function>>{std::forward<Function>(function)});
    }

    /// Cleans up the posted tasks without running them, and releases the executor. REQUIRES: no
    /// thread runs the sequence any more.
    void abandon() noexcept;

private:
    // Allocates the handler in the executor's queue from slot_; there is one such handler at a
    // time.
    template <class T>
    struct slot_allocator;
    struct runner;

    void post(task& what, task_list& to);
    enum class turn { taken, others, abandoned };
    turn add(task& what, task_list& to);
    void schedule();
    void run();

    boost::asio::any_io_executor executor_;
    std::optional<boost::asio::io_context::executor_type> concrete_;
    light_mutex mutex_;
    task_list posted_;
    task_list resumed_;
    bool is_scheduled_ = false;
    bool is_abandoned_ = false;
    bool is_slot_taken_ = false;
    alignas(std::max_align_t) std::array<std::byte, 128> slot_;
};

}  // namespace rcverbs::hosting
