// guests.hpp — objects that hold handlers of an execution context, but run on another one.
//
// A service of the context. Destroying a context destroys the handlers that wait for it, as Asio
// does with its own. So the objects that keep such handlers elsewhere are notified first.
#pragma once

#include <boost/asio/execution_context.hpp>

#include <memory>
#include <mutex>
#include <vector>

namespace rcverbs::progress {

class guest {
public:
    /// The context is being destroyed: destroys all handlers of that context; none of them is
    /// called afterwards. May be called more than once.
    virtual void host_is_going() noexcept = 0;

protected:
    ~guest() = default;
};

class guests final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = guests;

    explicit guests(boost::asio::execution_context& context)
        : boost::asio::execution_context::service{context} {}

    void add(std::weak_ptr<guest> one);

private:
    void shutdown() noexcept override;

    std::mutex mutex_;
    std::vector<std::weak_ptr<guest>> all_;
    std::size_t tidy_at_ = 16;
};

}  // namespace rcverbs::progress
