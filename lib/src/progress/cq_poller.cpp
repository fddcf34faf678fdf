#include "progress/cq_poller.hpp"

#include <algorithm>
#include <utility>

namespace rcverbs::progress {

cq_poller::cq_poller(
    boost::asio::any_io_executor executor,
    std::shared_ptr<hosting::sequence> order,
    polling_options options,
    std::atomic<unsigned>& sources,
    verbs::completion_queue queue
)
    : executor_{std::move(executor)},
      order_{std::move(order)},
      options_{options},
      sources_{sources},
      queue_{std::move(queue)} {}

void cq_poller::start(std::shared_ptr<completion_sink> sink) {
    order_->call([self = shared_from_this(), sink = std::move(sink)]() mutable {
        if (self->is_stopped_) return;
        cq_poller& source = *self;
        source.is_counted_ = true;
        source.sources_.fetch_add(1, std::memory_order_relaxed);
        source.sink_ = std::move(sink);
        source.last_found_ = std::chrono::steady_clock::now();
        source.run_round(std::move(self));
    });
}

void cq_poller::stop(std::function<void()> then) {
    order_->call([self = shared_from_this(), then = std::move(then)] {
        self->let_go();
        then();
    });
}

void cq_poller::abandon() noexcept { let_go(); }

void cq_poller::post_round(std::shared_ptr<cq_poller> self) {
    posted_ = std::move(self);
    order_->post(*this);
}

void cq_poller::run(bool is_wanted) {
    std::shared_ptr<cq_poller> self = std::exchange(posted_, nullptr);
    if (!is_wanted || is_stopped_) return;
    if (std::exchange(is_asleep_, false)) {
        if (wake_code_) return fail(wake_code_);
        // One event for each time that the queue was armed, at most.
        if (std::exchange(times_armed_, 0) == 1) queue_.take_event();
        else queue_.take_events();
        last_found_ = std::chrono::steady_clock::now();
    }
    run_round(std::move(self));
}

// Flattened, because it is the hot loop of a polling thread.
[[gnu::flatten]] void cq_poller::run_round(std::shared_ptr<cq_poller> self) {
    bool found = false;
    unsigned empty_polls = 0;
    bool const is_event = options_.mode == poll_mode::event;
    unsigned const sources =
        std::clamp(sources_.load(std::memory_order_relaxed), 1u, empty_polls_per_turn);
    unsigned const empty_polls_max = is_event ? 1 : empty_polls_per_turn / sources;
    int const work_max = std::max(work_per_round / static_cast<int>(sources), work_per_round_min);
    for (int left = work_max; left > 0 && empty_polls < empty_polls_max && !is_stopped_;) {
        int const work = poll_once();
        if (work < 0) return;
        left -= work;
        found |= work > 0;
        empty_polls = work > 0 ? 0 : empty_polls + 1;
    }
    if (is_stopped_) return;
    if (found) last_found_ = std::chrono::steady_clock::now();
    // In event mode the queue sleeps as soon as it is empty.
    bool const is_empty = empty_polls == empty_polls_max;
    if (is_event ? !is_empty : found || !has_spun_enough()) {
        post_round(std::move(self));
    } else {
        sleep(std::move(self));
    }
}

// Polls once and delivers the completions. Returns the number of completed work requests, or -1
// after a failure.
int cq_poller::poll_once() {
    int const count = queue_.poll(batch_);
    if (count < 0) {
        fail(errc::completion_queue_broken);
        return -1;
    }
    counters_->count_poll(static_cast<std::size_t>(count));
    int work = 0;
    // A handler may close the connection, which stops the poller; the sink is kept until the call
    // returns.
    if (count > 0) {
        is_delivering_ = true;
        try {
            work = static_cast<int>(
                sink_->on_completions({batch_.data(), static_cast<std::size_t>(count)})
            );
            end_delivery();
        } catch (...) {
            end_delivery();
            // A handler's exception propagates to the thread that runs the executor. Polling goes
            // on.
            if (!is_stopped_) post_round(shared_from_this());
            throw;
        }
    }
    return work;
}

bool cq_poller::has_spun_enough() {
    if (options_.mode == poll_mode::busy) return false;
    return std::chrono::steady_clock::now() - last_found_ >= options_.spin;
}

void cq_poller::sleep(std::shared_ptr<cq_poller> self) {
    error_code ec = queue_.arm();
    if (ec) return fail(ec);
    ++times_armed_;
    int const work = poll_once();
    if (work < 0 || is_stopped_) return;
    if (work > 0) {
        last_found_ = std::chrono::steady_clock::now();
        return post_round(std::move(self));
    }
    counters_->count_sleep();
    // Created on first use: an io_context without descriptors polls its run queue several times
    // faster.
    if (!descriptor_) {
        try {
            descriptor_.emplace(executor_);
        } catch (boost::system::system_error const& e) {
            return fail(e.code());  // no file descriptors left for the reactor
        }
        descriptor_->assign(queue_.descriptor(), ec);
        if (ec) return fail(ec);
    }
    boost::asio::posix::stream_descriptor& descriptor = *descriptor_;
    descriptor.async_wait(
        boost::asio::posix::descriptor_base::wait_read,
        [self = std::move(self)](error_code failed) mutable {
            cq_poller& source = *self;
            source.wake_up(failed, std::move(self));
        }
    );
}

// The wait handler may run outside the sequence, so it only posts a round.
void cq_poller::wake_up(error_code failed, std::shared_ptr<cq_poller> self) {
    wake_code_ = failed;
    is_asleep_ = true;
    post_round(std::move(self));
}

void cq_poller::end_delivery() noexcept {
    is_delivering_ = false;
    if (is_stopped_) sink_.reset();
}

void cq_poller::fail(error_code ec) {
    std::shared_ptr<completion_sink> const keep = sink_;
    keep->on_queue_broken(ec);
}

void cq_poller::let_go() noexcept {
    is_stopped_ = true;
    if (std::exchange(is_counted_, false)) sources_.fetch_sub(1, std::memory_order_relaxed);
    // The channel owns and closes the descriptor; release() only ends the waits.
    if (descriptor_ && descriptor_->is_open()) descriptor_->release();
    descriptor_.reset();
    // Take all events: unacknowledged events would block the destruction of the queue for ever.
    if (queue_.is_open()) queue_.take_events();
    if (!is_delivering_) sink_.reset();
}

}  // namespace rcverbs::progress
