// completion_source.hpp — brings one completion queue's completions to its connection.
//
//                     completions found, busy mode, or spinning
//                    ┌──────────┐
//        start ──▶ polling ◀────┘        armed, and still empty
//                    │  ───────────────────────────────────────▶ asleep
//                    │  ◀─────────────────────────────────────────  │
//                    │                 the device's event           │
//                    └───────────── stop ──▶ stopped ◀── stop ──────┘
//
// It is a handler that posts itself: each round polls the queue a few times and lets whatever else is in the run queue
// have its turn. So a polling thread is nothing but an io_context that one thread runs, several queues share a thread
// by sharing the io_context, and the caller's own io_context does as well as one of ours. Rounds that find nothing for
// long enough arm the queue, poll once more (what came before the arming gives no event), and sleep on the descriptor.
//
// All functions run on its executor, except start() and stop(), which may be called from anywhere.
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

#include "verbs/completion_queue.hpp"

namespace rcverbs::progress {

/// Who gets the completions.
class completion_sink {
public:
    /// A batch, in the order of the queue. Called on the source's executor, never while another call is under way.
    /// Returns how many work requests have come back: at least one for each.
    virtual std::size_t on_completions(std::span<ibv_wc const> batch) = 0;
    /// The queue is broken; nothing more will come.
    virtual void on_queue_broken(error_code ec) = 0;

protected:
    ~completion_sink() = default;
};

/// What polling came to. Written by the polling thread alone, so that counting is an addition and no more; read by anyone.
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

    // Relaxed, since the counters order nothing, and no read-modify-write, since there is one writer.
    static void add(counter& to, std::uint64_t n) noexcept {
        to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }

    counter polls_{0};
    counter empty_polls_{0};
    counter completions_{0};
    counter sleeps_{0};
};

/// Whether others poll on the same thread.
enum class company { alone, shared };

class completion_source : public std::enable_shared_from_this<completion_source> {
public:
    completion_source(
        boost::asio::any_io_executor executor, polling_options options, company others, verbs::completion_queue queue
    );

    /// Begins to poll, for as long as it is not stopped; keeps `sink` alive until then.
    void start(std::shared_ptr<completion_sink> sink);
    /// Stops, lets go of the sink and the descriptor, then calls `then` on the executor. Once.
    void stop(std::function<void()> then);
    /// Stops without an executor to run on. REQUIRES: nothing runs the executor any more.
    void abandon() noexcept;

    verbs::completion_queue& queue() noexcept { return queue_; }
    /// Lives on when the source is gone.
    std::shared_ptr<poll_counters const> counters() const noexcept { return counters_; }

private:
    // A round ends when so much work has been completed, or when so many polls, one after another, found nothing. So much
    // that the run queue's own cost, which is a system call as soon as a timer or descriptor is in it, does not show, not even
    // in one operation of a hundred; so little that what else is posted there has its turn soon. Among others that may have
    // something, one poll that finds nothing is enough.
    static constexpr int work_per_round = 192;
    int const empty_polls_max_;
    static constexpr std::size_t batch_size = 32;

    struct round_handler;
    [[gnu::noinline]] void post_round(std::shared_ptr<completion_source> self);
    void run_round(std::shared_ptr<completion_source> self);
    int poll_once();
    [[gnu::noinline]] void sleep(std::shared_ptr<completion_source> self);
    [[gnu::noinline]] void fail(error_code ec);
    void let_go() noexcept;
    void end_delivery() noexcept;
    bool has_spun_enough();

    boost::asio::any_io_executor executor_;
    polling_options options_;
    verbs::completion_queue queue_;
    std::optional<boost::asio::posix::stream_descriptor> descriptor_;
    std::shared_ptr<completion_sink> sink_;
    std::chrono::steady_clock::time_point last_found_;
    std::shared_ptr<poll_counters> const counters_ = std::make_shared<poll_counters>();
    bool is_stopped_ = false;
    bool is_delivering_ = false;
    std::array<ibv_wc, batch_size> batch_;
};

}  // namespace rcverbs::progress
