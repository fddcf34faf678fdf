// file_store.hpp — a store in a file or a block device.
//
//     namespace_options disk;
//     disk.store = std::make_shared<file_store>("/srv/disk.img");
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include <rcverbs/export.hpp>
#include <rcverbs/nvme/block_store.hpp>

namespace rcverbs::nvme {

namespace detail {

class file_store_core;

}  // namespace detail

/// How the file is read and written.
enum class file_method {
    /// What the page cache has, or takes, without waiting is read and written at once. Other reads go
    /// by io_uring where the system has it and allows it, and everything else by threads. With
    /// is_direct, all by io_uring, or all by threads if the device does not support RWF_NOWAIT
    /// (preadv2(2)).
    automatic,
    /// What has to wait, by io_uring(7): one thread submits all waiting requests in one system call.
    io_uring,
    /// What has to wait, by a pool of threads that block.
    threads,
};

/// Options of a file store.
struct file_store_options {
    /// The size of a logical block: 512, 1024, 2048 or 4096. Empty for that of the block device
    /// (BLKSSZGET); of a file for the one with which it was served last, which is kept in the extended
    /// attribute user.rcverbs.block_bytes, or the one with which its contents were written, as its
    /// partition table or file system shows; 4096 if it has none.
    std::optional<std::uint32_t> block_bytes = {};
    /// Opens the file read-only; writes fail.
    bool is_read_only = false;
    /// True to open the file although it is mounted, used by another program that locks its bytes, or
    /// by another store for which this is true as well. Whoever uses it at the same time sees and
    /// destroys the other's blocks.
    bool is_shared = false;
    /// True to pass the page cache by (O_DIRECT): for devices whose cache belongs to the hosts. The
    /// constructor refuses blocks that the system does not transfer so (statx(2), stx_dio_offset_align). Data
    /// whose memory is not aligned is copied. Durability is as without it: a device may have a cache
    /// of its own.
    bool is_direct = false;
    /// Containers and hardened systems often forbid io_uring.
    file_method method = file_method::automatic;
    /// With threads: their number, and so the number of requests that the system carries out at a
    /// time; one of several is left for what is short. 1 to 64.
    std::uint32_t threads = 4;
};

/// A store in a file or a block device, through the page cache unless file_store_options::is_direct. Writes are durable after a flush,
/// or with FUA: both call fdatasync(2). If that fails once, written data may be lost, and the
/// kernel forgets the failure: from then on every write, flush and discard of this store fails with
/// the same error, for all hosts, and reads go on. Destroy the store, and open the file again after
/// the cause is repaired.
///
/// A discard and a write zeroes are calls of fallocate(2): with FALLOC_FL_PUNCH_HOLE, which gives the
/// blocks back, and with FALLOC_FL_ZERO_RANGE. The bytes are zero afterwards in every case: where the
/// kernel refuses the call, zeros are written. That is so on a file system or a device without it, and on
/// a shared device that another program has opened with O_EXCL, as a mount does. A file without holes
/// then grows when it is discarded.
///
/// Hosts are served in turn (store_request::host_number()). Zeroing and discarding is done in pieces of
/// a MiB at most, behind which the others have their turns, and one sync serves all that wait for one:
/// so no host waits long for another.
///
/// A store uses its file alone, unless file_store_options::is_shared: it opens a block device with
/// O_EXCL, and holds a lock (fcntl(2), F_OFD_SETLK; a read lock if it is read-only).
class RCVERBS_EXPORT file_store final : public block_store {
public:
    /// Opens an existing file, or a block device. Its size, rounded down to whole blocks, is the
    /// capacity.
    ///
    /// @param path     The file.
    /// @param options  Block size, rights, method.
    /// @throws boost::system::system_error: errc::invalid_option (also of a file of less than one
    ///         block, or without direct I/O of such blocks), EBUSY of a device that is mounted or in use, EAGAIN of a file that is in use,
    ///         errno of open(2) and fcntl(2); with file_method::io_uring, errno of
    ///         io_uring_setup(2).
    explicit file_store(std::filesystem::path const& path, file_store_options const& options = {});
    /// Opens a store that takes the place of another one. If both have the same file, it takes over
    /// the lock, the UUID, and a failure to make data durable. The other one may be used until it is
    /// destroyed.
    ///
    /// @throws as above.
    file_store(
        std::filesystem::path const& path,
        file_store_options const& options,
        file_store const& replaced
    );
    file_store(file_store const&) = delete;
    file_store& operator=(file_store const&) = delete;
    /// Waits for the requests under way.
    ~file_store() override;

    /// Bytes at the end of the file that are no whole block, and are not served.
    std::uint32_t bytes_left_out() const;
    /// Reads the size of the file again: after it has changed, call target::namespace_changed().
    store_geometry geometry() const override;
    /// Of a file: derived from /etc/machine-id, the file system, and the file's inode and generation,
    /// and kept with these in the extended attribute user.rcverbs.uuid. A copy has another one, and so
    /// has the same file on another machine, which may be a clone. Of a
    /// block device: derived from its wwid; without a unique one, from /etc/machine-id and the UUID of
    /// the device mapper or a name of the hardware in /dev/disk/by-id.
    std::optional<std::array<std::byte, 16>> uuid() const override;
    /// False if uuid() is random, because the file or the device has nothing to derive it from:
    /// another store of the same file has another one.
    bool has_lasting_uuid() const noexcept;
    /// The UUID that the file had on another machine, by its attribute. If the file has moved here, and is
    /// no copy, give it as namespace_options::uuid.
    std::optional<std::array<std::byte, 16>> uuid_elsewhere() const;
    /// True if the path leads to the file of this store, and not to another one that has taken its
    /// name.
    bool is_at(std::filesystem::path const& path) const noexcept;
    /// The method in use: io_uring, threads, or automatic for both.
    file_method method() const noexcept;
    void start(store_request& request) override;

private:
    std::unique_ptr<detail::file_store_core> const core_;
};

}  // namespace rcverbs::nvme
