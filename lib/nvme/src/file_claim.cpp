#include "file_claim.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <boost/system/system_error.hpp>

#include <cerrno>

namespace rcverbs::nvme::detail {

namespace {

[[noreturn]] void throw_last_error(std::filesystem::path const& path, char const* what) {
    throw boost::system::system_error{
        errno, boost::system::system_category(), path.string() + what};
}

int open_exclusively(std::filesystem::path const& path, bool is_read_only) {
    struct stat there {};
    bool const is_device = ::stat(path.c_str(), &there) == 0 && S_ISBLK(there.st_mode);
    int flags = (is_read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
    // Of a block device, O_EXCL excludes mounts and other exclusive users.
    if (is_device) flags |= O_EXCL;
    int const fd = ::open(path.c_str(), flags);
    if (fd < 0 && errno == EBUSY)
        throw_last_error(path, " is mounted or in use; \"shared\" allows that");
    if (fd < 0) throw_last_error(path, "");
    return fd;
}

}  // namespace

file_claim::file_claim(std::filesystem::path const& path, bool is_read_only)
    : file_{open_exclusively(path, is_read_only)} {
    struct stat here {};
    if (::fstat(file_.get(), &here) != 0) throw_last_error(path, "");
    if (S_ISBLK(here.st_mode)) return;
    struct flock lock {};
    lock.l_type = is_read_only ? F_RDLCK : F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (::fcntl(file_.get(), F_OFD_SETLK, &lock) == 0) return;
    bool const is_locked = errno == EAGAIN || errno == EACCES;
    throw_last_error(
        path,
        is_locked ? " is in use by another store or program; \"shared\" allows that"
                  : " cannot be locked; \"shared\" does without"
    );
}

}  // namespace rcverbs::nvme::detail
