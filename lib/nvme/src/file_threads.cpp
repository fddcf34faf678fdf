#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>

#include "file_engine.hpp"
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

error_code write_zeroes_by_hand(int fd, store_request const& r) {
    std::uint64_t at = r.offset_bytes();
    std::uint64_t size = r.size_bytes();
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
    file_threads(file_in_use const& file, std::uint32_t threads) : file_engine{file} {
        hosting::signals_blocked const until_started;
        threads_.emplace(threads);
    }

    ~file_threads() override { threads_->join(); }

private:
    void begin(store_request& r) noexcept override {
        try {
            boost::asio::post(*threads_, [this, &r] { carry_out(r); });
        } catch (std::bad_alloc const&) {
            r.complete({ENOMEM, boost::system::system_category()});
        }
    }

    void carry_out(store_request& r) {
        if (r.operation() != store_operation::flush && r.is_abandoned())
            return r.complete(boost::asio::error::operation_aborted);
        bool is_equal = true;
        error_code ec;
        try {
            ec = serve(r, is_equal);
        } catch (std::bad_alloc const&) {
            ec = {ENOMEM, boost::system::system_category()};
        }
        if (!ec && r.is_durable()) ec = sync();
        if (!is_equal) return r.complete_mismatch();
        r.complete(ec);
    }

    error_code serve(store_request& r, bool& is_equal) {
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
        case store_operation::flush: return sync();
        case store_operation::write_zeroes:
        case store_operation::discard: return zero(r);
        case store_operation::compare: {
            aligned_bytes there;
            there.resize(r.data().size());
            error_code const ec = transfer(read, there.all(), r.offset_bytes());
            is_equal = ec || std::ranges::equal(there.all(), r.data());
            return ec;
        }
        }
        return {};
    }

    error_code zero(store_request const& r) {
        auto const at = static_cast<off_t>(r.offset_bytes());
        auto const size = static_cast<off_t>(r.size_bytes());
        int const mode = fallocate_mode(r.operation());
        if (::fallocate(file_.fallocate_descriptor, mode, at, size) == 0) return {};
        if (!lacks_fallocate(errno)) return last_error();
        return write_zeroes_by_hand(file_.descriptor, r);
    }

    // Waits for a sync that begins after this call. One runs at a time and serves all who wait: the
    // kernel reports a failure to one of two that run together.
    error_code sync() {
        if (file_.is_read_only) return {};
        std::unique_lock lock{sync_mutex_};
        std::uint64_t const wanted = syncs_begun_ + 1;
        while (syncs_done_ < wanted) {
            if (syncs_done_ < syncs_begun_) {
                sync_done_.wait(lock);
                continue;
            }
            ++syncs_begun_;
            lock.unlock();
            if (!sync_failure()) run_sync();
            lock.lock();
            syncs_done_ = syncs_begun_;
            sync_done_.notify_all();
        }
        return sync_failure();
    }

    void run_sync() noexcept {
        while (::fdatasync(file_.descriptor) != 0) {
            if (errno != EINTR) return keep_sync_failure(errno);
        }
    }

    std::mutex sync_mutex_;
    std::condition_variable sync_done_;
    // Guarded by sync_mutex_.
    std::uint64_t syncs_begun_ = 0;
    std::uint64_t syncs_done_ = 0;
    std::optional<boost::asio::thread_pool> threads_;
};

}  // namespace

std::unique_ptr<file_engine> make_file_threads(file_in_use const& file, std::uint32_t threads) {
    return std::make_unique<file_threads>(file, threads);
}

}  // namespace rcverbs::nvme::detail
