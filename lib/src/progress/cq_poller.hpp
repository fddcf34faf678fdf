// cq_poller.hpp — polls the completion queues of one device that the connections of one poller share,
// and delivers the completions.
//
//        rounds ── nothing found, and the mode allows sleep ──▶ asleep (armed, waits on the channel)
//          ▲                                                      │
//          └──────────── the channel's event, or a new member ────┘
//
// The poller is a task that posts itself. Each round polls the queues a few times and then returns,
// so that other handlers in the executor's queue can run. Therefore a polling thread is just an
// io_context that one thread runs, and the program's own executor works as well as one of the library.
// If the rounds find no completion for long enough, the poller arms the queues, polls once more
// (completions from before the arming raise no event), and waits on the descriptor: one for all
// queues.
//
// A queue pair reserves a place in a queue that cannot overflow, joins when it exists, and leaves by
// being destroyed. A device may leave completions of a destroyed queue pair in the queue, and may give
// its number to another one. So the destruction holds the mutex that join() takes, and the queue is
// polled to its end before the number is free. The queues are destroyed with the last place.
//
// Threads: reserving, joining and giving back, any; leave() in the sequence, or when no thread runs
// the executor any more; all else in the sequence. Lock order: the connection's lock, this one, then
// the event channel's.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <rcverbs/error.hpp>
#include <rcverbs/poller.hpp>
#include <rcverbs/statistics.hpp>

#include "hosting/sequence.hpp"
#include "progress/cq_lane.hpp"
#include "progress/descriptor_set.hpp"
#include "verbs/device.hpp"

namespace rcverbs::progress {

class cq_poller;

/// A queue pair's place in a completion queue. Its functions are called by one thread at a time.
class cq_place {
public:
    cq_place() = default;
    cq_place(cq_place&&) noexcept = default;
    cq_place& operator=(cq_place other) noexcept {
        std::swap(poller_, other.poller_);
        std::swap(member_, other.member_);
        return *this;
    }
    /// Gives the place back. REQUIRES: it has not joined, or has left.
    ~cq_place();

    /// False without a place.
    explicit operator bool() const noexcept { return poller_ != nullptr; }
    /// The completion queue; null without a place.
    ibv_cq* queue() const noexcept {
        return poller_ != nullptr ? member_->lane->queue.get() : nullptr;
    }
    std::uint32_t vector() const noexcept { return member_->lane->vector; }

    /// Delivers the completions of the queue pair with that number from now on, and keeps `sink`
    /// alive, until leave(). Call wake() of the result afterwards, without a lock.
    std::shared_ptr<cq_poller> join(std::uint32_t number, std::shared_ptr<completion_sink> sink);
    /// True from join() to leave().
    bool has_joined() const noexcept {
        return poller_ != nullptr && member_->now != cq_member::stage::outside;
    }

    using take_function = std::function<void(std::span<ibv_wc const>)>;
    /// Destroys the queue pair, and ends the use of the completion queue. Its completions that are in
    /// the queue are given to `take` before `destroy` is called, as a device may discard them with the
    /// queue pair, and again afterwards. If `destroy` returns false, the queue pair may still
    /// complete work, so the queue is leaked. Returns the result of `destroy`.
    bool leave(std::function<bool()> const& destroy, take_function const& take);

    /// The counters of polling, also after leave().
    void read(connection_statistics& into) const noexcept;

private:
    friend class cq_poller;

    cq_place(std::shared_ptr<cq_poller> poller, std::unique_ptr<cq_member> member) noexcept
        : poller_{std::move(poller)},
          member_{std::move(member)} {}

    std::shared_ptr<cq_poller> poller_;
    std::unique_ptr<cq_member> member_;
    // The poller's counters when the queue pair left.
    std::uint64_t empty_polls_ = 0;
    std::uint64_t sleeps_ = 0;
};

class cq_poller final : public std::enable_shared_from_this<cq_poller> {
public:
    struct settings {
        verbs::device_context device;
        std::uint32_t device_depth_max;
        polling_options polling;
        /// The completion vector of the next queue.
        std::function<std::uint32_t()> vector;
    };

    /// `sources` counts the pollers on the same context; both references must live until the last
    /// place is given back.
    cq_poller(
        boost::asio::any_io_executor executor,
        std::shared_ptr<hosting::sequence> order,
        settings how,
        std::atomic<unsigned>& sources,
        descriptor_set& descriptors
    );
    ~cq_poller();

    /// A place in a queue with room for that many completions: in the first that has it, or in a new
    /// one. Empty without an error if the poller has ended: then make another one.
    cq_place reserve(machines::completion_share const& share, error_code& ec);
    /// Lets the poller find those that have joined.
    void wake();

private:
    friend class cq_place;

    // A round ends after this many completed work requests, or after this many empty polls in a
    // row. The limits are so high that the cost of the run queue, which is a system call as soon as
    // it holds a timer or a descriptor, does not show even at the 99th percentile, and so low that
    // other posted handlers run soon. The pollers of one context share both limits: the run queue is
    // passed once for all of them, another queue may have completions by then, and no queue whose
    // work completes as fast as it is posted keeps the others waiting.
    static constexpr int work_per_round = 256;
    static constexpr int work_per_round_min = 8;
    static constexpr unsigned empty_polls_per_turn = 64;
    static constexpr std::size_t batch_size = 32;
    // What one queue takes along when it breaks, and how many queues a round polls.
    static constexpr std::uint32_t lane_depth_max = 32768;

    // One of the poller's tasks in its sequence; it keeps the poller alive while it is posted.
    template <void (cq_poller::*Run)(std::shared_ptr<cq_poller>)>
    class task final : public hosting::sequence::task {
    public:
        bool is_posted() const noexcept { return poller_ != nullptr; }
        void post(std::shared_ptr<cq_poller> self) {
            cq_poller& p = *self;
            poller_ = std::move(self);
            p.order_->post(*this);
        }
        void dispatch(std::shared_ptr<cq_poller> self) {
            cq_poller& p = *self;
            poller_ = std::move(self);
            p.order_->dispatch(*this);
        }

    private:
        void run(bool is_wanted) override {
            std::shared_ptr<cq_poller> self = std::exchange(poller_, nullptr);
            cq_poller& p = *self;
            if (is_wanted) (p.*Run)(std::move(self));
        }

        std::shared_ptr<cq_poller> poller_;
    };

    // In the sequence.
    void run_round(std::shared_ptr<cq_poller> self);
    void on_news(std::shared_ptr<cq_poller> self);
    void on_wake_up(std::shared_ptr<cq_poller> self);
    [[gnu::noinline]] void take_news();
    int poll_in_turn();
    int poll_all();
    void pass_turn(int work) noexcept;
    int poll(cq_lane& lane);
    int deliver(cq_lane& lane, std::span<ibv_wc const> batch);
    [[gnu::noinline]] int distribute(cq_lane& lane, std::span<ibv_wc const> batch);
    [[gnu::noinline]] int deliver_kept(cq_lane& lane);
    [[gnu::noinline]] void sleep(std::shared_ptr<cq_poller> self);
    void wait(std::shared_ptr<cq_poller> self);
    [[gnu::noinline]] void fail(cq_lane& lane, error_code ec);
    void fail_all(error_code ec);
    bool has_spun_enough();

    // With the mutex held.
    void take_joining() noexcept;
    cq_lane* find_lane(machines::completion_share const& share, error_code& ec);
    bool leave(
        cq_member& m, std::function<bool()> const& destroy, cq_place::take_function const& take
    );
    static void sort_out(cq_lane& lane, cq_member const& m, cq_place::take_function const& take);
    void give_back(cq_member& m, bool is_leaked) noexcept;
    void close() noexcept;
    void destroy_queues() noexcept;

    bool has_ended() noexcept;

    boost::asio::any_io_executor executor_;
    std::shared_ptr<hosting::sequence> const order_;
    settings const how_;
    std::atomic<unsigned>& sources_;
    descriptor_set& descriptors_;

    std::mutex mutex_;
    verbs::completion_channel channel_;
    std::vector<std::unique_ptr<cq_lane>> lanes_;
    std::size_t places_ = 0;
    cq_member* joining_ = nullptr;
    bool is_news_posted_ = false;
    // One that was taken in is in a broken queue, and has not been told.
    bool has_joined_broken_ = false;
    std::atomic<bool> has_news_{false};
    // Changed in the sequence, or while no round is posted.
    std::atomic<bool> is_closed_{false};

    cq_lane* polled_ = nullptr;
    unsigned polled_count_ = 0;
    // Whose turn it is.
    cq_lane* turn_ = nullptr;
    bool is_counted_ = false;
    // A handler that runs may destroy the context of a connection whose handlers it has, which then
    // leaves at once.
    bool is_delivering_ = false;
    std::vector<std::shared_ptr<completion_sink>> departed_;
    std::optional<boost::asio::posix::stream_descriptor> descriptor_;
    bool is_waiting_ = false;
    error_code wake_code_;
    std::chrono::steady_clock::time_point last_found_;
    machines::counter empty_polls_;
    machines::counter sleeps_;
    task<&cq_poller::run_round> round_;
    task<&cq_poller::on_news> news_;
    task<&cq_poller::on_wake_up> wake_up_;
    std::array<ibv_wc, batch_size> batch_;
};

}  // namespace rcverbs::progress
