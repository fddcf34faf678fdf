// connection_manager.hpp — librdmacm and the kernel's part of it, from addresses to disconnects.
//
// The network's lock guards it. Members return 0 or an errno.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "objects.hpp"

namespace rcverbs::fabric::detail {

class network;

class connection_manager {
public:
    explicit connection_manager(network& of) noexcept : net_{of} {}

    int create_channel(cm_channel*& out);
    int destroy_channel(rdma_event_channel* raw);
    int create_id(rdma_event_channel* channel, void* context, rdma_port_space space, cm_id*& out);
    int destroy_id(rdma_cm_id* raw, std::unique_lock<std::mutex>& held);
    int bind(rdma_cm_id* raw, sockaddr const* to);
    int listen(rdma_cm_id* raw, int backlog);
    int resolve_address(rdma_cm_id* raw, sockaddr const* from, sockaddr const* to, int timeout_ms);
    int resolve_route(rdma_cm_id* raw, int timeout_ms);
    int connect(rdma_cm_id* raw, rdma_conn_param const* parameters);
    int init_qp_attr(rdma_cm_id* raw, ibv_qp_attr& attributes, int& mask);
    int establish(rdma_cm_id* raw);
    int accept(rdma_cm_id* raw, rdma_conn_param const* parameters);
    int reject(rdma_cm_id* raw, void const* data, std::size_t size);
    int disconnect(rdma_cm_id* raw);
    int set_option(rdma_cm_id* raw, int level, int name, void const* value, std::size_t size);
    int migrate(rdma_cm_id* raw, rdma_event_channel* to);
    /// Opens a device once, for all ids and device lists. give_back() follows for each success.
    int borrow(device& from);
    void give_back(device& to);
    void give_back(ibv_context* const* list);
    /// librdmacm looks for devices, and finds that some were removed.
    void forget_removed_devices();
    int create_queue_pair(rdma_cm_id* raw, ibv_pd* pd, ibv_qp_init_attr* attributes);
    int take_event(rdma_event_channel* raw, rdma_cm_event** out);
    void acknowledge(rdma_cm_event* raw);

    // --- device failures -------------------------------------------------------------------------
    /// Stops all events to the ids of a device; disconnects their peers if `tells_peers`.
    void abandon(device& on, bool tells_peers);
    void tell_of_removal(device& on);
    /// Another process has ended: its kernel disconnects. `is_lost` says whether an address, and an id
    /// there or 0 for one that is not known, were in that process.
    void lose_peers(std::function<bool(address const& remote, std::uint64_t id)> const& is_lost);
    /// A message of another process.
    void receive(cm_message const& m);
    /// The first number of an id. REQUIRES: there is no id.
    void begin_at(std::uint64_t number) noexcept { next_id_ = number; }
    /// Where the search for free ports begins. Processes that begin at the same one would take ports that others have just released,
    /// to which somebody may still connect.
    void begin_ports_at(unsigned number) noexcept { next_port_ = number % ports_count; }
    /// All existing ids have smaller numbers.
    std::uint64_t next_number() const noexcept { return next_id_; }
    std::size_t channel_count() const noexcept { return channels_.size(); }
    std::size_t id_count() const noexcept { return ids_.size(); }

private:
    cm_id* find_id(std::uint64_t number);
    cm_id* id_of(rdma_cm_id* raw);
    void tell(
        cm_id& id,
        rdma_cm_event_type type,
        int status = 0,
        terms const* with = nullptr,
        std::uint64_t child = 0
    );
    void give(std::unique_ptr<cm_event> event);
    void send(device& from, cm_message m);
    void receive(cm_message const& m, device& at);
    void expect_answer(cm_id& id, cm_id::state while_in, rdma_cm_event_type otherwise, int status);
    void send_request(cm_message m, nanoseconds until);
    void on_connect_request(cm_message const& m, device& at, std::optional<nanoseconds> until = {});
    void on_reply(cm_message const& m);
    void on_ready(cm_message const& m);
    void on_rejection(cm_message const& m);
    void on_disconnect_request(cm_message const& m, device& at);
    void on_disconnect_reply(cm_message const& m);
    /// The id that a message is for; null if there is none, or if it does not come from its peer.
    cm_id* target_of(cm_message const& m);
    void send_rejection(cm_id& id, int reason, std::vector<std::byte> data);
    void send_disconnect_request(cm_id& id);
    void send_disconnect_reply(cm_id& id);
    void say_goodbye(cm_id& id);
    void drop_events(cm_id& id);
    void forget(cm_id& id);
    int to_ready_to_send(cm_id& id);
    cm_id& make_id(cm_channel& channel, void* context, rdma_port_space space);
    int attach(cm_id& id, device& to);
    int use_default_pd(cm_id& id);
    void release_default_pd(cm_id& id);
    void describe(cm_id const& id, ibv_qp_attr& attributes, int& mask) const;
    void close_if_forgotten(device& which);
    /// The device that has an address, even if it was removed.
    device* device_with(address const& a);
    /// The same; null if it was removed.
    device* device_of(address const& a);
    device* way_to(address const& to, address const* from);
    int port_conflict(address const& a);
    int claim_port(address& a);
    void release_port(cm_id& id);
    std::uint16_t free_port();

    network& net_;
    std::unordered_map<void const*, std::unique_ptr<cm_channel>> channels_;
    // Ordered by creation, because a run must not depend on memory addresses.
    std::map<std::uint64_t, std::unique_ptr<cm_id>> ids_;
    std::unordered_map<void const*, cm_id*> id_pointers_;
    std::unordered_set<cm_id*> bound_;  // those that have been bound
    std::unordered_map<void const*, std::unique_ptr<cm_event>> given_events_;
    std::uint64_t next_id_ = 1;
    // Linux's default, ip_local_port_range.
    static constexpr unsigned first_port = 32768;
    static constexpr unsigned ports_count = 28232;
    unsigned next_port_ = 0;
};

}  // namespace rcverbs::fabric::detail
