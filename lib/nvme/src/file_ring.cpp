#include "file_engine.hpp"

#ifdef RCVERBS_HAS_LIBURING

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio/error.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "file_job.hpp"
#include "hosting/signals_blocked.hpp"

namespace rcverbs::nvme::detail {

namespace {

// Requests under way at a time; two more entries are for the wake-up and the sync.
constexpr unsigned depth = 126;
// The kernel carries out what zeroes on threads of its own, of which it has few.
constexpr unsigned long_max = 4;

error_code system_error_of(int number) { return {number, boost::system::system_category()}; }

class ring {
public:
    ring() {
        int const failed = io_uring_queue_init(depth + 2, &ring_, 0);
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
        file_job* j = nullptr;
        {
            std::lock_guard const lock{mutex_};
            j = jobs_.take(r);
            is_first = started_.is_empty();
            if (j != nullptr) started_.push(*j);
        }
        if (j == nullptr) return r.complete(system_error_of(ENOMEM));
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
            while (under_way_ < depth) {
                file_job* const j = schedule_.take();
                if (j == nullptr) break;
                ++under_way_;
                begin_job(*j);
            }
        }
    }

    bool is_over() {
        std::lock_guard const lock{mutex_};
        return is_ending_ && under_way_ == 0 && syncing_.is_empty() && schedule_.is_empty() &&
               started_.is_empty();
    }

    void await_wake_up() {
        io_uring_sqe* const e = io_uring_get_sqe(ring_.get());
        io_uring_prep_read(e, wake_.get(), &wakes_, sizeof wakes_, 0);
        io_uring_sqe_set_data(e, nullptr);
    }

    void reap() {
        io_uring_cqe* c = nullptr;
        while (io_uring_peek_cqe(ring_.get(), &c) == 0) {
            auto* const j = static_cast<file_job*>(io_uring_cqe_get_data(c));
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
                while (!started_.is_empty()) schedule_.push(started_.pop());
                is_last = is_ending_;
            }
            if (!is_last) await_wake_up();
        }
    }

    // It begins, or goes on with its next piece.
    void begin_job(file_job& j) {
        store_request const& r = *j.request;
        // It may have waited long for its turn.
        if (r.operation() != store_operation::flush && r.is_abandoned())
            return end_job(j, boost::asio::error::operation_aborted);
        switch (r.operation()) {
        case store_operation::flush:
            if (file_.is_read_only) return end_job(j, {});
            return sync(j);
        case store_operation::write_zeroes:
        case store_operation::discard: return j.is_by_hand ? submit_zeros(j) : submit_fallocate(j);
        case store_operation::compare: try { j.there.resize(r.data().size());
            } catch (std::bad_alloc const&) {
                return end_job(j, system_error_of(ENOMEM));
            }
            [[fallthrough]];
        case store_operation::read:
        case store_operation::write: return submit_transfer(j);
        }
    }

    // There is an entry for each job under way, since each has one operation at a time.
    io_uring_sqe* next_entry() { return io_uring_get_sqe(ring_.get()); }

    void submit_transfer(file_job& j) {
        store_request const& r = *j.request;
        int const fd = file_.descriptor;
        std::byte* const data = j.there.all().empty() ? r.data().data() : j.there.data();
        auto const left = static_cast<unsigned>(r.size_bytes() - j.done_bytes);
        io_uring_sqe* const e = next_entry();
        if (r.operation() == store_operation::write)
            io_uring_prep_write(e, fd, data + j.done_bytes, left, j.offset());
        else io_uring_prep_read(e, fd, data + j.done_bytes, left, j.offset());
        io_uring_sqe_set_data(e, &j);
    }

    void submit_fallocate(file_job& j) {
        io_uring_sqe* const e = next_entry();
        io_uring_prep_fallocate(
            e,
            file_.fallocate_descriptor,
            fallocate_mode(j.request->operation()),
            static_cast<off_t>(j.offset()),
            static_cast<off_t>(j.next_piece_bytes())
        );
        io_uring_sqe_set_data(e, &j);
    }

    void submit_zeros(file_job& j) {
        auto const part = std::min<std::uint64_t>(j.next_piece_bytes(), zeros().size());
        io_uring_sqe* const e = next_entry();
        io_uring_prep_write(
            e, file_.descriptor, zeros().data(), static_cast<unsigned>(part), j.offset()
        );
        io_uring_sqe_set_data(e, &j);
    }

    void on_result(file_job& j, int result) {
        store_request const& r = *j.request;
        bool const is_interrupted = result == -EINTR || result == -EAGAIN;
        if (j.is_long && r.is_abandoned()) return end_job(j, boost::asio::error::operation_aborted);
        if (j.is_long && !j.is_by_hand) {
            if (is_interrupted) return submit_fallocate(j);
            j.is_by_hand = result < 0 && lacks_fallocate(-result);
            if (j.is_by_hand) return submit_zeros(j);
            if (result == 0) j.done_bytes += j.next_piece_bytes();
        } else {
            if (is_interrupted) return j.is_long ? submit_zeros(j) : submit_transfer(j);
            // The file has become shorter.
            if (result == 0) return end_job(j, system_error_of(EIO));
            if (result > 0) j.done_bytes += static_cast<unsigned>(result);
        }
        if (result < 0) return end_job(j, system_error_of(-result));
        if (j.done_bytes < r.size_bytes()) {
            if (!j.is_long) return submit_transfer(j);
            if (j.offset() % long_piece_bytes != 0) return submit_zeros(j);
            leave(j);
            return schedule_.push(j);
        }
        if (r.is_durable()) return sync(j);
        end_job(j, {});
    }

    // The job has no operation of its own any more.
    void leave(file_job& j) noexcept {
        schedule_.on_carried_out(j);
        --under_way_;
    }

    void end_job(file_job& j, error_code const& ec) {
        leave(j);
        finish(j, ec);
    }

    // Completes the job after a sync that begins from now on. One runs at a time and serves all that
    // wait: the kernel reports a failure to one of two that run together. (So a durable write is no
    // write with RWF_DSYNC, which is a sync of its own.)
    void sync(file_job& j) {
        leave(j);
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

    void finish(file_job& j, error_code const& ec) {
        j.complete(ec);
        std::lock_guard const lock{mutex_};
        jobs_.give_back(j);
    }

    ring ring_;
    wake_up const wake_;
    std::uint64_t wakes_ = 0;
    // The thread's.
    store_schedule<file_job> schedule_{long_max};
    job_list<file_job> to_sync_;
    job_list<file_job> syncing_;
    file_job sync_;  // stands for the sync under way
    unsigned under_way_ = 0;

    std::mutex mutex_;
    // Guarded by mutex_.
    file_jobs jobs_;
    job_list<file_job> started_;
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
