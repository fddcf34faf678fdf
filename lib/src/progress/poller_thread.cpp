#include "progress/poller_thread.hpp"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <csignal>

#include <rcverbs/poller.hpp>

namespace rcverbs::progress {

boost::asio::execution_context::id thread_owner::id;

thread_owner::thread_owner(boost::asio::execution_context& context)
    : boost::asio::execution_context::service{context} {}

thread_owner::~thread_owner() {
    for (std::shared_ptr<run_loop> const& loop : stopped_) loop->destroy_context();
}

std::shared_ptr<poller_thread> thread_owner::start() {
    join_finished();
    auto loop = std::make_shared<run_loop>();
    auto poller = std::make_shared<poller_thread>(loop);
    auto& home = static_cast<boost::asio::io_context&>(context());  // asio::use_service was given one
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread;
    try {
        thread = std::thread{[loop, this, &home] {
            loop->context().run();
            loop->is_finished = true;
            if (!loop->is_orphaned) boost::asio::post(home, [this] { join_finished(); });
        }};
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    std::lock_guard const lock{mutex_};
    threads_.push_back({std::move(thread), std::move(loop)});
    return poller;
}

void thread_owner::join_finished() noexcept {
    std::vector<owned_thread> finished;
    {
        std::lock_guard const lock{mutex_};
        auto const middle = std::partition(threads_.begin(), threads_.end(), [](owned_thread const& t) {
            return !t.loop->is_finished || t.thread.get_id() == std::this_thread::get_id();
        });
        std::move(middle, threads_.end(), std::back_inserter(finished));
        threads_.erase(middle, threads_.end());
    }
    for (owned_thread& t : finished) t.thread.join();
}

void thread_owner::drop_handlers() noexcept {
    for (std::shared_ptr<run_loop> const& loop : stopped_) loop->drop_handlers();
}

void thread_owner::stop_all() noexcept {
    std::vector<owned_thread> all;
    {
        std::lock_guard const lock{mutex_};
        all.swap(threads_);
    }
    for (owned_thread& t : all) {
        t.loop->release_work();
        t.loop->context().stop();
    }
    for (owned_thread& t : all) {
        // The io_context may be destroyed by a handler on one of the threads; that one cannot join itself.
        if (t.thread.get_id() == std::this_thread::get_id()) {
            t.loop->is_orphaned = true;
            t.thread.detach();
        } else {
            t.thread.join();
            stopped_.push_back(std::move(t.loop));
        }
    }
}

}  // namespace rcverbs::progress

namespace rcverbs {

poller::poller(boost::asio::io_context& context)
    : impl_{boost::asio::use_service<progress::thread_owner>(context).start()} {}

boost::asio::any_io_executor poller::get_executor() const { return impl_->context().get_executor(); }

}  // namespace rcverbs
