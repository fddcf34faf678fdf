// poller_core.hpp — what a poller is: an executor, the sequence that all polling and handlers run in, how
// to poll, its completion queues, and its thread, if it has one.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <rcverbs/poller.hpp>

namespace rcverbs::hosting {
class poller_thread;
class sequence;
}  // namespace rcverbs::hosting

struct ibv_context;

namespace rcverbs::progress {

class cq_poller;

class poller_core {
public:
    /// Without a thread. Throws errc::invalid_option.
    poller_core(boost::asio::any_io_executor executor, poller_options const& options);
    /// Starts a thread.
    explicit poller_core(poller_options const& options);
    ~poller_core();

    boost::asio::any_io_executor const& executor() const noexcept { return executor_; }
    std::shared_ptr<hosting::sequence> const& order() const noexcept { return order_; }
    polling_options const& polling() const noexcept { return polling_; }
    std::optional<std::uint32_t> completion_vector() const noexcept { return completion_vector_; }

    /// The queues on a device: those that exist, or those that `make` makes. `last` has ended, and is
    /// not returned. Any thread.
    std::shared_ptr<cq_poller> queues_on(
        ibv_context* device,
        cq_poller const* last,
        std::function<std::shared_ptr<cq_poller>()> const& make
    ) const;

private:
    // Null for an executor of the program's.
    std::shared_ptr<hosting::poller_thread> thread_;
    boost::asio::any_io_executor executor_;
    std::shared_ptr<hosting::sequence> const order_;
    polling_options polling_;
    std::optional<std::uint32_t> completion_vector_;
    mutable std::mutex mutex_;
    mutable std::map<ibv_context*, std::weak_ptr<cq_poller>> queues_;
};

}  // namespace rcverbs::progress
