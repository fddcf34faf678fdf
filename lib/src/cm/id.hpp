// id.hpp — one connection manager id, and the events that its owner receives.
#pragma once

#include <rdma/rdma_cma.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>

namespace rcverbs::cm {

class event_channel;
class id;

/// A copy of an event, already acknowledged.
struct event {
    rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_RESOLVED;
    /// 0, a negative errno, or a rejection's reason.
    int status = 0;
    /// As delivered: padded with zeros to the field's full length.
    std::vector<std::byte> private_data;
    /// The depths that the peer requests or grants, from the point of view of this side. Source:
    /// rdma_get_cm_event(3).
    std::uint8_t initiator_depth = 0;
    std::uint8_t responder_resources = 0;
    /// The new id of a connection request. If the sink does not take it, it is destroyed, which
    /// rejects the request.
    std::unique_ptr<id> incoming;
};

/// Receives the events of an id.
class event_sink {
public:
    /// Called on a thread that runs the channel's context, one event of an id at a time, with no
    /// lock held.
    virtual void on_event(event& e) = 0;

protected:
    ~event_sink() = default;
};

/// Parameters of connect and accept.
struct connection_parameters {
    std::uint8_t initiator_depth = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t retry_count = 0;
    std::uint8_t rnr_retry_count = 0;
    std::span<std::byte const> private_data;
};

/// An id of an event channel. Its functions never block on the network and report failures as errno
/// codes. Destroying it is safe on any thread: its pending events are acknowledged first, and none
/// is delivered afterwards.
class id {
public:
    id(event_channel& channel, rdma_cm_id* raw) noexcept : channel_{&channel}, raw_{raw} {}
    id(id const&) = delete;
    id& operator=(id const&) = delete;
    ~id();

    /// Sets the receiver of the events. While there is none, events are acknowledged and dropped.
    void set_sink(std::weak_ptr<event_sink> sink);

    error_code bind(endpoint const& local);
    error_code listen(int backlog);
    error_code resolve_address(
        boost::asio::ip::address const* source,
        endpoint const& peer,
        std::chrono::milliseconds timeout
    );
    error_code resolve_route(std::chrono::milliseconds timeout);
    error_code set_ack_timeout(std::uint8_t code);
    error_code set_type_of_service(std::uint8_t type);
    error_code connect(connection_parameters const& parameters);
    error_code accept(connection_parameters const& parameters);
    /// True if the peer withdrew the request, or if the request timed out in the kernel. No event
    /// reports either of them before the request is accepted.
    bool is_withdrawn();
    /// The path MTU that the peer's request asks for, as its code; 0 if it is not known.
    unsigned asked_path_mtu();
    error_code reject(std::span<std::byte const> private_data);
    error_code disconnect();

    endpoint local() const;
    endpoint peer() const;
    /// The device that the address resolved to, opened by librdmacm; null before address
    /// resolution.
    ibv_context* device() const noexcept { return raw_->verbs; }
    /// The port of that device.
    std::uint32_t port() const noexcept { return raw_->port_num; }
    /// The GID of this side (16 bytes); zeros before address resolution.
    std::uint8_t const* source_gid() const noexcept {
        return raw_->route.addr.addr.ibaddr.sgid.raw;
    }
    rdma_cm_id* raw() const noexcept { return raw_; }

private:
    friend class event_channel;

    // Changed only by the owner, before any other thread can use the id.
    event_channel* channel_;
    rdma_cm_id* raw_;
    std::weak_ptr<event_sink> sink_;  // guarded by the channel's lock
};

}  // namespace rcverbs::cm
