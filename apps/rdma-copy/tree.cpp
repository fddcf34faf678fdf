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
#include <cstring>
#include <memory>
#include <span>

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

std::string in_digits(std::span<std::byte const> bytes) {
    std::string text;
    for (std::byte const b : bytes) {
        constexpr char digits[] = "0123456789abcdef";
        auto const number = std::to_integer<unsigned>(b);
        text += {digits[number >> 4], digits[number & 15]};
    }
    return text;
}

// What is said to be finished is on the disk, also the name of it.
int sync_directory(descriptor const& d) { return error_of(::fsync(d.get())); }

int open_inside(int root, std::string const& path, int flags) {
    open_how how{};
    how.flags = static_cast<std::uint64_t>(flags | plain);
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    long const fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    return errno == ENOSYS || errno == EPERM ? walk(root, path, flags) : -1;
}

}  // namespace

std::string random_text() {
    std::array<std::byte, 8> bytes{};
    if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
    return in_digits(bytes);
}

std::string temporary_name(std::string const& name, std::string const& suffix) {
    constexpr std::size_t name_bytes_max = 255;
    std::size_t const rest = name_bytes_max - 1 - std::strlen(temporary_mark) - suffix.size();
    if (name.size() <= rest) return '.' + name + temporary_mark + suffix;
    // Names with the same beginning have names of their own.
    hash const all = hash_of(std::as_bytes(std::span{name}));
    std::string const rest_of_name = '-' + in_digits(std::span{all}.first(8));
    return '.' + name.substr(0, rest - rest_of_name.size()) + rest_of_name + temporary_mark +
           suffix;
}

std::array<timespec, 2> only_mtime(timespec const& mtime) noexcept {
    return {timespec{0, UTIME_OMIT}, mtime};
}

descriptor open_here(descriptor const& directory, std::string const& name, int flags, int& error) {
    descriptor d{::openat(directory.get(), name.c_str(), flags | plain, 0600)};
    error = d.is_open() ? 0 : errno;
    return d;
}

descriptor::~descriptor() {
    if (fd_ >= 0) ::close(fd_);
}

tree tree::open(std::string const& path, int& error) {
    descriptor root{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    error = root.is_open() ? 0 : errno;
    return tree{std::move(root)};
}

tree tree::open_to_read(std::string const& path, int& error) {
    tree t = open(path, error);
    // To use what is in a directory, it need not be readable.
    if (error != EACCES) return t;
    descriptor root{::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
    error = root.is_open() ? 0 : errno;
    return tree{std::move(root)};
}

int tree::sync_parent(std::string const& path) const {
    int error = 0;
    auto const [parent, name] = parent_of(path, error);
    return error != 0 ? error : sync_directory(parent);
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

std::pair<descriptor, std::string> tree::parent_of(std::string const& path, int& error, int flags)
    const {
    if (!is_inside(path)) {
        error = EINVAL;
        return {};
    }
    std::size_t const slash = path.rfind('/');
    bool const is_here = slash == std::string::npos;
    return {
        open_at(is_here ? "" : path.substr(0, slash), flags | O_DIRECTORY, error),
        is_here ? path : path.substr(slash + 1)};
}

struct stat tree::status_of(std::string const& path, int& error) const {
    struct stat s {};
    descriptor const d = open_at(path, O_PATH, error);
    if (error == 0) error = error_of(::fstat(d.get(), &s));
    return s;
}

std::string tree::target_of_link(std::string const& path, int& error) const {
    auto const [parent, name] = parent_of(path, error, O_PATH);
    if (error != 0) return {};
    std::array<char, PATH_MAX> target{};
    ssize_t const size = ::readlinkat(parent.get(), name.c_str(), target.data(), target.size());
    error = size < 0 ? errno : 0;
    return size < 0 ? std::string{} : std::string{target.data(), static_cast<std::size_t>(size)};
}

bool tree::is_link_to(std::string const& path, std::string const& target) const {
    int error = 0;
    return target_of_link(path, error) == target && error == 0;
}

bool tree::has_same_data(std::string const& path, std::string const& other) const {
    int error = 0;
    int error_of_other = 0;
    struct stat const a = status_of(path, error);
    struct stat const b = status_of(other, error_of_other);
    return error == 0 && error_of_other == 0 && S_ISREG(a.st_mode) && S_ISREG(b.st_mode) &&
           a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
           a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

std::vector<directory_entry> tree::list(std::string const& path, int& error) const {
    std::vector<directory_entry> all;
    descriptor const d = open_at(path, O_RDONLY | O_DIRECTORY, error);
    if (error != 0) return all;
    descriptor own{::dup(d.get())};
    std::unique_ptr<DIR, int (*)(DIR*)> const stream{::fdopendir(own.get()), &::closedir};
    if (stream == nullptr) {
        error = errno;
        return all;
    }
    own.release();  // closedir() closes it
    for (;;) {
        errno = 0;
        dirent const* const next = ::readdir(stream.get());
        if (next == nullptr) break;
        std::string name = next->d_name;
        if (name == "." || name == "..") continue;
        all.push_back({std::move(name), {}});
    }
    error = errno;
    std::ranges::sort(all, {}, &directory_entry::name);
    return all;
}

void tree::look(std::string const& path, std::span<directory_entry> some) const {
    int error = 0;
    descriptor const d = open_at(path, O_PATH | O_DIRECTORY, error);
    for (directory_entry& e : some) {
        e.error = error;
        if (error == 0 && ::fstatat(d.get(), e.name.c_str(), &e.status, AT_SYMLINK_NOFOLLOW) != 0)
            e.error = errno;
    }
}

int tree::make_directory(std::string const& path, unsigned mode) const {
    int error = 0;
    auto const [parent, name] = parent_of(path, error);
    if (error != 0) return error;
    if (::mkdirat(parent.get(), name.c_str(), mode) == 0) return sync_directory(parent);
    if (errno != EEXIST) return errno;
    struct stat s {};
    if (::fstatat(parent.get(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    if (!S_ISDIR(s.st_mode)) return ENOTDIR;
    // An earlier copy may have ended before it did that.
    error = sync_directory(parent);
    // It may have finished it.
    if (error != 0 || s.st_uid != ::geteuid() || (s.st_mode & S_IRWXU) == S_IRWXU) return error;
    descriptor const d = open_here(parent, name, O_RDONLY | O_DIRECTORY, error);
    if (error == 0 && ::fchmod(d.get(), (s.st_mode & 07777) | S_IRWXU) != 0) error = errno;
    return error;
}

int tree::set_attributes(std::string const& path, attributes const& a) const {
    int error = 0;
    descriptor const d = open_at(path, O_RDONLY | O_DIRECTORY, error);
    if (error != 0) return error;
    // A directory that was there keeps, for example, its group for new files.
    struct stat s {};
    if (::fstat(d.get(), &s) != 0) return errno;
    unsigned const special = s.st_mode & (S_ISUID | S_ISGID | S_ISVTX);
    if (a.owned_by && ::fchown(d.get(), a.owned_by->user, a.owned_by->group) != 0) return errno;
    if (::fchmod(d.get(), a.mode | special) != 0) return errno;
    if (::futimens(d.get(), only_mtime(a.mtime).data()) != 0) return errno;
    return sync_directory(d);
}

namespace {

// Gives a name that is made by `make` to what it makes, in place of another if `replaces`.
template <class Make>
int make_in_place(descriptor const& directory, std::string const& name, bool replaces, Make make) {
    if (make(name.c_str()) == 0) return 0;
    if (errno != EEXIST || !replaces) return errno;
    struct stat s {};
    if (::fstatat(directory.get(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    if (S_ISDIR(s.st_mode)) return EISDIR;
    std::string const temporary = temporary_name(name, random_text());
    if (make(temporary.c_str()) != 0) return errno;
    int const error =
        error_of(::renameat(directory.get(), temporary.c_str(), directory.get(), name.c_str()));
    // rename(2) leaves both names if they are of the same file.
    ::unlinkat(directory.get(), temporary.c_str(), 0);
    return error;
}

}  // namespace

int tree::make_symbolic_link(
    std::string const& path, std::string const& target, attributes const& a, bool replaces
) const {
    int error = 0;
    auto const [parent, name] = parent_of(path, error);
    if (error != 0) return error;
    int const in = parent.get();
    error = make_in_place(parent, name, replaces, [&](char const* as) {
        return ::symlinkat(target.c_str(), in, as);
    });
    return error != 0 ? error : set_attributes_of_link(path, a);
}

int tree::set_attributes_of_link(std::string const& path, attributes const& a) const {
    int error = 0;
    auto const [parent, name] = parent_of(path, error);
    if (error != 0) return error;
    int const in = parent.get();
    if (a.owned_by) {
        // Another program may have put something else there.
        descriptor const link = open_here(parent, name, O_PATH, error);
        if (error != 0) return error;
        struct stat s {};
        if (::fstat(link.get(), &s) != 0) return errno;
        if (!S_ISLNK(s.st_mode)) return EEXIST;
        if (::fchownat(link.get(), "", a.owned_by->user, a.owned_by->group, AT_EMPTY_PATH) != 0)
            return errno;
    }
    if (::utimensat(in, name.c_str(), only_mtime(a.mtime).data(), AT_SYMLINK_NOFOLLOW) != 0)
        return errno;
    return sync_directory(parent);
}

int tree::make_hard_link(
    std::string const& path, std::string const& existing, file_id const& id, bool replaces
) const {
    int error = 0;
    auto const to = parent_of(path, error);
    if (error != 0) return error;
    auto const from = parent_of(existing, error);
    if (error != 0) return error;
    struct stat s {};
    int const in = from.first.get();
    if (::fstatat(in, from.second.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    if (s.st_dev != id.device || s.st_ino != id.inode) return ESTALE;
    if (!S_ISREG(s.st_mode)) return EPERM;
    error = make_in_place(to.first, to.second, replaces, [&](char const* as) {
        return ::linkat(in, from.second.c_str(), to.first.get(), as, 0);
    });
    return error != 0 ? error : sync_directory(to.first);
}

}  // namespace copy
