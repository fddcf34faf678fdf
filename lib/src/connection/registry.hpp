// registry.hpp — the connections and acceptors that live on one io_context.
//
// A service, made after the services that connections use, and so shut down before them: when the io_context is
// destroyed it stops the polling threads, takes every connection and acceptor apart while their parts still work, and
// destroys the handlers that wait, uncalled, as Asio does with its own.
#pragma once

#include <boost/asio/execution_context.hpp>

#include <map>
#include <memory>
#include <mutex>

#include "cm/event_channel.hpp"
#include "progress/descriptor_set.hpp"
#include "progress/poller_thread.hpp"

namespace rcverbs::detail {

/// Something that must not outlive the io_context's services.
class registered {
public:
    /// Takes it apart; nothing of it runs any more. Called at most once, with no lock held.
    virtual void shut_down() noexcept = 0;

protected:
    ~registered() = default;
};

class registry final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = registry;

    explicit registry(boost::asio::execution_context& context);

    void add(std::shared_ptr<registered> const& member);
    void remove(registered const* member) noexcept;

    cm::event_channel& channel() noexcept { return channel_; }
    progress::thread_owner& threads() noexcept { return threads_; }
    progress::descriptor_set& descriptors() noexcept { return descriptors_; }

private:
    void shutdown() noexcept override;

    progress::thread_owner& threads_;
    cm::event_channel& channel_;
    progress::descriptor_set& descriptors_;
    std::mutex mutex_;
    std::map<registered const*, std::weak_ptr<registered>> members_;
};

}  // namespace rcverbs::detail
