// event_channel.hpp — the connection manager's event channel, one for each execution context.
//
// A service of the context. It waits on the channel's descriptor only while some id is alive, so
// that io_context::run() returns when the last connection and acceptor are gone. Every event is
// copied and acknowledged before its sink is called; so an id can be destroyed at any time, even by
// the handler of its own event.
//
// One lock serialises taking an event (librdmacm modifies ids and queue pairs in that call), every
// call on an id, destroying ids, and creating and destroying queue pairs (lock()). It is never held
// while a sink is called.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <rcverbs/error.hpp>

#include "cm/device_watch.hpp"
#include "cm/id.hpp"
#include "hosting/members.hpp"
#include "progress/descriptor_set.hpp"
#include "verbs/domain.hpp"

namespace rcverbs::cm {

class event_channel final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = event_channel;

    explicit event_channel(boost::asio::execution_context& context);
    ~event_channel() override;

    /// Sets the executor of the waits; only the first call has an effect. Call it before any other
    /// function.
    void run_on(boost::asio::any_io_executor const& executor);

    /// Makes an id for reliable connections; null on failure.
    std::unique_ptr<cm::id> make_id(error_code& ec);
    /// Moves an id here from another channel. Its events are then delivered on this context.
    error_code take_over(cm::id& from_elsewhere);

    /// The protection domain shared by the connections over `device`; created if there is none.
    std::shared_ptr<verbs::domain> shared_domain(
        verbs::device_context const& device, error_code& ec
    );

    /// Delivers the asynchronous events of `device` to `sink` while any id is alive.
    void watch(
        verbs::device_context const& device, std::weak_ptr<device_event_sink> sink, error_code& ec
    );

    /// Must be held while a queue pair is created or destroyed.
    [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock{mutex_}; }

private:
    friend class cm::id;

    struct destroy_channel {
        void operator()(rdma_event_channel* c) const noexcept { rdma_destroy_event_channel(c); }
    };

    void shutdown() noexcept override;
    error_code open();
    struct watched_device {
        watched_device(
            boost::asio::any_io_executor const& executor, std::shared_ptr<device_watch> events
        )
            : watch{std::move(events)},
              descriptor{executor} {}

        std::shared_ptr<device_watch> watch;
        boost::asio::posix::stream_descriptor descriptor;
        bool is_waiting = false;
        int new_sinks = 0;  // that are about to be added
    };

    void wait();
    void wait(std::shared_ptr<watched_device> const& d);
    std::shared_ptr<watched_device> find_watched(
        verbs::device_context const& device, error_code& ec
    );
    void stop_watching(watched_device& d) noexcept;
    void on_readable();
    bool take_event(event& e, std::shared_ptr<event_sink>& sink);
    std::unique_ptr<cm::id> adopt(rdma_cm_id* raw);
    void destroy(cm::id& doomed) noexcept;
    void forget_one() noexcept;
    void set_sink(cm::id& owner, std::weak_ptr<event_sink> sink);

    hosting::members& members_;
    progress::descriptor_set& descriptors_;
    std::mutex mutex_;
    std::unique_ptr<rdma_event_channel, destroy_channel> channel_;
    boost::asio::any_io_executor executor_;
    std::optional<boost::asio::posix::stream_descriptor> descriptor_;
    // A watch keeps its device open, so that no other device has the same key. Shared with the
    // handlers of the waits.
    std::map<ibv_context*, std::shared_ptr<watched_device>> devices_;
    std::size_t live_ids_ = 0;
    bool is_waiting_ = false;
    bool is_shut_down_ = false;

    std::mutex domains_mutex_;
    // A domain keeps its device open, too.
    std::map<ibv_context*, std::weak_ptr<verbs::domain>> domains_;
};

}  // namespace rcverbs::cm
