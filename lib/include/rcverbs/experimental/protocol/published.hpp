// published.hpp — what an actor lets other threads see. Experimental: it may change.
#pragma once

#include <mutex>
#include <utility>

namespace rcverbs::protocol {

/// A value that an actor sets inside, and any thread copies.
template <class Value>
class published {
public:
    void set(Value value) {
        // The old one is destroyed behind the lock.
        Value old = std::move(value);
        std::lock_guard const lock{mutex_};
        std::swap(value_, old);
    }
    Value get() const {
        std::lock_guard const lock{mutex_};
        return value_;
    }

private:
    mutable std::mutex mutex_;
    Value value_{};
};

}  // namespace rcverbs::protocol
