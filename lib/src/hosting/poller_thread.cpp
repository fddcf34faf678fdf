#include "hosting/poller_thread.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <rcverbs/error.hpp>

#include "hosting/signals_blocked.hpp"

namespace rcverbs::hosting {

boost::asio::execution_context::id single_thread::id;

namespace {

/// The threads of this process that have not been joined yet.
class all_threads {
public:
    using flag = std::shared_ptr<std::atomic<bool>>;

    void add(std::thread thread, std::shared_ptr<run_loop> const& loop, flag has_ended) {
        std::lock_guard const lock{mutex_};
        threads_.push_back({std::move(thread), loop, std::move(has_ended)});
    }

    void join_finished() noexcept {
        std::vector<owned_thread> finished;
        {
            std::lock_guard const lock{mutex_};
            auto const middle =
                std::partition(threads_.begin(), threads_.end(), [](owned_thread const& t) {
                    // One that is still destroying its loop may wait for this thread.
                    return !t.loop.expired() || !t.has_ended->load() || is_this(t);
                });
            std::move(middle, threads_.end(), std::back_inserter(finished));
            threads_.erase(middle, threads_.end());
        }
        for (owned_thread& t : finished) t.thread.join();
    }

    // Threads that still run when the process ends were not released by the program. Their pending
    // handlers are destroyed, not called, because a handler may own objects that keep its run loop
    // alive.
    void stop_all() noexcept {
        std::vector<owned_thread> all;
        {
            std::lock_guard const lock{mutex_};
            all.swap(threads_);
        }
        for (owned_thread& t : all) {
            std::shared_ptr<run_loop> const loop = t.loop.lock();
            if (loop != nullptr) {
                loop->release_work();
                loop->context().stop();
            }
            if (is_this(t)) {
                t.thread.detach();
            } else {
                t.thread.join();
                if (loop != nullptr) loop->drop_handlers();
            }
        }
    }

private:
    struct owned_thread {
        std::thread thread;
        // The thread itself and the objects made on it keep the loop alive.
        std::weak_ptr<run_loop> loop;
        flag has_ended;
    };

    static bool is_this(owned_thread const& t) noexcept {
        return t.thread.get_id() == std::this_thread::get_id();
    }

    std::mutex mutex_;
    std::vector<owned_thread> threads_;
};

// Never destroyed: a thread may outlive static objects.
all_threads& threads() {
    static auto& all = *new all_threads;
    return all;
}

std::optional<cpu_set_t> processors(std::span<unsigned const> given) {
    if (given.empty()) return std::nullopt;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned const cpu : given) {
        if (cpu >= CPU_SETSIZE)
            throw boost::system::system_error{errc::invalid_option, "poller_options.cpus"};
        CPU_SET(cpu, &set);
    }
    return set;
}

struct at_exit {
    ~at_exit() { threads().stop_all(); }
};

}  // namespace

run_loop::run_loop() : work_{context_.get_executor()} {
    boost::asio::use_service<single_thread>(context_);
}

void run_loop::release_work() noexcept {
    std::lock_guard const lock{mutex_};
    work_.reset();
}

void run_loop::run() {
    context_.run();
    is_finished = true;
}

std::shared_ptr<poller_thread> poller_thread::start(std::span<unsigned const> given) {
    std::optional<cpu_set_t> const cpus = processors(given);
    threads().join_finished();
    static at_exit const joiner;
    auto loop = std::make_shared<run_loop>();
    auto poller = std::make_shared<poller_thread>(loop);
    boost::asio::use_service<single_thread>(loop->context()).thread = poller;
    auto const has_ended = std::make_shared<std::atomic<bool>>(false);
    std::thread thread;
    {
        signals_blocked const until_started;
        thread = std::thread{[own = loop, has_ended]() mutable {
            own->run();
            own.reset();
            has_ended->store(true);
        }};
    }
    std::thread::native_handle_type const handle = thread.native_handle();
    threads().add(std::move(thread), loop, has_ended);
    // On failure the thread ends with `poller`.
    if (cpus && pthread_setaffinity_np(handle, sizeof *cpus, &*cpus) != 0)
        throw boost::system::system_error{errc::invalid_option, "poller_options.cpus"};
    return poller;
}

bool poller_thread::is_this_thread() const noexcept {
    return loop_->context().get_executor().running_in_this_thread();
}

}  // namespace rcverbs::hosting
