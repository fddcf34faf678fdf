// poller_core.hpp — what a poller is: an executor, how to poll on it, and its thread, if it has one.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <rcverbs/poller.hpp>

namespace rcverbs::hosting {
class poller_thread;
}  // namespace rcverbs::hosting

namespace rcverbs::progress {

class poller_core {
public:
    /// Without a thread. Throws errc::invalid_option.
    poller_core(boost::asio::any_io_executor executor, poller_options const& options);
    /// Starts a thread.
    explicit poller_core(poller_options const& options);

    boost::asio::any_io_executor const& executor() const noexcept { return executor_; }
    polling_options const& polling() const noexcept { return polling_; }
    std::optional<std::uint32_t> completion_vector() const noexcept { return completion_vector_; }

private:
    // Null for an executor of the program's.
    std::shared_ptr<hosting::poller_thread> thread_;
    boost::asio::any_io_executor executor_;
    polling_options polling_;
    std::optional<std::uint32_t> completion_vector_;
};

}  // namespace rcverbs::progress
