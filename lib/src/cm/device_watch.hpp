// device_watch.hpp — what befalls a device, told to everybody whom it concerns.
//
// A device tells of ports that go down, queues that fail and its own end through one descriptor for the whole process, and each
// event is read once. So whoever reads one, on whatever io_context, tells the connections of all of them. Events are
// acknowledged before anybody is told: to destroy a queue waits for the acknowledgement of its events. Source:
// ibv_get_async_event(3).
//
// All functions may be called from any thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <rcverbs/error.hpp>

namespace rcverbs::cm {

/// An event that changes something for connections.
struct device_event {
    enum class kind : std::uint8_t {
        port_down,
        addresses_changed,
        queue_pair_failed,
        peer_violation,  // the peer asked a queue pair for what it was not given
        completion_queue_failed,
        shared_queue_failed,
        device_failed,
    };

    kind what = kind::device_failed;
    /// enum ibv_event_type.
    int type = 0;
    /// The ibv_qp, ibv_cq or ibv_srq that it is about: to compare with, and not to look into, for it may be gone.
    void const* object = nullptr;
    /// The queue pair's number, or the port's.
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
    /// The watch of an open device: the same for everybody, for as long as anybody holds it.
    static std::shared_ptr<device_watch> of(ibv_context* device, error_code& ec);

    explicit device_watch(ibv_context* device) noexcept : device_{device} {}

    /// Readable when there are events; never blocks. Belongs to the device.
    int descriptor() const noexcept { return device_->async_fd; }
    /// Whom to tell, for as long as they live.
    void add(std::weak_ptr<device_event_sink> sink);
    /// Takes the events there are and tells everybody. False if the device has none to give any more.
    bool tell();

private:
    enum class taken : std::uint8_t { event, of_no_interest, none, failed };
    taken take(device_event& e);

    ibv_context* const device_;
    std::mutex mutex_;
    std::vector<std::weak_ptr<device_event_sink>> sinks_;
    std::size_t tidy_at_ = 16;
};

}  // namespace rcverbs::cm
