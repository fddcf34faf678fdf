// order_task.hpp — a function that is linked into the list of those that run in order. Internal.
#pragma once

#include <memory>
#include <utility>

#include <rcverbs/detail/handler_memory.hpp>

namespace rcverbs::hosting {

class order_task {
public:
    /// Runs the task, or only cleans it up if `is_wanted` is false. The function may post the task
    /// again.
    virtual void run(bool is_wanted) = 0;

protected:
    ~order_task() = default;

private:
    friend class gate;
    friend class task_list;
    order_task* next_ = nullptr;
};

/// Any function, in memory of its own.
template <class Function>
struct owned_task final : order_task, detail::recycled {
    Function function;
    explicit owned_task(Function&& f) : function{std::move(f)} {}
    explicit owned_task(Function const& f) : function{f} {}

    void run(bool is_wanted) override {
        std::unique_ptr<owned_task> const self{this};
        if (is_wanted) function();
    }
};

}  // namespace rcverbs::hosting
