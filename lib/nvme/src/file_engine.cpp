#include "file_engine.hpp"

#include <boost/asio/error.hpp>

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <new>

namespace rcverbs::nvme::detail {

namespace {

// More than any device demands: a page.
constexpr std::size_t aligned_to = 4096;

bool is_aligned(void const* memory) noexcept {
    return reinterpret_cast<std::uintptr_t>(memory) % aligned_to == 0;
}

// std::ranges::copy() of g++ 12 copies byte by byte.
void copy_bytes(std::span<std::byte const> from, std::span<std::byte> to) noexcept {
    std::copy(from.begin(), from.end(), to.begin());
}

// A request with memory of its own, in place of one whose memory is not aligned.
class copied_request final : public store_request {
public:
    explicit copied_request(store_request& original) : original_{original} {
        copy_.resize(original.data().size());
        operation_ = original.operation();
        offset_bytes_ = original.offset_bytes();
        size_bytes_ = original.size_bytes();
        is_durable_ = original.is_durable();
        come_from_host_of(original);
        data_ = copy_.all();
        if (operation_ != store_operation::read) copy_bytes(original.data(), data_);
    }

private:
    void on_end(outcome how) noexcept override {
        std::unique_ptr<copied_request> const own{this};
        bool const is_read = operation_ == store_operation::read && !how.failure;
        if (is_read) copy_bytes(data_, original_.data());
        switch (how.how) {
        case end::done: return original_.complete(how.failure);
        case end::differs: return original_.complete_mismatch();
        case end::retry: return original_.complete_retry();
        case end::path_error: return original_.complete_path_error();
        }
    }

    store_request& original_;
    aligned_bytes copy_;
};

class file_pair final : public file_engine {
public:
    file_pair(
        file_in_use const& file,
        std::unique_ptr<file_engine> reads,
        std::unique_ptr<file_engine> others
    )
        : file_engine{file},
          reads_{std::move(reads)},
          others_{std::move(others)} {}

    void begin(store_request& r) noexcept override {
        (r.operation() == store_operation::read ? *reads_ : *others_).begin(r);
    }

private:
    std::unique_ptr<file_engine> const reads_;
    std::unique_ptr<file_engine> const others_;
};

}  // namespace

void aligned_bytes::resize(std::size_t size) {
    clear();
    bytes_.reset(static_cast<std::byte*>(::operator new (size, std::align_val_t{aligned_to})));
    size_ = size;
}

void aligned_bytes::deleter::operator()(std::byte* b) const noexcept {
    ::operator delete (b, std::align_val_t{aligned_to});
}

std::unique_ptr<file_engine> make_file_pair(
    file_in_use const& file, std::unique_ptr<file_engine> reads, std::unique_ptr<file_engine> others
) {
    return std::make_unique<file_pair>(file, std::move(reads), std::move(others));
}

int fallocate_mode(store_operation zeroing) noexcept {
    bool const is_discard = zeroing == store_operation::discard;
    return (is_discard ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE) | FALLOC_FL_KEEP_SIZE;
}

bool lacks_fallocate(int error) noexcept {
    return error == EOPNOTSUPP || error == EINVAL || error == EBUSY;
}

std::span<std::byte> zeros() noexcept {
    alignas(aligned_to) static std::array<std::byte, 65536> all{};
    return all;
}

void file_engine::start(store_request& r) noexcept {
    // A flush cannot harm, and a shutdown waits for those of all stores.
    if (r.operation() != store_operation::flush && r.is_abandoned())
        return r.complete(boost::asio::error::operation_aborted);
    bool const only_reads =
        r.operation() == store_operation::read || r.operation() == store_operation::compare;
    if (!only_reads && !file_.is_read_only) {
        if (error_code const ec = sync_failure()) return r.complete(ec);
    }
    if (begin_copied(r)) return;
    if (!complete_at_once(r)) begin(r);
}

// With O_DIRECT, memory that is not aligned is copied.
bool file_engine::begin_copied(store_request& r) noexcept {
    if (!file_.is_direct || is_aligned(r.data().data())) return false;
    try {
        begin(*new copied_request{r});
    } catch (std::bad_alloc const&) {
        r.complete({ENOMEM, boost::system::system_category()});
    }
    return true;
}

// Handing a request over to another thread, and back, costs more than copying a few pages.
bool file_engine::complete_at_once(store_request& r) noexcept {
    constexpr std::size_t bytes_max = 131072;
    bool const is_read = r.operation() == store_operation::read;
    bool const is_write = r.operation() == store_operation::write && !r.is_durable();
    if (!(is_read || is_write) || file_.is_direct || r.data().size() > bytes_max) return false;
    std::atomic<bool>& is_refused = is_read ? refuses_reads_ : refuses_writes_;
    // Relaxed: who sees it late tries once more in vain.
    if (is_refused.load(std::memory_order_relaxed)) return false;
    iovec const all{r.data().data(), r.data().size()};
    auto const at = static_cast<off_t>(r.offset_bytes());
    ssize_t const n = is_read ? ::preadv2(file_.descriptor, &all, 1, at, RWF_NOWAIT)
                              : ::pwritev2(file_.descriptor, &all, 1, at, RWF_NOWAIT);
    // Whatever else happened, the engine meets it again, and reports it.
    if (n < 0 && errno == EOPNOTSUPP) is_refused.store(true, std::memory_order_relaxed);
    if (n < 0 || static_cast<std::size_t>(n) != r.data().size()) return false;
    r.complete({});
    return true;
}

error_code file_engine::sync_failure() const noexcept {
    return {file_.sync_failure->load(), boost::system::system_category()};
}

void file_engine::keep_sync_failure(int error) noexcept {
    int none = 0;
    file_.sync_failure->compare_exchange_strong(none, error);
}

}  // namespace rcverbs::nvme::detail
