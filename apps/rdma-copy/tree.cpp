#include "rdma-copy/tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <memory>
#include <tuple>

#include "rdma-copy/copy_message.hpp"

namespace copy {

namespace {

constexpr int plain = O_CLOEXEC | O_NOFOLLOW;

int error_of(int result) noexcept { return result < 0 ? errno : 0; }

// Opens one component after the other, and follows no link. For kernels and sandboxes that refuse
// openat2.
int walk(int root, std::string const& path, int flags) {
    descriptor at;
    std::size_t begin = 0;
    for (;;) {
        std::size_t const slash = path.find('/', begin);
        std::string const component = path.substr(begin, slash - begin);
        bool const is_last = slash == std::string::npos;
        int const how = is_last ? flags : O_PATH | O_DIRECTORY;
        int const fd = ::openat(at.is_open() ? at.get() : root, component.c_str(), how | plain);
        if (is_last || fd < 0) return fd;
        at = descriptor{fd};
        begin = slash + 1;
    }
}

int open_inside(int root, std::string const& path, int flags) {
    open_how how{};
    how.flags = static_cast<std::uint64_t>(flags | plain);
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    long const fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    return errno == ENOSYS || errno == EPERM ? walk(root, path, flags) : -1;
}

std::string random_text() {
    std::array<unsigned char, 8> bytes{};
    if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
    std::string text;
    for (unsigned char const b : bytes) {
        constexpr char digits[] = "0123456789abcdef";
        text += {digits[b >> 4], digits[b & 15]};
    }
    return text;
}

std::array<timespec, 2> only_mtime(timespec const& mtime) {
    return {timespec{0, UTIME_OMIT}, mtime};
}

}  // namespace

descriptor::~descriptor() {
    if (fd_ >= 0) ::close(fd_);
}

tree tree::open(std::string const& path, int& error) {
    descriptor root{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    error = root.is_open() ? 0 : errno;
    return tree{std::move(root)};
}

descriptor tree::open_at(std::string const& path, int flags, int& error) const {
    error = 0;
    if (!path.empty() && !is_inside(path)) {
        error = EINVAL;
        return {};
    }
    descriptor d{
        path.empty() ? ::openat(root_.get(), ".", flags | plain)
                     : open_inside(root_.get(), path, flags)};
    if (!d.is_open()) error = errno;
    return d;
}

std::pair<descriptor, std::string> tree::parent_of(std::string const& path, int& error) const {
    if (!is_inside(path)) {
        error = EINVAL;
        return {};
    }
    std::size_t const slash = path.rfind('/');
    bool const is_here = slash == std::string::npos;
    return {
        open_at(is_here ? "" : path.substr(0, slash), O_RDONLY | O_DIRECTORY, error),
        is_here ? path : path.substr(slash + 1)};
}

struct stat tree::status_of(std::string const& path, int& error) const {
    struct stat s {};
    descriptor const d = open_at(path, O_PATH, error);
    if (error == 0) error = error_of(::fstat(d.get(), &s));
    return s;
}

std::string tree::target_of_link(std::string const& path, int& error) const {
    auto const [parent, name] = parent_of(path, error);
    if (error != 0) return {};
    std::array<char, PATH_MAX> target{};
    ssize_t const size = ::readlinkat(parent.get(), name.c_str(), target.data(), target.size());
    error = size < 0 ? errno : 0;
    return size < 0 ? std::string{} : std::string{target.data(), static_cast<std::size_t>(size)};
}

std::vector<directory_entry> tree::list(std::string const& path, int& error) const {
    std::vector<directory_entry> all;
    descriptor const d = open_at(path, O_RDONLY | O_DIRECTORY, error);
    if (error != 0) return all;
    // closedir() closes its descriptor.
    std::unique_ptr<DIR, int (*)(DIR*)> const stream{::fdopendir(::dup(d.get())), &::closedir};
    if (stream == nullptr) {
        error = errno;
        return all;
    }
    for (;;) {
        errno = 0;
        dirent const* const next = ::readdir(stream.get());
        if (next == nullptr) break;
        std::string name = next->d_name;
        if (name == "." || name == "..") continue;
        directory_entry e{std::move(name), {}};
        // What has gone meanwhile is not there.
        if (::fstatat(d.get(), e.name.c_str(), &e.status, AT_SYMLINK_NOFOLLOW) == 0)
            all.push_back(std::move(e));
    }
    error = errno;
    std::ranges::sort(all, {}, &directory_entry::name);
    return all;
}

int tree::make_directory(std::string const& path) const {
    int error = 0;
    auto const [parent, name] = parent_of(path, error);
    if (error != 0) return error;
    if (::mkdirat(parent.get(), name.c_str(), 0700) == 0) return 0;
    if (errno != EEXIST) return errno;
    struct stat s {};
    if (::fstatat(parent.get(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    return S_ISDIR(s.st_mode) ? 0 : ENOTDIR;
}

int tree::set_mode_and_time(std::string const& path, unsigned mode, timespec const& mtime) const {
    int error = 0;
    descriptor const d = open_at(path, O_RDONLY | O_DIRECTORY, error);
    if (error != 0) return error;
    if (::fchmod(d.get(), mode) != 0) return errno;
    return error_of(::futimens(d.get(), only_mtime(mtime).data()));
}

int tree::make_link(
    std::string const& path, std::string const& target, timespec const& mtime, bool replaces
) const {
    int error = 0;
    auto const [parent, name] = parent_of(path, error);
    if (error != 0) return error;
    if (::symlinkat(target.c_str(), parent.get(), name.c_str()) != 0) {
        if (errno != EEXIST || !replaces) return errno;
        struct stat s {};
        if (::fstatat(parent.get(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) return errno;
        if (!S_ISLNK(s.st_mode)) return EEXIST;
        std::string const temporary = '.' + name.substr(0, 200) + ".rdma-copy." + random_text();
        if (::symlinkat(target.c_str(), parent.get(), temporary.c_str()) != 0) return errno;
        if (::renameat(parent.get(), temporary.c_str(), parent.get(), name.c_str()) != 0) {
            error = errno;
            ::unlinkat(parent.get(), temporary.c_str(), 0);
            return error;
        }
    }
    return error_of(
        ::utimensat(parent.get(), name.c_str(), only_mtime(mtime).data(), AT_SYMLINK_NOFOLLOW)
    );
}

// --- files ---------------------------------------------------------------------------------------

incoming_file incoming_file::create(
    tree const& in, std::string const& path, std::uint64_t size, bool replaces, int& error
) {
    incoming_file made;
    std::tie(made.directory_, made.name_) = in.parent_of(path, error);
    if (error != 0) return {};
    struct stat there {};
    if (!replaces &&
        ::fstatat(made.directory_.get(), made.name_.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) {
        error = EEXIST;
        return {};
    }
    // A name has at most 255 bytes.
    made.temporary_ = '.' + made.name_.substr(0, 200) + ".rdma-copy." + random_text();
    constexpr int flags = O_RDWR | O_CREAT | O_EXCL | plain;
    made.file_ = descriptor{::openat(made.directory_.get(), made.temporary_.c_str(), flags, 0600)};
    if (!made.file_.is_open()) {
        error = errno;
        made.temporary_.clear();
        return made;
    }
    // A full disk is heard of before the data is on its way.
    if (size > 0 && ::fallocate(made.file_.get(), 0, 0, static_cast<off_t>(size)) != 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS)
        error = errno;
    return made;
}

// What this one was goes with the other.
incoming_file& incoming_file::operator=(incoming_file&& other) noexcept {
    std::swap(directory_, other.directory_);
    std::swap(file_, other.file_);
    std::swap(name_, other.name_);
    std::swap(temporary_, other.temporary_);
    return *this;
}

incoming_file::~incoming_file() {
    if (file_.is_open() && !temporary_.empty()) ::unlinkat(directory_.get(), temporary_.c_str(), 0);
}

int incoming_file::write(std::uint64_t offset, void const* bytes, std::size_t size) const {
    auto const* at = static_cast<char const*>(bytes);
    while (size > 0) {
        ssize_t const n = ::pwrite(file_.get(), at, size, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        at += n;
        offset += static_cast<std::uint64_t>(n);
        size -= static_cast<std::size_t>(n);
    }
    return 0;
}

int incoming_file::finish(std::uint64_t size, unsigned mode, timespec const& mtime, bool replaces) {
    if (::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) return errno;
    if (::fchmod(file_.get(), mode) != 0) return errno;
    if (::futimens(file_.get(), only_mtime(mtime).data()) != 0) return errno;
    // A failure is final: the kernel may have thrown the pages away. Source: fsync(2), NOTES.
    if (::fsync(file_.get()) != 0) return errno;
    int const dir = directory_.get();
    unsigned const flags = replaces ? 0 : RENAME_NOREPLACE;
    int result = ::renameat2(dir, temporary_.c_str(), dir, name_.c_str(), flags);
    if (result != 0 && errno == EINVAL && !replaces) {
        // File systems without RENAME_NOREPLACE.
        result = ::linkat(dir, temporary_.c_str(), dir, name_.c_str(), 0);
        if (result == 0) ::unlinkat(dir, temporary_.c_str(), 0);
    }
    if (result != 0) return errno;
    temporary_.clear();
    return error_of(::fsync(dir));
}

}  // namespace copy
