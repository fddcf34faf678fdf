// network.hpp — all objects of a world, one lock around them, and the functions behind the C API.
//
// Queue pairs implement their own protocol (objects.hpp), the connection manager owns its ids and
// channels, and the fault plan holds the faults that a test has ordered.
//
// The C functions (libibverbs.cpp, librdmacm.cpp) check that there is a network, take the lock,
// check for an ordered failure, and call one member function each. Members return 0 or an errno.
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

#include "connection_manager.hpp"
#include "fault_plan.hpp"
#include "objects.hpp"
#include "packet.hpp"
#include "wire.hpp"

namespace rcverbs::fabric::detail {

/// The object behind a device context of the program.
context* context_of(ibv_context* raw) noexcept;

/// Sets the functions of the data path, which a program calls through its device context
/// (libibverbs.cpp).
void fill_operations(context& c) noexcept;

/// Marks that this thread runs code of the fabric.
struct inside {
    inside() noexcept { ++depth; }
    ~inside() { --depth; }
    inside(inside const&) = delete;
    inside& operator=(inside const&) = delete;

    static inline thread_local int depth = 0;
};

class network {
public:
    using make_wire = std::function<std::unique_ptr<wire>(network&)>;

    /// With `make`, the network has other processes. REQUIRES: then it is not stepped.
    explicit network(world_options options, make_wire const& make = {});
    ~network();

    /// The one network of this process; null if there is none.
    static network* current() noexcept;
    /// Makes current() call `start` while there is no network.
    static void set_starter(network* (*start)() noexcept) noexcept;
    /// Why current() has none: ENODEV, or what the starter lacked.
    static int missing() noexcept;
    static void set_missing(int number) noexcept;
    /// After a fork, the child has no network: the thread and the sockets of this one are its parent's.
    static void forget() noexcept;

    using guard = std::unique_lock<std::mutex>;
    guard lock() { return guard{mutex_}; }

    // --- network.cpp: time, devices, faults ------------------------------------------------------
    bool is_stepped() const noexcept { return options_.mode == scheduling::stepped; }
    std::uint64_t seed() const noexcept { return seed_; }
    world_options const& options() const noexcept { return options_; }
    /// A number that no object has had before.
    std::uint64_t next_serial() noexcept { return next_serial_++; }
    nanoseconds now() const;
    void at(nanoseconds when, std::function<void()> action);
    /// The same for a queue pair, unless it was reset or destroyed by then.
    void at(nanoseconds when, queue_pair const& qp, void (queue_pair::*action)());
    /// Runs all due events; true if there was one.
    bool run_due(guard& held);
    /// When the first event is due.
    std::optional<nanoseconds> next_event() const {
        return events_.empty() ? std::nullopt : std::optional{events_.next()};
    }
    /// Advances the clock to the next event of the network or the next timer, and runs it; false if
    /// there is none.
    bool jump(guard& held);
    void pass_time(nanoseconds by);
    /// Aborts with a message: the only thread would wait for itself, and the test would hang.
    [[noreturn]] void would_block_for_ever(char const* function) const;
    /// Waits until every event about an object that is to be destroyed has been acknowledged.
    void wait_acknowledged(guard& held, char const* function, std::function<bool()> const& is_done);
    void notify_acknowledged() { acknowledged_.notify_all(); }
    std::uint64_t pick(std::uint64_t low, std::uint64_t high) { return events_.pick(low, high); }

    /// The other processes of the network; null if it is the world of one process.
    std::unique_ptr<wire> others;
    /// Packets for them that a fault delays.
    std::size_t delayed = 0;
    void flush() {
        if (others != nullptr) flush_to_others();
    }
    /// Waits until other processes have taken what was sent to them; not longer than this.
    void await_sent(nanoseconds at_most);
    /// Work of the network's thread on a thread that polls; nothing if another thread does it.
    void work_for_poll();

    device* find_device(std::string_view name);
    std::vector<std::unique_ptr<device>> devices;
    object_counts counts() const;

    /// The faults that a test has ordered.
    fault_plan faults;
    connection_manager cm{*this};

    // --- memory.cpp: regions, windows, and the checks of the specification -----------------------
    int alloc_pd(ibv_context* in, domain*& out);
    int dealloc_pd(ibv_pd* raw);
    int reg_mr(
        ibv_pd* pd, void* at, std::size_t size, std::uint64_t iova, int access, region*& out
    );
    int reg_dmabuf_mr(
        ibv_pd* pd,
        std::uint64_t offset,
        std::size_t size,
        std::uint64_t iova,
        int fd,
        int access,
        region*& out
    );
    int dereg_mr(ibv_mr* raw);
    int alloc_mw(ibv_pd* pd, ibv_mw_type type, window*& out);
    int dealloc_mw(ibv_mw* raw);
    ibv_wc_status bind_window(queue_pair& qp, ibv_send_wr const& wr);
    ibv_wc_status invalidate(queue_pair& qp, std::uint32_t rkey);
    /// The bytes of a local segment; null if its key does not permit the access.
    std::byte* local_bytes(ibv_pd* pd, ibv_sge const& segment, bool to_write);
    /// The bytes that a peer addresses; null if the access is not permitted.
    std::byte* remote_bytes(
        queue_pair& qp, std::uint64_t at, std::uint64_t size, std::uint32_t rkey, int access
    );
    /// Copies into a list of segments from `offset` on; false if a key does not permit it.
    bool scatter(
        ibv_pd* pd,
        std::span<ibv_sge const> segments,
        std::uint64_t offset,
        std::span<std::byte const> from
    );
    std::optional<std::span<std::byte const>> find_whole(
        ibv_pd* pd, std::span<ibv_sge const> segments, std::uint64_t offset, std::size_t size
    );
    bool gather(
        ibv_pd* pd,
        std::span<ibv_sge const> segments,
        std::uint64_t offset,
        std::span<std::byte> into
    );

    // --- completion.cpp --------------------------------------------------------------------------
    int create_channel(ibv_context* in, completion_channel*& out);
    int destroy_channel(ibv_comp_channel* raw);
    int create_cq(
        ibv_context* in, int depth, void* context, ibv_comp_channel* channel, completion_queue*& out
    );
    int destroy_cq(ibv_cq* raw, guard& held);
    int poll(ibv_cq* raw, int count, ibv_wc* into);
    int arm(ibv_cq* raw, bool solicited_only);
    int take_cq_event(ibv_comp_channel* raw, ibv_cq** cq, void** context);
    void acknowledge(ibv_cq* raw, unsigned count);
    void push(completion_queue& cq, completion c);
    void enqueue(completion_queue& cq, completion c);
    void overrun(completion_queue& cq);
    /// Random values for the undefined fields of a failed completion, so that no program relies on
    /// them.
    ibv_wc garbage();

    // --- async events, in completion.cpp ---------------------------------------------------------
    void raise(
        context* in,
        ibv_event_type type,
        ibv_qp* qp = nullptr,
        ibv_cq* cq = nullptr,
        ibv_srq* srq = nullptr
    );
    void raise_port(device& on, ibv_event_type type);
    void drop_async(ibv_context* in, void const* object);
    int take_async_event(ibv_context* in, ibv_async_event* out);
    void acknowledge_async(ibv_async_event* event);

    // --- queue_pair.cpp: making, modifying, posting ----------------------------------------------
    int open_device(device& on, context*& out);
    int close_device(ibv_context* raw);
    int create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes, queue_pair*& out);
    int destroy_qp(ibv_qp* raw, guard& held);
    int modify_qp(ibv_qp* raw, ibv_qp_attr const* attributes, int mask);
    int query_qp(ibv_qp* raw, ibv_qp_attr* attributes, ibv_qp_init_attr* initial);
    int query_ece(ibv_qp* raw, ibv_ece* out) const;
    int set_ece(ibv_qp* raw, ibv_ece const* wanted);
    int post_send(ibv_qp* raw, ibv_send_wr* list, ibv_send_wr** bad);
    int post_receive(ibv_qp* raw, ibv_recv_wr* list, ibv_recv_wr** bad);
    int create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes, shared_receive_queue*& out);
    int modify_srq(ibv_srq* raw, ibv_srq_attr* attributes, int mask);
    int query_srq(ibv_srq* raw, ibv_srq_attr* attributes);
    int destroy_srq(ibv_srq* raw, guard& held);
    int post_shared_receive(ibv_srq* raw, ibv_recv_wr* list, ibv_recv_wr** bad);
    queue_pair* find_qp(std::uint32_t number);
    /// Passes an arrived packet to its target.
    void deliver(packet const& p);
    /// Sends an acknowledgement of this queue pair with the next flush.
    void acknowledge_later(queue_pair const& qp);
    /// Packets that had to wait for room may be sent.
    void on_room();

    // --- failures.cpp: device failures -----------------------------------------------------------
    void kill_program(device& on);
    void power_off(device& on);
    void remove(device& on);
    void set_port(device& on, bool is_up);
    void lose_addresses(device& on);
    void fail_queue_pairs(device& on);
    void stop_send_queues(device& on);
    void overrun(device& on);

private:
    void begin(make_wire const& make);
    // failures.cpp
    void abandon(device& on, bool tells_peers);

    void add(domain& parent, std::unique_ptr<region> made, region*& out);
    void carry_packets();
    void flush_to_others();

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
    std::unordered_map<std::uint32_t, region*> local_keys_;
    std::unordered_map<std::uint32_t, region*> remote_keys_;
    std::unordered_map<std::uint32_t, window*> window_keys_;
    std::map<std::uint32_t, queue_pair*> numbers_;
    std::uint32_t next_key_ = 0x1000;
    std::uint32_t next_qp_ = 0x11;
    std::vector<std::uint32_t> free_numbers_;
    std::vector<std::uint32_t> acknowledging_;
    std::uint64_t next_serial_ = 1;
};

}  // namespace rcverbs::fabric::detail
