// deadline.hpp — a time by which something must have happened. Experimental: it may change.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include <rcverbs/experimental/protocol/actor.hpp>

namespace rcverbs::protocol {

/// A time by which something must have happened. A member of an actor, or of what an actor has. Any
/// thread; destroyed inside.
class RCVERBS_EXPORT deadline final : private part {
public:
    explicit deadline(actor& owner);
    ~deadline();

    /// Runs the function inside, after this time, unless cancel() or start() is called
    /// before.
    void start(std::chrono::milliseconds after, std::function<void()> function);
    void cancel() noexcept;

private:
    struct state;

    void abandon() noexcept override;

    std::shared_ptr<state> state_;
};

}  // namespace rcverbs::protocol
