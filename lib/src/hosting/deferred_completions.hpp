// deferred_completions.hpp — handlers to call after a lock has been released.
//
// User code is never called under a lock. The holder of a lock gathers handlers with their results
// here and calls them after it has released the lock.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <rcverbs/error.hpp>

#include "hosting/sequence.hpp"
#include <rcverbs/detail/waiting_handler.hpp>

namespace rcverbs::detail {

/// An ordered list of calls.
class deferred_completions {
public:
    deferred_completions() = default;
    deferred_completions(deferred_completions&&) noexcept = default;
    deferred_completions& operator=(deferred_completions&&) noexcept = default;

    bool empty() const noexcept { return list_.empty(); }

    /// Adds the completion of a handler, if there is one, and empties `waiter`.
    void complete(control_waiter& waiter, error_code ec) {
        if (waiter) list_.push_back({std::exchange(waiter, {}), ec, {}});
    }
    /// Adds a call of any function.
    void run(std::function<void()> function) { list_.push_back({{}, {}, std::move(function)}); }

    /// Makes the calls in order. If one throws, the rest are made later, in the same order.
    void make(hosting::sequence& order) {
        struct remainder {
            deferred_completions& all;
            hosting::sequence& order;
            std::size_t made = 0;

            ~remainder() {
                all.list_.erase(
                    all.list_.begin(), all.list_.begin() + static_cast<std::ptrdiff_t>(made)
                );
                if (all.empty()) return;
                order.resume([rest = std::move(all), order = order.shared_from_this()]() mutable {
                    rest.make(*order);
                });
            }
        };
        remainder r{*this, order};
        while (r.made < list_.size()) {
            call c = std::move(list_[r.made++]);
            // A handler of another context is gone if that context is.
            if (c.function) {
                c.function();
            } else if (c.waiter) {
                c.waiter(c.code);
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
