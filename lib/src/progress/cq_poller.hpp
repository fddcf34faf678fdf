// cq_poller.hpp — delivers one completion queue's completions to its connection.
//
//                     completions found, busy mode, or spinning
//                    ┌──────────┐
//        start ──▶ polling ◀────┘        armed, and still empty
//                    │  ───────────────────────────────────────▶ asleep
//                    │  ◀─────────────────────────────────────────  │
//                    │                 the device's event           │
//                    └───────────── stop ──▶ stopped ◀── stop ──────┘
//
// The poller is a task that posts itself. Each round polls the queue a few times and then returns,
// so that other handlers in the executor's queue can run. Therefore a polling thread is just an
// io_context that one thread runs, several queues share a thread by sharing the io_context, and the
// program's own executor works as well as one of the library. If the rounds find no completion for
// long enough, the poller arms the queue, polls once more (completions from before the arming raise
// no event), and waits on the descriptor.
//
// All functions run in its sequence, except start() and stop(), which any thread may call.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <rcverbs/error.hpp>
#include <rcverbs/poller.hpp>
#include <rcverbs/statistics.hpp>

#include "hosting/sequence.hpp"
#include "verbs/completion_queue.hpp"

namespace rcverbs::progress {

/// Receives the completions.
class completion_sink {
public:
    /// Handles a batch of completions, in the order of the queue. Called in the poller's sequence;
    /// calls never overlap. Returns the number of work requests that these completions retire, at
    /// least one for each.
    virtual std::size_t on_completions(std::span<ibv_wc const> batch) = 0;
    /// The queue is broken; no more completions arrive.
    virtual void on_queue_broken(error_code ec) = 0;

protected:
    ~completion_sink() = default;
};

/// Counters of polling. Only the polling thread writes them, so that counting is a plain addition;
/// any thread may read them.
class poll_counters {
public:
    void count_poll(std::size_t found) noexcept {
        add(polls_, 1);
        add(found > 0 ? completions_ : empty_polls_, found > 0 ? found : 1);
    }
    void count_sleep() noexcept { add(sleeps_, 1); }

    void read(connection_statistics& into) const noexcept {
        into.polls = polls_.load(std::memory_order_relaxed);
        into.empty_polls = empty_polls_.load(std::memory_order_relaxed);
        into.completions = completions_.load(std::memory_order_relaxed);
        into.sleeps = sleeps_.load(std::memory_order_relaxed);
    }

private:
    using counter = std::atomic<std::uint64_t>;

    // Relaxed, because the counters order nothing. No read-modify-write, because there is only one
    // writer.
    static void add(counter& to, std::uint64_t n) noexcept {
        to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }

    counter polls_{0};
    counter empty_polls_{0};
    counter completions_{0};
    counter sleeps_{0};
};

class cq_poller final : public std::enable_shared_from_this<cq_poller>,
                        private hosting::sequence::task {
public:
    /// `sources` counts the pollers on the same context; it must live until this one is stopped.
    cq_poller(
        boost::asio::any_io_executor executor,
        std::shared_ptr<hosting::sequence> order,
        polling_options options,
        std::atomic<unsigned>& sources,
        verbs::completion_queue queue
    );

    /// Starts to poll, until stop(); keeps `sink` alive until then.
    void start(std::shared_ptr<completion_sink> sink);
    /// Stops, releases the sink and the descriptor, then calls `then` in the sequence. Call it
    /// once.
    void stop(std::function<void()> then);
    /// Stops without an executor. REQUIRES: no thread runs the executor any more.
    void abandon() noexcept;

    verbs::completion_queue& queue() noexcept { return queue_; }
    /// The counters may outlive the poller.
    std::shared_ptr<poll_counters const> counters() const noexcept { return counters_; }

private:
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

    void run(bool is_wanted) override;
    void post_round(std::shared_ptr<cq_poller> self);
    void run_round(std::shared_ptr<cq_poller> self);
    int poll_once();
    [[gnu::noinline]] void sleep(std::shared_ptr<cq_poller> self);
    void wake_up(error_code failed, std::shared_ptr<cq_poller> self);
    [[gnu::noinline]] void fail(error_code ec);
    void let_go() noexcept;
    void end_delivery() noexcept;
    bool has_spun_enough();

    boost::asio::any_io_executor executor_;
    std::shared_ptr<hosting::sequence> const order_;
    polling_options options_;
    // Itself while a round is posted. The reference moves from round to round, so that polling does
    // not touch the reference count.
    std::shared_ptr<cq_poller> posted_;
    std::atomic<unsigned>& sources_;
    verbs::completion_queue queue_;
    std::optional<boost::asio::posix::stream_descriptor> descriptor_;
    std::shared_ptr<completion_sink> sink_;
    std::chrono::steady_clock::time_point last_found_;
    std::shared_ptr<poll_counters> const counters_ = std::make_shared<poll_counters>();
    bool is_counted_ = false;
    // True from the wake-up until the round that handles it.
    bool is_asleep_ = false;
    // Since the events were taken.
    unsigned times_armed_ = 0;
    error_code wake_code_;
    bool is_stopped_ = false;
    bool is_delivering_ = false;
    std::array<ibv_wc, batch_size> batch_;
};

}  // namespace rcverbs::progress
