// file_engine.hpp — what carries out the requests of a file store: the kernel's io_uring, or threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <rcverbs/nvme/block_store.hpp>

namespace rcverbs::nvme::detail {

/// A file as an engine uses it. The store owns the descriptors, which outlive the engine.
struct file_in_use {
    int descriptor = -1;
    /// For fallocate(2): of a block device that the store uses alone, its exclusive open.
    int fallocate_descriptor = -1;
    bool is_read_only = false;
    /// Opened with O_DIRECT, so that memory must be aligned.
    bool is_direct = false;
    /// The error number of the first sync of the file that failed; 0 if none has.
    std::shared_ptr<std::atomic<int>> sync_failure;
};

/// What fallocate(2) is asked for to zero a range, or to discard it.
int fallocate_mode(store_operation zeroing) noexcept;
/// True if an error number of fallocate(2) says that the file has no such call, or that another program
/// has opened the device exclusively (EBUSY); then zeros are written.
bool lacks_fallocate(int error) noexcept;
/// Zeros to write from, aligned for direct I/O.
std::span<std::byte> zeros() noexcept;

/// Memory that is aligned for direct I/O; empty at first.
class aligned_bytes {
public:
    /// Throws std::bad_alloc.
    void resize(std::size_t size);
    void clear() noexcept { bytes_.reset(), size_ = 0; }
    std::byte* data() const noexcept { return bytes_.get(); }
    std::span<std::byte> all() const noexcept { return {bytes_.get(), size_}; }

private:
    struct deleter {
        void operator()(std::byte* b) const noexcept;
    };
    std::unique_ptr<std::byte, deleter> bytes_;
    std::size_t size_ = 0;
};

/// Carries out requests. A failed sync is final: Linux reports a failed write-back once, so the next
/// fdatasync(2) would succeed although data is lost. After the first failure every request that
/// changes the file, or that promises durability, fails with the same error.
class file_engine {
public:
    explicit file_engine(file_in_use file) : file_{std::move(file)} {}
    file_engine(file_engine const&) = delete;
    file_engine& operator=(file_engine const&) = delete;
    /// Waits for the requests under way.
    virtual ~file_engine() = default;

    /// Carries out a request, and completes it on a thread of the engine's own; at once without memory,
    /// after a failed sync, and if the page cache has or takes the data without waiting.
    void start(store_request& r) noexcept;

    /// Carries out a request on a thread of the engine's own.
    virtual void begin(store_request& r) noexcept = 0;

protected:
    /// The error of the first sync that failed; empty if none has.
    error_code sync_failure() const noexcept;
    /// Keeps the error of a sync that failed.
    ///
    /// @param error  An error number, not 0.
    void keep_sync_failure(int error) noexcept;

    file_in_use const file_;

private:
    bool complete_at_once(store_request& r) noexcept;
    bool begin_copied(store_request& r) noexcept;

    // The file has no such calls: a file system may refuse writes only.
    std::atomic<bool> refuses_reads_{false};
    std::atomic<bool> refuses_writes_{false};
};

/// An engine of threads that block.
///
/// @throws std::system_error if a thread cannot be started.
std::unique_ptr<file_engine> make_file_threads(file_in_use const& file, std::uint32_t threads);

/// An engine of one io_uring and one thread.
///
/// @throws boost::system::system_error: the error of io_uring_setup(2) if the system has no io_uring
///         or forbids it; ENOSYS if it lacks an operation, or if the library is built without.
std::unique_ptr<file_engine> make_file_ring(file_in_use const& file);

/// Reads by one engine, everything else by another.
std::unique_ptr<file_engine> make_file_pair(
    file_in_use const& file, std::unique_ptr<file_engine> reads, std::unique_ptr<file_engine> others
);

}  // namespace rcverbs::nvme::detail
