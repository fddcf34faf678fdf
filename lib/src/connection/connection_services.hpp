// connection_services.hpp — the services of an execution context that connections and acceptors use.
//
// Its members are shut down before them: see hosting/members.hpp.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution_context.hpp>

#include <atomic>

#include "cm/event_channel.hpp"
#include "progress/descriptor_set.hpp"

namespace rcverbs::detail {

class connection_services final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = connection_services;

    explicit connection_services(boost::asio::execution_context& context);

    /// The service of an executor's context.
    static connection_services& of(boost::asio::any_io_executor const& executor);

    cm::event_channel& channel() noexcept { return channel_; }
    progress::descriptor_set& descriptors() noexcept { return descriptors_; }
    /// The number of completion queues that are polled on this context.
    std::atomic<unsigned>& sources() noexcept { return sources_; }

private:
    void shutdown() noexcept override {}

    cm::event_channel& channel_;
    progress::descriptor_set& descriptors_;
    std::atomic<unsigned> sources_{0};
};

}  // namespace rcverbs::detail
