#include "progress/completion_source.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>

namespace rcverbs::progress {

// Passes the one reference from round to round, so that polling does not touch its count.
struct completion_source::round_handler {
    std::shared_ptr<completion_source> self;
    void operator()() {
        completion_source& source = *self;
        source.run_round(std::move(self));
    }
};

completion_source::completion_source(
    boost::asio::any_io_executor executor, polling_options options, company others, verbs::completion_queue queue
)
    : empty_polls_max_{others == company::shared ? 1 : 16},
      executor_{std::move(executor)},
      options_{options},
      queue_{std::move(queue)} {}

void completion_source::start(std::shared_ptr<completion_sink> sink) {
    boost::asio::post(executor_, [self = shared_from_this(), sink = std::move(sink)]() mutable {
        if (self->is_stopped_) return;
        completion_source& source = *self;
        source.sink_ = std::move(sink);
        source.last_found_ = std::chrono::steady_clock::now();
        source.run_round(std::move(self));
    });
}

void completion_source::stop(std::function<void()> then) {
    boost::asio::dispatch(executor_, [self = shared_from_this(), then = std::move(then)] {
        self->let_go();
        then();
    });
}

void completion_source::abandon() noexcept { let_go(); }

void completion_source::post_round(std::shared_ptr<completion_source> self) {
    boost::asio::post(executor_, round_handler{std::move(self)});
}

// Flat, because it is what a polling thread does all day.
[[gnu::flatten]] void completion_source::run_round(std::shared_ptr<completion_source> self) {
    bool found = false;
    int empty_polls = 0;
    for (int left = work_per_round; left > 0 && empty_polls < empty_polls_max_ && !is_stopped_;) {
        int const work = poll_once();
        if (work < 0) return;
        left -= work;
        found |= work > 0;
        empty_polls = work > 0 ? 0 : empty_polls + 1;
    }
    if (is_stopped_) return;
    if (found) last_found_ = std::chrono::steady_clock::now();
    if (found || !has_spun_enough()) {
        post_round(std::move(self));
    } else {
        sleep(std::move(self));
    }
}

// Polls once and delivers; returns how much work has been completed, or -1 after a failure.
int completion_source::poll_once() {
    int const count = queue_.poll(batch_);
    if (count < 0) {
        fail(errc::completion_queue_broken);
        return -1;
    }
    counters_->count_poll(static_cast<std::size_t>(count));
    int work = 0;
    // A handler that ends the connection stops the source; the sink outlasts the call.
    if (count > 0) {
        is_delivering_ = true;
        try {
            work = static_cast<int>(sink_->on_completions({batch_.data(), static_cast<std::size_t>(count)}));
            end_delivery();
        } catch (...) {
            end_delivery();
            // A handler's exception is the business of who runs the executor; the next round is ours.
            if (!is_stopped_) post_round(shared_from_this());
            throw;
        }
    }
    return work;
}

bool completion_source::has_spun_enough() {
    switch (options_.mode) {
    case poll_mode::busy: return false;
    case poll_mode::event: return true;
    case poll_mode::adaptive: break;
    }
    return std::chrono::steady_clock::now() - last_found_ >= options_.spin;
}

void completion_source::sleep(std::shared_ptr<completion_source> self) {
    error_code ec = queue_.arm();
    if (ec) return fail(ec);
    int const work = poll_once();
    if (work < 0 || is_stopped_) return;
    if (work > 0) {
        last_found_ = std::chrono::steady_clock::now();
        return post_round(std::move(self));
    }
    counters_->count_sleep();
    // Made only when it is needed: an io_context without descriptors polls its run queue several times faster.
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
        boost::asio::bind_executor(
            executor_,
            [self = std::move(self)](error_code failed) mutable {
                completion_source& source = *self;
                if (source.is_stopped_) return;
                if (failed) return source.fail(failed);
                source.queue_.take_events();
                source.last_found_ = std::chrono::steady_clock::now();
                source.run_round(std::move(self));
            }
        )
    );
}

void completion_source::end_delivery() noexcept {
    is_delivering_ = false;
    if (is_stopped_) sink_.reset();
}

void completion_source::fail(error_code ec) {
    std::shared_ptr<completion_sink> const keep = sink_;
    keep->on_queue_broken(ec);
}

void completion_source::let_go() noexcept {
    is_stopped_ = true;
    // The descriptor is the channel's and is closed by it. Waits on it end.
    if (descriptor_ && descriptor_->is_open()) descriptor_->release();
    descriptor_.reset();
    // Events that were not taken would make the queue's destruction wait for ever.
    if (queue_.is_open()) queue_.take_events();
    if (!is_delivering_) sink_.reset();
}

}  // namespace rcverbs::progress
