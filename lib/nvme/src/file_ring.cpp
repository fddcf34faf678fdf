#include "file_engine.hpp"

#ifdef RCVERBS_HAS_LIBURING

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio/error.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "hosting/signals_blocked.hpp"

namespace rcverbs::nvme::detail {

namespace {

// Requests under way at a time; one more entry is for the wake-up.
constexpr unsigned depth = 127;

error_code system_error_of(int number) { return {number, boost::system::system_category()}; }

// A request on its way through the ring: one operation of the kernel at a time.
struct job {
    enum class step { transfer, fallocate, write_zeros };

    store_request* request = nullptr;
    step now = step::transfer;
    std::uint64_t done_bytes = 0;
    aligned_bytes there;  // what a compare has read
    job* next = nullptr;
};

// Jobs in order, linked through job::next.
class job_list {
public:
    bool is_empty() const noexcept { return first_ == nullptr; }
    void push(job& j) noexcept {
        j.next = nullptr;
        (first_ == nullptr ? first_ : last_->next) = &j;
        last_ = &j;
    }
    job& pop() noexcept {
        job& j = *first_;
        first_ = std::exchange(j.next, nullptr);
        return j;
    }
    void append(job_list& other) noexcept {
        while (!other.is_empty()) push(other.pop());
    }

private:
    job* first_ = nullptr;
    job* last_ = nullptr;
};

class ring {
public:
    ring() {
        int const failed = io_uring_queue_init(depth + 1, &ring_, 0);
        if (failed != 0) throw boost::system::system_error{system_error_of(-failed), "io_uring"};
        io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
        bool has_all = probe != nullptr;
        for (int const code :
             {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC, IORING_OP_FALLOCATE})
            has_all = has_all && io_uring_opcode_supported(probe, code) != 0;
        io_uring_free_probe(probe);
        if (has_all) return;
        io_uring_queue_exit(&ring_);
        throw boost::system::system_error{system_error_of(ENOSYS), "io_uring"};
    }
    ring(ring const&) = delete;
    ring& operator=(ring const&) = delete;
    ~ring() { io_uring_queue_exit(&ring_); }

    io_uring* get() noexcept { return &ring_; }

private:
    io_uring ring_{};
};

class wake_up {
public:
    wake_up() : fd_{::eventfd(0, EFD_CLOEXEC)} {
        if (fd_ < 0) throw boost::system::system_error{system_error_of(errno), "eventfd"};
    }
    wake_up(wake_up const&) = delete;
    wake_up& operator=(wake_up const&) = delete;
    ~wake_up() { ::close(fd_); }

    void send() const noexcept {
        std::uint64_t const one = 1;
        // Fails only if the counter is full; then the thread is about to wake anyway.
        static_cast<void>(::write(fd_, &one, sizeof one));
    }
    int get() const noexcept { return fd_; }

private:
    int const fd_;
};

// The thread that owns the ring submits what start() has left for it, and waits for the kernel.
class file_ring final : public file_engine {
public:
    explicit file_ring(file_in_use const& file) : file_engine{file} {
        hosting::signals_blocked const until_started;
        thread_ = std::thread{[this] { run(); }};
    }

    ~file_ring() override {
        {
            std::lock_guard const lock{mutex_};
            is_ending_ = true;
        }
        wake_.send();
        thread_.join();
    }

private:
    void begin(store_request& r) noexcept override {
        bool is_first = false;
        try {
            std::lock_guard const lock{mutex_};
            job& j = idle_.is_empty() ? jobs_.emplace_back() : idle_.pop();
            j.request = &r;
            is_first = started_.is_empty();
            started_.push(j);
        } catch (std::bad_alloc const&) {
            return r.complete(system_error_of(ENOMEM));
        }
        // The thread takes all that is there at a time.
        if (is_first) wake_.send();
    }

    void run() {
        await_wake_up();
        while (!is_over()) {
            int const n = io_uring_submit_and_wait(ring_.get(), 1);
            // Without memory in the kernel, later.
            if (n < 0 && n != -EINTR) std::this_thread::sleep_for(std::chrono::milliseconds{1});
            reap();
            while (under_way_ < depth && !waiting_.is_empty()) {
                ++under_way_;
                begin_job(waiting_.pop());
            }
        }
    }

    bool is_over() {
        std::lock_guard const lock{mutex_};
        return is_ending_ && under_way_ == 0 && waiting_.is_empty() && started_.is_empty();
    }

    void await_wake_up() {
        io_uring_sqe* const e = io_uring_get_sqe(ring_.get());
        io_uring_prep_read(e, wake_.get(), &wakes_, sizeof wakes_, 0);
        io_uring_sqe_set_data(e, nullptr);
    }

    void reap() {
        io_uring_cqe* c = nullptr;
        while (io_uring_peek_cqe(ring_.get(), &c) == 0) {
            auto* const j = static_cast<job*>(io_uring_cqe_get_data(c));
            int const result = c->res;
            io_uring_cqe_seen(ring_.get(), c);
            if (j == &sync_) {
                on_sync(result);
                continue;
            }
            if (j != nullptr) {
                on_result(*j, result);
                continue;
            }
            bool is_last = false;
            {
                std::lock_guard const lock{mutex_};
                waiting_.append(started_);
                is_last = is_ending_;
            }
            if (!is_last) await_wake_up();
        }
    }

    void begin_job(job& j) {
        store_request const& r = *j.request;
        j.done_bytes = 0;
        // It may have waited long for its turn.
        if (r.operation() != store_operation::flush && r.is_abandoned())
            return finish(j, boost::asio::error::operation_aborted);
        switch (r.operation()) {
        case store_operation::flush:
            if (file_.is_read_only) return finish(j, {});
            return sync(j);
        case store_operation::write_zeroes:
        case store_operation::discard: return submit(j, job::step::fallocate);
        case store_operation::compare: try { j.there.resize(r.data().size());
            } catch (std::bad_alloc const&) {
                return finish(j, system_error_of(ENOMEM));
            }
            [[fallthrough]];
        case store_operation::read:
        case store_operation::write: return submit(j, job::step::transfer);
        }
    }

    // There is an entry for each job under way, since each has one operation at a time.
    void submit(job& j, job::step what) {
        store_request const& r = *j.request;
        int const fd = file_.descriptor;
        std::uint64_t const at = r.offset_bytes() + j.done_bytes;
        auto const left = static_cast<std::size_t>(r.size_bytes() - j.done_bytes);
        io_uring_sqe* const e = io_uring_get_sqe(ring_.get());
        j.now = what;
        switch (what) {
        case job::step::transfer: {
            bool const is_write = r.operation() == store_operation::write;
            std::byte* const data = j.there.all().empty() ? r.data().data() : j.there.data();
            auto const size = static_cast<unsigned>(left);
            if (is_write) io_uring_prep_write(e, fd, data + j.done_bytes, size, at);
            else io_uring_prep_read(e, fd, data + j.done_bytes, size, at);
            break;
        }
        case job::step::fallocate: {
            io_uring_prep_fallocate(
                e,
                file_.fallocate_descriptor,
                fallocate_mode(r.operation()),
                static_cast<off_t>(at),
                static_cast<off_t>(left)
            );
            break;
        }
        case job::step::write_zeros: {
            auto const part = static_cast<unsigned>(std::min(left, zeros().size()));
            io_uring_prep_write(e, fd, zeros().data(), part, at);
            break;
        }
        }
        io_uring_sqe_set_data(e, &j);
    }

    void on_result(job& j, int result) {
        store_request const& r = *j.request;
        if (result == -EINTR || result == -EAGAIN) return submit(j, j.now);
        bool const moves_data = j.now == job::step::transfer || j.now == job::step::write_zeros;
        bool const is_to_be_written = j.now == job::step::fallocate && lacks_fallocate(-result);
        if ((is_to_be_written || j.now == job::step::write_zeros) && r.is_abandoned())
            return finish(j, boost::asio::error::operation_aborted);
        if (is_to_be_written) return submit(j, job::step::write_zeros);
        if (result < 0) return finish(j, system_error_of(-result));
        // The file has become shorter.
        if (moves_data && result == 0) return finish(j, system_error_of(EIO));
        if (moves_data) {
            j.done_bytes += static_cast<unsigned>(result);
            if (j.done_bytes < r.size_bytes()) return submit(j, j.now);
        }
        if (r.is_durable()) return sync(j);
        finish(j, {});
    }

    // Completes the job after a sync that begins from now on. One runs at a time and serves all that
    // wait: the kernel reports a failure to one of two that run together. (So a durable write is no
    // write with RWF_DSYNC, which is a sync of its own.)
    void sync(job& j) {
        to_sync_.push(j);
        if (syncing_.is_empty()) begin_sync();
    }

    void begin_sync() {
        syncing_.append(to_sync_);
        submit_sync();
    }

    void submit_sync() {
        io_uring_sqe* const e = io_uring_get_sqe(ring_.get());
        io_uring_prep_fsync(e, file_.descriptor, IORING_FSYNC_DATASYNC);
        io_uring_sqe_set_data(e, &sync_);
    }

    void on_sync(int result) {
        if (result == -EINTR || result == -EAGAIN) return submit_sync();
        if (result < 0) keep_sync_failure(-result);
        error_code const ec = sync_failure();
        while (!syncing_.is_empty()) finish(syncing_.pop(), ec);
        // After a failure, nothing that waits is synced.
        while (ec && !to_sync_.is_empty()) finish(to_sync_.pop(), ec);
        if (!to_sync_.is_empty()) begin_sync();
    }

    void finish(job& j, error_code const& ec) {
        store_request& r = *std::exchange(j.request, nullptr);
        bool const is_equal = ec || r.operation() != store_operation::compare ||
                              std::ranges::equal(j.there.all(), r.data());
        j.there.clear();
        --under_way_;
        {
            std::lock_guard const lock{mutex_};
            idle_.push(j);
        }
        if (!is_equal) return r.complete_mismatch();
        r.complete(ec);
    }

    ring ring_;
    wake_up const wake_;
    std::uint64_t wakes_ = 0;
    // The thread's.
    job_list waiting_;
    job_list to_sync_;
    job_list syncing_;
    job sync_;  // stands for the sync under way
    unsigned under_way_ = 0;

    std::mutex mutex_;
    // Guarded by mutex_.
    std::deque<job> jobs_;
    job_list idle_;
    job_list started_;
    bool is_ending_ = false;

    std::thread thread_;
};

}  // namespace

std::unique_ptr<file_engine> make_file_ring(file_in_use const& file) {
    return std::make_unique<file_ring>(file);
}

}  // namespace rcverbs::nvme::detail

#else

namespace rcverbs::nvme::detail {

std::unique_ptr<file_engine> make_file_ring(file_in_use const&) {
    throw boost::system::system_error{ENOSYS, boost::system::system_category(), "io_uring"};
}

}  // namespace rcverbs::nvme::detail

#endif
