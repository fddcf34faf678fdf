// file_claim.hpp — the right to use a file or a block device: alone, or shared by consent.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>

#include "descriptor.hpp"

namespace rcverbs::nvme::detail {

/// How a store uses its file. Several stores may read a file, or share it; any other two exclude each
/// other.
enum class file_use { writing, reading, shared };

/// What a program holds of a file: locks of an open file description (OFD locks, so that two claims
/// of one process exclude each other, too), and an exclusive open of a block device that is not
/// shared. Safe from any thread.
class file_claim : public std::enable_shared_from_this<file_claim> {
public:
    /// Holds a use until it is destroyed.
    class hold {
    public:
        hold(std::shared_ptr<file_claim> of, file_use use) noexcept
            : of_{std::move(of)},
              use_{use} {}
        hold(hold&&) noexcept = default;
        hold& operator=(hold&&) = delete;
        ~hold() {
            if (of_ != nullptr) of_->release(use_);
        }
        std::shared_ptr<file_claim> const& of() const noexcept { return of_; }
        /// The exclusive open of a block device, which can be written if the device can: the kernel
        /// refuses fallocate(2) through any other descriptor with EBUSY while there is one. It stays
        /// the same for as long as this is held. -1 of a regular file, and of a shared use, whose
        /// claim may become exclusive and end to be so at any time.
        int exclusive_descriptor() const;

    private:
        std::shared_ptr<file_claim> of_;
        file_use use_;
    };

    /// @throws boost::system::system_error: errno of open(2).
    explicit file_claim(std::filesystem::path const& path);

    /// Holds the file, in addition to what this claim holds already: a store that takes another
    /// one's place has the claim of that one, and both may use the file meanwhile.
    ///
    /// @throws boost::system::system_error: EBUSY if the device is mounted or in use, EAGAIN if the
    ///         file is locked; errno of open(2) and fcntl(2).
    hold acquire(file_use use);

private:
    struct counts {
        unsigned writing = 0;
        unsigned reading = 0;
        unsigned shared = 0;

        unsigned& of(file_use use) noexcept;
        bool is_alone() const noexcept { return writing + reading > 0; }
    };

    void release(file_use use) noexcept;
    int apply(counts const& now) noexcept;
    [[noreturn]] void fail(int error, char const* what) const;

    std::filesystem::path const path_;
    bool is_device_ = false;
    int write_error_ = 0;  // why the file could only be opened for reading
    descriptor file_;
    std::mutex mutex_;
    // Guarded by mutex_.
    counts held_;
    descriptor exclusive_{-1};  // the exclusive open of a block device
};

}  // namespace rcverbs::nvme::detail
