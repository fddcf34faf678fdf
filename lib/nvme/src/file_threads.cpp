#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/error.hpp>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "file_engine.hpp"
#include "file_job.hpp"
#include "hosting/signals_blocked.hpp"

namespace rcverbs::nvme::detail {

namespace {

error_code last_error() { return {errno, boost::system::system_category()}; }

// Calls pread or pwrite until all is done.
template <class Call>
error_code transfer(Call call, std::span<std::byte> data, std::uint64_t at) {
    while (!data.empty()) {
        ssize_t const n = call(data.data(), data.size(), static_cast<off_t>(at));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return last_error();
        // The file has become shorter.
        if (n == 0) return {EIO, boost::system::system_category()};
        data = data.subspan(static_cast<std::size_t>(n));
        at += static_cast<std::uint64_t>(n);
    }
    return {};
}

error_code write_zeroes_by_hand(
    int fd, store_request const& r, std::uint64_t at, std::uint64_t size
) {
    while (size > 0) {
        if (r.is_abandoned()) return boost::asio::error::operation_aborted;
        std::size_t const part = std::min<std::uint64_t>(size, zeros().size());
        auto const write = [fd](void* from, std::size_t n, off_t to) {
            return ::pwrite(fd, from, n, to);
        };
        if (error_code const ec = transfer(write, zeros().first(part), at)) return ec;
        at += part;
        size -= part;
    }
    return {};
}

class file_threads final : public file_engine {
public:
    // One thread is left for what is short.
    file_threads(file_in_use const& file, std::uint32_t threads)
        : file_engine{file},
          schedule_{std::max(threads, 2U) - 1} {
        hosting::signals_blocked const until_started;
        sync_.host = no_host;
        sync_.is_long = true;
        try {
            while (threads_.size() < threads) threads_.emplace_back([this] { run(); });
        } catch (...) {
            end();
            throw;
        }
    }

    ~file_threads() override { end(); }

private:
    void begin(store_request& r) noexcept override {
        {
            std::lock_guard const lock{mutex_};
            file_job* const j = jobs_.take(r);
            if (j != nullptr) {
                ++unfinished_;
                if (r.operation() == store_operation::flush && !file_.is_read_only)
                    wait_for_sync(*j);
                else schedule_.push(*j);
                due_.notify_one();
                return;
            }
        }
        r.complete({ENOMEM, boost::system::system_category()});
    }

    void end() noexcept {
        {
            std::lock_guard const lock{mutex_};
            is_ending_ = true;
        }
        due_.notify_all();
        for (std::thread& each : threads_) each.join();
    }

    void run() {
        std::unique_lock lock{mutex_};
        for (;;) {
            file_job* const j = schedule_.take();
            if (j != nullptr) carry_out(*j, lock);
            else if (is_ending_ && unfinished_ == 0) return;
            else due_.wait(lock);
        }
    }

    void carry_out(file_job& j, std::unique_lock<std::mutex>& lock) {
        if (&j == &sync_) return carry_out_sync(lock);
        lock.unlock();
        store_request const& r = *j.request;
        error_code ec;
        try {
            ec = serve(j);
        } catch (std::bad_alloc const&) {
            ec = {ENOMEM, boost::system::system_category()};
        }
        lock.lock();
        schedule_.on_carried_out(j);
        bool const has_more = !ec && j.is_long && j.done_bytes < r.size_bytes();
        if (has_more) schedule_.push(j);
        else if (!ec && r.is_durable()) wait_for_sync(j);
        // Long ones may have waited for this one.
        if (!schedule_.is_empty()) due_.notify_one();
        if (has_more || (!ec && r.is_durable())) return;
        lock.unlock();
        finish(j, ec);
        lock.lock();
    }

    void finish(file_job& j, error_code const& ec) {
        j.complete(ec);
        std::lock_guard const lock{mutex_};
        jobs_.give_back(j);
        if (--unfinished_ == 0 && is_ending_) due_.notify_all();
    }

    // Carries out a job, or a piece of it.
    error_code serve(file_job& j) {
        store_request const& r = *j.request;
        if (r.operation() != store_operation::flush && r.is_abandoned())
            return boost::asio::error::operation_aborted;
        int const fd = file_.descriptor;
        auto const read = [fd](void* to, std::size_t n, off_t from) {
            return ::pread(fd, to, n, from);
        };
        auto const write = [fd](void* from, std::size_t n, off_t to) {
            return ::pwrite(fd, from, n, to);
        };
        switch (r.operation()) {
        case store_operation::read: return transfer(read, r.data(), r.offset_bytes());
        case store_operation::write: return transfer(write, r.data(), r.offset_bytes());
        case store_operation::flush: return {};  // of a file that is read-only
        case store_operation::write_zeroes:
        case store_operation::discard: return zero(j);
        case store_operation::compare: {
            j.there.resize(r.data().size());
            return transfer(read, j.there.all(), r.offset_bytes());
        }
        }
        return {};
    }

    error_code zero(file_job& j) {
        store_request const& r = *j.request;
        std::uint64_t const at = j.offset();
        std::uint64_t const size = j.next_piece_bytes();
        j.done_bytes += size;
        if (!j.is_by_hand) {
            int const mode = fallocate_mode(r.operation());
            if (::fallocate(
                    file_.fallocate_descriptor,
                    mode,
                    static_cast<off_t>(at),
                    static_cast<off_t>(size)
                ) == 0)
                return {};
            if (!lacks_fallocate(errno)) return last_error();
            j.is_by_hand = true;
        }
        return write_zeroes_by_hand(file_.descriptor, r, at, size);
    }

    // Completes the job after a sync that begins from now on. One runs at a time and serves all that
    // wait: the kernel reports a failure to one of two that run together.
    void wait_for_sync(file_job& j) noexcept {
        to_sync_.push(j);
        if (!std::exchange(is_sync_due_, true)) schedule_.push(sync_);
    }

    void carry_out_sync(std::unique_lock<std::mutex>& lock) {
        job_list<file_job> served;
        served.append(to_sync_);
        lock.unlock();
        if (!sync_failure()) run_sync();
        error_code const ec = sync_failure();
        while (!served.is_empty()) finish(served.pop(), ec);
        lock.lock();
        schedule_.on_carried_out(sync_);
        is_sync_due_ = !to_sync_.is_empty();
        if (is_sync_due_) schedule_.push(sync_);
        if (!schedule_.is_empty()) due_.notify_one();
    }

    void run_sync() noexcept {
        while (::fdatasync(file_.descriptor) != 0) {
            if (errno != EINTR) return keep_sync_failure(errno);
        }
    }

    std::mutex mutex_;
    std::condition_variable due_;
    // Guarded by mutex_.
    file_jobs jobs_;
    store_schedule<file_job> schedule_;
    job_list<file_job> to_sync_;
    file_job sync_;  // stands for the sync of all that wait for one
    bool is_sync_due_ = false;
    std::size_t unfinished_ = 0;
    bool is_ending_ = false;

    std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<file_engine> make_file_threads(file_in_use const& file, std::uint32_t threads) {
    return std::make_unique<file_threads>(file, threads);
}

}  // namespace rcverbs::nvme::detail
