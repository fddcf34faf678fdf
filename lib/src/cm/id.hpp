// id.hpp — one connection manager id, and what the event channel tells its owner.
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
    /// What the peer asks for or grants, from this side's point of view. Source: rdma_get_cm_event(3).
    std::uint8_t initiator_depth = 0;
    std::uint8_t responder_resources = 0;
    /// The new id of a connection request; destroyed, which refuses the request, if nobody takes it.
    std::unique_ptr<id> incoming;
};

/// Who owns an id.
class event_sink {
public:
    /// Called on a thread that runs the io_context, one event of an id at a time, with no lock held.
    virtual void on_event(event& e) = 0;

protected:
    ~event_sink() = default;
};

/// What connect and accept ask for.
struct connection_parameters {
    std::uint8_t initiator_depth = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t retry_count = 0;
    std::uint8_t rnr_retry_count = 0;
    std::span<std::byte const> private_data;
};

/// An id of an event channel. Its functions never block on the network; failures are errno. Destroying it is safe on any
/// thread: events of it that are under way are acknowledged before, and none is delivered afterwards.
class id {
public:
    id(event_channel& channel, rdma_cm_id* raw) noexcept : channel_{channel}, raw_{raw} {}
    id(id const&) = delete;
    id& operator=(id const&) = delete;
    ~id();

    /// Who gets the events; until there is one, and after it is gone, events are acknowledged and dropped.
    void set_sink(std::weak_ptr<event_sink> sink);

    error_code bind(endpoint const& local);
    error_code listen(int backlog);
    error_code resolve_address(
        boost::asio::ip::address const* source, endpoint const& peer, std::chrono::milliseconds timeout
    );
    error_code resolve_route(std::chrono::milliseconds timeout);
    error_code set_ack_timeout(std::uint8_t code);
    error_code connect(connection_parameters const& parameters);
    error_code accept(connection_parameters const& parameters);
    error_code reject(std::span<std::byte const> private_data);
    error_code disconnect();

    endpoint local() const;
    endpoint peer() const;
    /// The device that the address led to, opened by librdmacm; null before address resolution.
    ibv_context* device() const noexcept { return raw_->verbs; }
    /// The device's port that it led to.
    std::uint32_t port() const noexcept { return raw_->port_num; }
    /// The address that this side goes by on the network, a GID; null before address resolution.
    std::uint8_t const* source_gid() const noexcept { return raw_->route.addr.addr.ibaddr.sgid.raw; }
    rdma_cm_id* raw() const noexcept { return raw_; }

private:
    friend class event_channel;

    event_channel& channel_;
    rdma_cm_id* raw_;
    std::weak_ptr<event_sink> sink_;  // guarded by the channel's lock
};

}  // namespace rcverbs::cm
