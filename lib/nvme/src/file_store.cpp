#include <rcverbs/nvme/file_store.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "block_size.hpp"
#include "descriptor.hpp"
#include "error/detailed_error.hpp"
#include <rcverbs/detail/option_check.hpp>
#include "file_claim.hpp"
#include "file_engine.hpp"
#include "identity.hpp"

namespace rcverbs::nvme {

namespace detail {

namespace {

// The errno of a failed sync, for all stores of one file in this process: the kernel reports it once, and
// what one has lost, no other can make durable.
std::shared_ptr<std::atomic<int>> sync_failure_of(int file) {
    static std::mutex mutex;
    static std::map<std::tuple<bool, dev_t, ino_t>, std::weak_ptr<std::atomic<int>>> all;
    struct stat s {};
    auto none = std::make_shared<std::atomic<int>>(0);
    if (::fstat(file, &s) != 0) return none;
    bool const is_device = S_ISBLK(s.st_mode);
    std::lock_guard const lock{mutex};
    std::erase_if(all, [](auto const& each) { return each.second.expired(); });
    auto& found = all[{is_device, is_device ? s.st_rdev : s.st_dev, is_device ? 0 : s.st_ino}];
    if (auto there = found.lock()) return there;
    found = none;
    return none;
}

}  // namespace

class file_store_core {
public:
    file_store_core(
        std::filesystem::path const& path,
        file_store_options const& options,
        file_store_core const* replaced
    )
        : options_{options},
          hold_{hold(path, options, replaced)},
          file_{::open(path.c_str(), (options.is_read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC)} {
        if (file_.get() < 0)
            throw boost::system::system_error{
                errno, boost::system::system_category(), path.string()};
        bool const is_same = replaced != nullptr && replaced->hold_.of() == hold_.of();
        identity_ = is_same ? replaced->identity_ : identify_file(file_.get());
        block_bytes_ = options.block_bytes ? *options.block_bytes : block_bytes_of(file_.get());
        // Only now: what was read until here is not aligned.
        int const flags = options.is_direct ? ::fcntl(file_.get(), F_GETFL) | O_DIRECT : 0;
        has_direct_ = options.is_direct && ::fcntl(file_.get(), F_SETFL, flags) == 0;
    }

    // Nothing else has blocks: the size of a folder is any number.
    bool has_blocks() const noexcept {
        struct stat here {};
        if (::fstat(file_.get(), &here) != 0) return false;
        return (S_ISREG(here.st_mode) || S_ISBLK(here.st_mode)) && size_bytes() >= block_bytes_;
    }
    std::uint64_t size_bytes() const noexcept {
        off_t const end = ::lseek(file_.get(), 0, SEEK_END);  // of a block device, too
        return end < 0 ? 0 : static_cast<std::uint64_t>(end);
    }
    store_geometry geometry() const {
        return {
            size_bytes() / block_bytes_ * block_bytes_, block_bytes_, true, options_.is_read_only};
    }
    std::uint32_t bytes_left_out() const noexcept {
        return static_cast<std::uint32_t>(size_bytes() % block_bytes_);
    }

    void make_engine() {
        // What is opened read-only fails to write in every way.
        int const exclusive = options_.is_read_only ? -1 : hold_.exclusive_descriptor();
        file_in_use const file{
            file_.get(),
            exclusive >= 0 ? exclusive : file_.get(),
            options_.is_read_only,
            options_.is_direct,
            sync_failure_};
        std::unique_ptr<file_engine> ring;
        bool const is_ring_slow = options_.method == file_method::automatic && options_.is_direct &&
                                  refuses_not_to_wait();
        if (options_.method != file_method::threads && !is_ring_slow) {
            try {
                ring = make_file_ring(file);
            } catch (boost::system::system_error const&) {
                if (options_.method == file_method::io_uring) throw;
            }
        }
        bool const is_ring_enough = options_.method == file_method::io_uring || options_.is_direct;
        method_ = ring == nullptr  ? file_method::threads
                  : is_ring_enough ? file_method::io_uring
                                   : file_method::automatic;
        // The kernel gives writes to the page cache to threads of its own: one hand-over more.
        if (method_ == file_method::io_uring) engine_ = std::move(ring);
        else engine_ = make_file_threads(file, options_.threads);
        if (method_ == file_method::automatic)
            engine_ = make_file_pair(file, std::move(ring), std::move(engine_));
    }
    // True if the device cannot be asked to refuse what has to wait. Then io_uring hands each request
    // to a worker thread of the kernel's, which takes longer than threads of our own.
    bool refuses_not_to_wait() const {
        aligned_bytes block;
        block.resize(block_bytes_);
        iovec const all{block.data(), block_bytes_};
        return ::preadv2(file_.get(), &all, 1, 0, RWF_NOWAIT) < 0 && errno == EOPNOTSUPP;
    }
    // True if the kernel refuses direct I/O on blocks of this size.
    bool refuses_direct() const {
        if (!options_.is_direct) return false;
        if (!has_direct_ || block_bytes_ % direct_alignment() != 0) return true;
        aligned_bytes block;
        block.resize(block_bytes_);
        return ::pread(file_.get(), block.data(), block_bytes_, 0) < 0 && errno == EINVAL;
    }

    // Of offsets and sizes for direct I/O: 1 if the system does not tell. A read is no test of a file with
    // holes: Linux reads a hole of any alignment, and refuses to write it.
    std::uint32_t direct_alignment() const noexcept {
#ifdef STATX_DIOALIGN
        struct statx of {};
        if (::statx(file_.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &of) == 0 &&
            (of.stx_mask & STATX_DIOALIGN) != 0 && of.stx_dio_offset_align > 0)
            return of.stx_dio_offset_align;
#endif
        return 1;
    }

    file_method method() const noexcept { return method_; }
    file_identity const& identity() const noexcept { return identity_; }
    bool is_at(std::filesystem::path const& path) const noexcept {
        struct stat here {};
        struct stat there {};
        if (::fstat(file_.get(), &here) != 0 || ::stat(path.c_str(), &there) != 0) return false;
        if (S_ISBLK(here.st_mode)) return S_ISBLK(there.st_mode) && here.st_rdev == there.st_rdev;
        return here.st_dev == there.st_dev && here.st_ino == there.st_ino;
    }
    void start(store_request& r) {
        // Not before: a configuration that is refused changes nothing.
        // Relaxed: the exchange decides.
        if (!is_block_size_kept_.load(std::memory_order_relaxed) &&
            !is_block_size_kept_.exchange(true))
            keep_block_bytes(file_.get(), block_bytes_);
        engine_->start(r);
    }

private:
    static file_claim::hold hold(
        std::filesystem::path const& path,
        file_store_options const& options,
        file_store_core const* replaced
    ) {
        bool const has_claim = replaced != nullptr && replaced->is_at(path);
        auto const claim = has_claim ? replaced->hold_.of() : std::make_shared<file_claim>(path);
        if (options.is_shared) return claim->acquire(file_use::shared);
        return claim->acquire(options.is_read_only ? file_use::reading : file_use::writing);
    }

    file_store_options const options_;
    file_claim::hold const hold_;
    descriptor const file_;
    std::shared_ptr<std::atomic<int>> const sync_failure_ = sync_failure_of(file_.get());
    file_identity identity_;
    std::uint32_t block_bytes_ = 0;
    std::atomic<bool> is_block_size_kept_{options_.is_read_only};
    bool has_direct_ = false;
    file_method method_ = file_method::automatic;
    std::unique_ptr<file_engine> engine_;
};

}  // namespace detail

namespace {

std::unique_ptr<detail::file_store_core> opened(
    std::filesystem::path const& path,
    file_store_options const& options,
    detail::file_store_core const* replaced
) {
    rcverbs::detail::option_check check{"file_store_options"};
    std::uint32_t const block = options.block_bytes.value_or(4096);
    check.within("block_bytes", block, 512, 4096)
        .that(std::has_single_bit(block), "block_bytes", "is no power of two")
        .within("threads", options.threads, 1, 64);
    rcverbs::detail::throw_if_refused(check.problem());
    auto const refuse = [&path] {
        error_code const ec = errc::invalid_option;
        throw rcverbs::detail::detailed_error{
            ec, path.string() + " is no file or block device of a block or more"};
    };
    // Others, such as folders and pipes, are not even opened.
    struct stat there {};
    if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISBLK(there.st_mode))
        refuse();
    auto made = std::make_unique<detail::file_store_core>(path, options, replaced);
    if (!made->has_blocks()) refuse();
    if (made->refuses_direct()) {
        error_code const ec = errc::invalid_option;
        std::uint32_t const needed = made->direct_alignment();
        throw rcverbs::detail::detailed_error{
            ec,
            path.string() + " has no direct I/O of blocks of " +
                std::to_string(made->geometry().block_bytes) + " bytes" +
                (needed > 1 ? ", only of " + std::to_string(needed) : "")};
    }
    made->make_engine();
    return made;
}

}  // namespace

file_store::file_store(std::filesystem::path const& path, file_store_options const& options)
    : core_{opened(path, options, nullptr)} {}

file_store::file_store(
    std::filesystem::path const& path, file_store_options const& options, file_store const& replaced
)
    : core_{opened(path, options, replaced.core_.get())} {}

file_store::~file_store() = default;

store_geometry file_store::geometry() const { return core_->geometry(); }

std::uint32_t file_store::bytes_left_out() const { return core_->bytes_left_out(); }

std::optional<std::array<std::byte, 16>> file_store::uuid() const { return core_->identity().uuid; }

std::optional<std::array<std::byte, 16>> file_store::uuid_elsewhere() const {
    return core_->identity().elsewhere;
}

bool file_store::has_lasting_uuid() const noexcept { return core_->identity().is_lasting; }

bool file_store::is_at(std::filesystem::path const& path) const noexcept {
    return core_->is_at(path);
}

file_method file_store::method() const noexcept { return core_->method(); }

void file_store::start(store_request& request) { core_->start(request); }

}  // namespace rcverbs::nvme
