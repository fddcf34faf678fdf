#include "file_claim.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <boost/system/system_error.hpp>

#include <cerrno>
#include <utility>

namespace rcverbs::nvme::detail {

namespace {

// The bytes that are locked: those of the file, and behind all possible ones a byte for each kind of
// use that several stores may have. Other programs' locks of the file's bytes exclude all but shared
// stores.
constexpr off_t data_end = off_t{1} << 62;
constexpr off_t reading_byte = data_end;
constexpr off_t shared_byte = data_end + 1;

struct flock range(short kind, off_t first, off_t size) noexcept {
    struct flock lock {};
    lock.l_type = kind;
    lock.l_whence = SEEK_SET;
    lock.l_start = first;
    lock.l_len = size;
    return lock;
}

// 0, or an error number.
int set(int fd, short kind, off_t first, off_t size) noexcept {
    struct flock lock = range(kind, first, size);
    if (::fcntl(fd, F_OFD_SETLK, &lock) == 0) return 0;
    return errno == EACCES ? EAGAIN : errno;
}

// EAGAIN if another claim has locked the byte.
int test(int fd, off_t at) noexcept {
    struct flock lock = range(F_WRLCK, at, 1);
    if (::fcntl(fd, F_OFD_GETLK, &lock) != 0) return errno;
    return lock.l_type == F_UNLCK ? 0 : EAGAIN;
}

}  // namespace

unsigned& file_claim::counts::of(file_use use) noexcept {
    switch (use) {
    case file_use::writing: return writing;
    case file_use::reading: return reading;
    case file_use::shared: break;
    }
    return shared;
}

file_claim::file_claim(std::filesystem::path const& path)
    : path_{path},
      file_{::open(path.c_str(), O_RDWR | O_CLOEXEC)} {
    // A lock for reading is enough for a file that cannot be written.
    if (file_.get() < 0) {
        write_error_ = errno;
        file_ = descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    }
    struct stat here {};
    if (file_.get() < 0 || ::fstat(file_.get(), &here) != 0) fail(errno, "");
    is_device_ = S_ISBLK(here.st_mode);
}

file_claim::hold file_claim::acquire(file_use use) {
    std::lock_guard const lock{mutex_};
    if (use == file_use::writing && write_error_ != 0) fail(write_error_, "");
    counts wanted = held_;
    ++wanted.of(use);
    int const error = apply(wanted);
    if (error == 0) {
        held_ = wanted;
        return {shared_from_this(), use};
    }
    static_cast<void>(apply(held_));
    if (error == EBUSY) fail(error, " is mounted or in use; \"shared\" allows that");
    if (error != EAGAIN) fail(error, " cannot be locked; \"shared\" does without");
    fail(
        error,
        use == file_use::shared
            ? " is in use by another store or program that is not \"shared\""
            : " is in use by another store or program; \"shared\", there and here, allows that"
    );
}

int file_claim::hold::exclusive_descriptor() const {
    if (use_ == file_use::shared) return -1;
    std::lock_guard const lock{of_->mutex_};
    return of_->exclusive_.get();
}

void file_claim::release(file_use use) noexcept {
    std::lock_guard const lock{mutex_};
    --held_.of(use);
    static_cast<void>(apply(held_));
}

// Changes the locks to those of these uses. 0, or an error number.
int file_claim::apply(counts const& now) noexcept {
    int const fd = file_.get();
    int error = 0;
    if (now.writing > 0) {
        error = set(fd, F_WRLCK, 0, data_end + 2);
    } else {
        error = set(fd, now.reading > 0 ? F_RDLCK : F_UNLCK, 0, data_end + 1);
        if (error == 0) error = set(fd, now.shared > 0 ? F_RDLCK : F_UNLCK, shared_byte, 1);
        // Each locks its own byte before it looks at the other one, so that of two at least one sees
        // the other.
        if (error == 0 && now.reading > 0) error = test(fd, shared_byte);
        if (error == 0 && now.shared > 0) error = test(fd, reading_byte);
    }
    // Shared files may be on file systems without locks.
    if (error != EAGAIN && !now.is_alone()) error = 0;
    if (error == 0 && is_device_ && now.is_alone() && exclusive_.get() < 0) {
        // Excludes mounts and other exclusive users. A store that only reads may make place for one
        // that writes.
        int const rights = write_error_ == 0 ? O_RDWR : O_RDONLY;
        exclusive_ = descriptor{::open(path_.c_str(), rights | O_EXCL | O_CLOEXEC)};
        if (exclusive_.get() < 0) error = errno;
    }
    if (!now.is_alone()) exclusive_ = descriptor{-1};
    return error;
}

void file_claim::fail(int error, char const* what) const {
    throw boost::system::system_error{
        error, boost::system::system_category(), path_.string() + what};
}

}  // namespace rcverbs::nvme::detail
