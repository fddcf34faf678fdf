// io_object_service.hpp — the connections and acceptors of one execution context.
//
// An Asio service, created after the services that connections use and therefore shut down before
// them. When the context is destroyed, it shuts down every connection and acceptor while the other
// services still work. Waiting handlers are destroyed uncalled, as in Asio.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution_context.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "cm/event_channel.hpp"
#include "progress/descriptor_set.hpp"

namespace rcverbs::detail {

/// An object that must be shut down before the context's services are.
class io_object {
public:
    /// Releases everything that belongs to the context, when nothing of the object runs any more.
    /// Called at most once, with no lock held.
    virtual void shut_down() noexcept = 0;

protected:
    ~io_object() = default;
};

class io_object_service final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = io_object_service;

    explicit io_object_service(boost::asio::execution_context& context);

    /// The service of an executor's context.
    static io_object_service& of(boost::asio::any_io_executor const& executor);

    /// Which objects are shut down first: those that use connections.
    enum class layer { above, connections };

    void add(std::shared_ptr<io_object> const& member, layer of = layer::connections);
    void remove(io_object const* member) noexcept;

    cm::event_channel& channel() noexcept { return channel_; }
    progress::descriptor_set& descriptors() noexcept { return descriptors_; }
    /// The number of completion queues that are polled on this context.
    std::atomic<unsigned>& sources() noexcept { return sources_; }

private:
    void shutdown() noexcept override;

    cm::event_channel& channel_;
    progress::descriptor_set& descriptors_;
    std::atomic<unsigned> sources_{0};
    std::mutex mutex_;
    std::map<std::pair<layer, io_object const*>, std::weak_ptr<io_object>> members_;
};

}  // namespace rcverbs::detail
