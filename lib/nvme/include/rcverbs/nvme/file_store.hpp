// file_store.hpp — a store in a file or a block device.
//
//     namespace_options disk;
//     disk.store = std::make_shared<file_store>("/srv/disk.img");
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include <rcverbs/export.hpp>
#include <rcverbs/nvme/block_store.hpp>

namespace rcverbs::nvme {

namespace detail {

class file_store_core;

}  // namespace detail

/// How the file is read and written.
enum class file_method {
    /// io_uring where the system has it and allows it, otherwise threads.
    automatic,
    /// By io_uring(7): one thread submits all waiting requests in one system call.
    io_uring,
    /// By a pool of threads that block.
    threads,
};

/// Options of a file store.
struct file_store_options {
    /// The size of a logical block: 512, 1024, 2048 or 4096.
    std::uint32_t block_bytes = 4096;
    /// Opens the file read-only; writes fail.
    bool is_read_only = false;
    /// Containers and hardened systems often forbid io_uring.
    file_method method = file_method::automatic;
    /// With threads: their number, and so the number of requests that the system carries out at a
    /// time. 1 to 64.
    std::uint32_t threads = 4;
};

/// A store in a file or a block device, through the page cache. Writes are durable after a flush,
/// or with FUA: both call fdatasync(2).
class RCVERBS_EXPORT file_store final : public block_store {
public:
    /// Opens an existing file, or a block device. Its size, rounded down to whole blocks, is the
    /// capacity.
    ///
    /// @param path     The file.
    /// @param options  Block size, rights, method.
    /// @throws boost::system::system_error: errc::invalid_option (also of a file of less than one
    ///         block), errno of open(2); with file_method::io_uring, errno of io_uring_setup(2).
    explicit file_store(std::filesystem::path const& path, file_store_options const& options = {});
    file_store(file_store const&) = delete;
    file_store& operator=(file_store const&) = delete;
    /// Waits for the requests under way.
    ~file_store() override;

    /// Reads the size of the file again: after it has changed, call target::namespace_changed().
    store_geometry geometry() const override;
    /// The method in use: io_uring or threads.
    file_method method() const noexcept;
    void start(store_request& request) override;

private:
    std::unique_ptr<detail::file_store_core> const core_;
};

}  // namespace rcverbs::nvme
