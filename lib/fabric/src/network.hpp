// network.hpp — a world's inside: everything there is, one lock around it, and what the C functions are made of.
//
// The C functions (libibverbs.cpp, librdmacm.cpp) check that there is a network, ask for an ordered failure, take the
// lock and call one member function each. Members say how they fail as an errno; 0 is success.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>

#include "objects.hpp"
#include "packet.hpp"

namespace rcverbs::fabric::detail {

/// What stands behind a program's device context.
context* context_of(ibv_context* raw) noexcept;

/// The data path's functions, which a program calls through its device context (libibverbs.cpp).
void fill_operations(context& c) noexcept;

/// Marks that this thread is in a function of the fabric's.
struct inside {
    inside() noexcept { ++depth; }
    ~inside() { --depth; }
    inside(inside const&) = delete;
    inside& operator=(inside const&) = delete;

    static inline thread_local int depth = 0;
};

class network {
public:
    explicit network(world_options options);
    ~network();

    /// The one network of this process; null if there is none.
    static network* current() noexcept;

    using guard = std::unique_lock<std::mutex>;
    guard lock() { return guard{mutex_}; }

    // --- network.cpp: time, devices, faults ----------------------------------------------------------------------
    bool is_stepped() const noexcept { return options_.mode == scheduling::stepped; }
    std::uint64_t seed() const noexcept { return seed_; }
    nanoseconds now() const;
    void at(nanoseconds when, std::function<void()> action);
    /// The same for a queue pair, if it is still there and the same by then.
    void at(nanoseconds when, queue_pair const& qp, void (network::*action)(queue_pair&));
    /// Runs what is due; true if there was something.
    bool run_due(guard& held);
    /// Moves the clock to the next event, be it the network's or a timer's, and runs it; false if there is none.
    bool jump(guard& held);
    void pass_time(nanoseconds by);
    /// One thread cannot wait for itself: better a loud end than a test that hangs.
    [[noreturn]] void would_block_for_ever(char const* function) const;
    /// Waits until every event about an object that is to be destroyed has been acknowledged.
    void wait_acknowledged(guard& held, char const* function, std::function<bool()> const& is_done);
    std::uint64_t pick(std::uint64_t low, std::uint64_t high) { return events_.pick(low, high); }

    device* find_device(std::string_view name);
    std::vector<std::unique_ptr<device>> devices;
    object_counts counts() const;

    /// Counts a call, and says with which errno it has to fail, if it has to.
    int failure_of(char const* function);
    std::vector<char const*> called;
    std::unordered_map<std::string, std::size_t> call_counts;
    /// Polls that found nothing and took no lock; while a failure is ordered there are none.
    std::atomic<std::size_t> empty_polls{0};
    std::atomic<bool> expects_failures{false};
    bool has_failed = false;
    void order_failure(std::string function, std::size_t nth, int error);

    std::function<packet_fate(packet_info const&)> packet_decision;
    std::function<cm_event_fate(cm_event_info const&)> cm_decision;
    flush_policy flush;
    std::size_t work_to_fail = 0;
    int work_status = 0;
    std::optional<int> reject_with;

    // --- memory.cpp: regions, windows, and the checks of the specification --------------------------------------
    int alloc_pd(ibv_context* in, domain*& out);
    int dealloc_pd(ibv_pd* raw);
    int reg_mr(ibv_pd* pd, void* at, std::size_t size, std::uint64_t iova, int access, region*& out);
    int dereg_mr(ibv_mr* raw);
    int alloc_mw(ibv_pd* pd, ibv_mw_type type, window*& out);
    int dealloc_mw(ibv_mw* raw);
    ibv_wc_status bind_window(queue_pair& qp, ibv_send_wr const& wr);
    ibv_wc_status invalidate(queue_pair& qp, std::uint32_t rkey);
    /// The bytes that a local segment names; null if the key does not open them.
    std::byte* local_bytes(ibv_pd* pd, ibv_sge const& segment, bool to_write);
    /// The bytes that a peer names; null if it may not.
    std::byte* remote_bytes(queue_pair& qp, std::uint64_t at, std::uint64_t size, std::uint32_t rkey, int access);
    /// Copies into a list of segments from `offset` on; false if a key does not open them.
    bool scatter(ibv_pd* pd, std::span<ibv_sge const> segments, std::uint64_t offset, std::span<std::byte const> from);
    bool gather(ibv_pd* pd, std::span<ibv_sge const> segments, std::uint64_t offset, std::span<std::byte> into);

    // --- completion.cpp ------------------------------------------------------------------------------------------
    int create_channel(ibv_context* in, completion_channel*& out);
    int destroy_channel(ibv_comp_channel* raw);
    int create_cq(ibv_context* in, int depth, void* context, ibv_comp_channel* channel, completion_queue*& out);
    int destroy_cq(ibv_cq* raw, guard& held);
    int poll(ibv_cq* raw, int count, ibv_wc* into);
    int arm(ibv_cq* raw, bool solicited_only);
    int take_cq_event(ibv_comp_channel* raw, ibv_cq** cq, void** context);
    void acknowledge(ibv_cq* raw, unsigned count);
    void push(completion_queue& cq, completion c);
    void overrun(completion_queue& cq);
    /// Breaks a queue pair, as the device's own fault.
    void fail_qp(queue_pair& qp);
    /// Fills what is undefined with what a program must not rely on.
    ibv_wc garbage();

    // --- async events, in completion.cpp ---------------------------------------------------------------------------
    void raise(context* in, ibv_event_type type, ibv_qp* qp = nullptr, ibv_cq* cq = nullptr, ibv_srq* srq = nullptr);
    void raise_port(device& on, ibv_event_type type);
    void drop_async(ibv_context* in, void const* object);
    int take_async_event(ibv_context* in, ibv_async_event* out);
    void acknowledge_async(ibv_async_event* event);

    // --- queue_pair.cpp: making, modifying, posting -----------------------------------------------------------
    int open_device(device& on, context*& out);
    int close_device(ibv_context* raw);
    int create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes, queue_pair*& out);
    int destroy_qp(ibv_qp* raw, guard& held);
    int modify_qp(ibv_qp* raw, ibv_qp_attr const* attributes, int mask);
    int query_qp(ibv_qp* raw, ibv_qp_attr* attributes, ibv_qp_init_attr* initial);
    int post_send(ibv_qp* raw, ibv_send_wr* list, ibv_send_wr** bad);
    int post_receive(ibv_qp* raw, ibv_recv_wr* list, ibv_recv_wr** bad);
    int create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes, shared_receive_queue*& out);
    int modify_srq(ibv_srq* raw, ibv_srq_attr* attributes, int mask);
    int query_srq(ibv_srq* raw, ibv_srq_attr* attributes);
    int destroy_srq(ibv_srq* raw, guard& held);
    int post_shared_receive(ibv_srq* raw, ibv_recv_wr* list, ibv_recv_wr** bad);
    /// The error state: what is posted comes back, flushed.
    void break_qp(queue_pair& qp);
    void flush_soon(queue_pair& qp);
    queue_pair* find_qp(std::uint32_t number);

    // --- requester.cpp, responder.cpp: the reliable connection ---------------------------------------------------
    void transmit(queue_pair& qp);
    void doorbell(queue_pair& qp);
    void send_packet(queue_pair& from, packet p);
    void arrive(packet const& p);

    // --- cm.cpp: the connection manager ------------------------------------------------------------------------------
    int create_cm_channel(cm_channel*& out);
    int destroy_cm_channel(rdma_event_channel* raw);
    int create_id(rdma_event_channel* channel, void* context, rdma_port_space space, cm_id*& out);
    int destroy_id(rdma_cm_id* raw, guard& held);
    int bind(rdma_cm_id* raw, sockaddr const* to);
    int listen(rdma_cm_id* raw, int backlog);
    int resolve_address(rdma_cm_id* raw, sockaddr const* from, sockaddr const* to, int timeout_ms);
    int resolve_route(rdma_cm_id* raw, int timeout_ms);
    int connect(rdma_cm_id* raw, rdma_conn_param const* parameters);
    int accept(rdma_cm_id* raw, rdma_conn_param const* parameters);
    int reject(rdma_cm_id* raw, void const* data, std::size_t size);
    int disconnect(rdma_cm_id* raw);
    int set_option(rdma_cm_id* raw, int level, int name, void const* value, std::size_t size);
    int migrate(rdma_cm_id* raw, rdma_event_channel* to);
    /// Opens a device once, for all ids.
    int borrow(device& from);
    int create_id_qp(rdma_cm_id* raw, ibv_pd* pd, ibv_qp_init_attr* attributes);
    int take_cm_event(rdma_event_channel* raw, rdma_cm_event** out);
    void acknowledge(rdma_cm_event* raw);

    // --- failures.cpp: what happens to devices ---------------------------------------------------------------------
    void kill_program(device& on);
    void power_off(device& on);
    void remove(device& on);
    void set_port(device& on, bool is_up);
    void lose_addresses(device& on);
    void fail_queue_pairs(device& on);
    void stop_send_queues(device& on);
    void overrun(device& on);

private:
    // requester.cpp
    bool send_next(queue_pair& qp);
    std::optional<ibv_wc_status> settle_locally(queue_pair& qp, send_work const& work);
    packet make_request(queue_pair const& qp, send_work const& work);
    bool fits_in_flight(queue_pair const& qp, send_work const& work) const;
    void go_back(queue_pair& qp, std::uint64_t number);
    void progress(queue_pair& qp);
    nanoseconds patience(queue_pair const& qp) const;
    void start_timer(queue_pair& qp);
    void on_timer(queue_pair& qp);
    void retire_sends(queue_pair& qp, std::uint64_t taken_below);
    void complete_send(queue_pair& qp, ibv_wc_status status);
    void fail_oldest(queue_pair& qp, ibv_wc_status status);
    void on_acknowledge(queue_pair& qp, packet const& p);
    void on_negative(queue_pair& qp, packet const& p);
    void on_answer(queue_pair& qp, packet const& p);
    nanoseconds travel(queue_pair& from);

    // responder.cpp
    void on_request(queue_pair& qp, packet const& p);
    void on_duplicate(queue_pair& qp, packet const& p);
    void execute(queue_pair& qp, packet const& p);
    void execute_send(queue_pair& qp, packet const& p);
    void execute_write(queue_pair& qp, packet const& p);
    void execute_read(queue_pair& qp, packet const& p);
    void execute_atomic(queue_pair& qp, packet const& p);
    bool take_receive(queue_pair& qp);
    void complete_receive(queue_pair& qp, packet const& p, ibv_wc_status status);
    bool may_answer(queue_pair& qp, packet const& p);
    void count_answer(queue_pair& qp);
    void end_answer(queue_pair& qp) { --qp.answers_under_way; }
    void acknowledge(queue_pair& qp, std::uint64_t number);
    void complain(queue_pair& qp, std::uint64_t number, packet::refusal why);
    void refuse(queue_pair& qp, packet const& p, packet::refusal why);

    // queue_pair.cpp
    int check_send(queue_pair& qp, ibv_send_wr const& wr);
    void flush_now(queue_pair& qp);
    void forget_work(queue_pair& qp);

    // cm.cpp
    cm_id* find_id(std::uint64_t number);
    cm_id* id_of(rdma_cm_id* raw);
    void tell(cm_id& id, rdma_cm_event_type type, int status = 0, terms const* with = nullptr, std::uint64_t child = 0);
    void give(std::unique_ptr<cm_event> event);
    void message(device& from, device* to, std::function<void()> on_arrival);
    void expect_answer(cm_id& id, cm_id::state while_in, rdma_cm_event_type otherwise, int status);
    void on_connect_request(std::uint64_t from);
    void on_reply(std::uint64_t to, std::uint64_t from);
    void on_ready(std::uint64_t to);
    void on_rejection(std::uint64_t to, int reason, std::vector<std::byte> data);
    void on_disconnect_request(std::uint64_t to, std::uint64_t from, device& from_device, device& to_device);
    void on_disconnect_reply(std::uint64_t to);
    void send_rejection(cm_id& id, int reason, std::vector<std::byte> data);
    void send_disconnect_request(cm_id& id);
    void send_disconnect_reply(cm_id& id);
    void say_goodbye(cm_id& id);
    void drop_events(cm_id& id);
    void forget(cm_id& id);
    int to_ready_to_send(cm_id& id);
    cm_id& make_id(cm_channel& channel, void* context, rdma_port_space space);
    int attach(cm_id& id, device& to);
    /// The device that has an address, pulled out or not; and only if it is there.
    device* device_with(address const& a);
    device* device_of(address const& a);
    /// Where the other side is, or was: what is sent to it need not arrive.
    device* far_device(cm_id const& id) { return device_with(id.remote); }
    device* way_to(address const& to, address const* from);
    int port_conflict(address const& a);
    std::uint16_t free_port();

    // failures.cpp
    void abandon(device& on, bool tells_peers);

    void carry_packets();

    world_options options_;
    std::uint64_t seed_;
    scheduler events_;
    mutable std::mutex mutex_;
    std::condition_variable acknowledged_;
    std::condition_variable changed_;
    bool is_ending_ = false;
    std::thread carrier_;
    nanoseconds virtual_now_{0};
    std::chrono::steady_clock::time_point began_;

    struct ordered_failure {
        std::string function;
        std::size_t nth;
        int error;
    };
    std::vector<ordered_failure> failures_;

    template <class T>
    using table = std::unordered_map<void const*, std::unique_ptr<T>>;
    std::map<std::uint64_t, std::unique_ptr<context>> contexts_;
    table<domain> domains_;
    table<region> regions_;
    table<window> windows_;
    table<completion_channel> channels_;
    table<completion_queue> queues_;
    table<shared_receive_queue> shared_;
    table<queue_pair> pairs_;
    table<cm_channel> cm_channels_;
    // In the order of their making, wherever the order of a walk can matter: a run must not depend on addresses.
    std::map<std::uint64_t, std::unique_ptr<cm_id>> ids_;
    std::unordered_map<void const*, cm_id*> id_pointers_;
    std::unordered_map<std::uint32_t, region*> local_keys_;
    std::unordered_map<std::uint32_t, region*> remote_keys_;
    std::unordered_map<std::uint32_t, window*> window_keys_;
    std::map<std::uint32_t, queue_pair*> numbers_;
    std::unordered_map<void const*, std::unique_ptr<cm_event>> given_events_;
    std::uint32_t next_key_ = 0x1000;
    std::uint32_t next_qp_ = 0x11;
    std::uint64_t next_serial_ = 1;
    std::uint64_t next_id_ = 1;
    std::uint16_t next_port_ = 32768;
};

}  // namespace rcverbs::fabric::detail
