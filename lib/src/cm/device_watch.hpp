// device_watch.hpp — dispatches a device's asynchronous events to all connections of the process.
//
// A device reports port failures, queue failures and its own fatal error through one descriptor for
// the whole process, and each event can be read only once. So the thread that reads an event, on
// any io_context, dispatches it to the connections of all io_contexts. Events are acknowledged
// before they are dispatched, because destroying a queue waits for the acknowledgement of its
// events. Source: ibv_get_async_event(3).
//
// All functions may be called from any thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <rcverbs/error.hpp>

#include "verbs/device.hpp"

namespace rcverbs::cm {

/// An event that changes something for connections.
struct device_event {
    enum class kind : std::uint8_t {
        port_down,
        addresses_changed,
        queue_pair_failed,
        peer_violation,  // the peer sent an invalid request or exceeded its access rights
        completion_queue_failed,
        shared_queue_failed,
        device_failed,
    };

    kind what = kind::device_failed;
    /// enum ibv_event_type.
    int type = 0;
    /// The ibv_qp, ibv_cq or ibv_srq of the event. For comparison only: the object may already be
    /// destroyed, so it must not be dereferenced.
    void const* object = nullptr;
    /// The queue pair number, or the port number.
    std::uint32_t number = 0;
};

class device_event_sink {
public:
    /// Called with no lock held, on a thread that runs some io_context.
    virtual void on_device_event(device_event const& e) = 0;

protected:
    ~device_event_sink() = default;
};

class device_watch {
public:
    /// The watch of an open device; null on failure. All callers share one watch, which exists
    /// while any of them holds it.
    static std::shared_ptr<device_watch> of(verbs::device_context const& device, error_code& ec);

    explicit device_watch(verbs::device_context device) noexcept : device_{std::move(device)} {}

    /// Readable when events are pending. Non-blocking. Owned by the device.
    int descriptor() const noexcept { return device_->async_fd; }
    /// Registers a sink. Expired sinks are skipped.
    void add(std::weak_ptr<device_event_sink> sink);
    /// True if any sink has not expired.
    bool has_sinks();
    /// Reads all pending events and passes them to the sinks. Returns false if reading failed: the
    /// device delivers no further events.
    bool tell();

private:
    enum class taken : std::uint8_t { event, of_no_interest, none, failed };
    taken take(device_event& e);

    verbs::device_context const device_;
    std::mutex mutex_;
    std::vector<std::weak_ptr<device_event_sink>> sinks_;
    std::size_t tidy_at_ = 16;
};

}  // namespace rcverbs::cm
