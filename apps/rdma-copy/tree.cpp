#include "rdma-copy/tree.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/random.h>
#include <linux/limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>
#include <string_view>

#include "rdma-copy/result.hpp"
#include "rdma-copy/system_call.hpp"

namespace copy {

namespace {

constexpr int plain = O_CLOEXEC | O_NOFOLLOW;

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

hash identity_of(file_id const& directory) {
    static std::string const boot = [] {
        std::string text;
        std::getline(std::ifstream{"/proc/sys/kernel/random/boot_id"}, text);
        return text;
    }();
    if (boot.empty()) return {};
    std::string const all =
        boot + ' ' + std::to_string(directory.device) + ' ' + std::to_string(directory.inode);
    return hash_of(std::as_bytes(std::span{all}));
}

std::array<timespec, 2> only_mtime(timespec const& mtime) noexcept {
    return {timespec{0, UTIME_OMIT}, mtime};
}

descriptor open_here(descriptor const& directory, std::string const& name, int flags, int& error) {
    descriptor d{::openat(directory.get(), name.c_str(), flags | plain, 0600)};
    error = d.is_open() ? 0 : errno;
    return d;
}

bool is_at(descriptor const& directory, std::string const& name, file_id const& id) {
    struct stat s {};
    return ::fstatat(directory.get(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 &&
           file_id::of(s) == id;
}

int link_open_file(descriptor const& file, descriptor const& directory, char const* name) {
    int const in = directory.get();
    if (::linkat(file.get(), "", in, name, AT_EMPTY_PATH) == 0) return 0;
    // Without CAP_DAC_READ_SEARCH. Source: linkat(2).
    if (errno != ENOENT) return errno;
    std::string const itself = "/proc/self/fd/" + std::to_string(file.get());
    if (::linkat(AT_FDCWD, itself.c_str(), in, name, AT_SYMLINK_FOLLOW) == 0) return 0;
    if (errno != ENOENT) return errno;
    struct stat s {};
    if (::fstat(file.get(), &s) != 0) return errno;
    return s.st_nlink == 0 ? error_target_changed : EOPNOTSUPP;
}

extended give_extended(descriptor const& file, attributes const& a) {
    return give_extended(file.get(), a.keeps, a.values ? *a.values : extended_attributes{});
}

int give_attributes(descriptor const& file, attributes const& a, struct stat& now, extended& lost) {
    int const fd = file.get();
    // The owner first: a change of it takes rights away.
    if (a.owned_by && ::fchown(fd, a.owned_by->user, a.owned_by->group) != 0) return errno;
    // Before the mode, which may allow its owner no change. The mask of an ACL is the mode of the group.
    lost = give_extended(file, a);
    if (::fchmod(fd, a.mode) != 0) return errno;
    if (::futimens(fd, only_mtime(a.mtime).data()) != 0) return errno;
    return error_of(::fstat(fd, &now));
}

namespace {

// True if the last name of an open file was this one, until another file got it. Source: proc(5), d_path().
bool had_name(descriptor const& file, std::string const& name) {
    if (!file.is_open()) return false;
    std::string const itself = "/proc/self/fd/" + std::to_string(file.get());
    std::array<char, PATH_MAX> path{};
    ssize_t const size = ::readlink(itself.c_str(), path.data(), path.size());
    std::string_view const text{path.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
    return text.ends_with('/' + name + " (deleted)");
}

}  // namespace

int give_name(
    descriptor const& directory,
    descriptor const& file,
    std::string const& temporary,
    std::string const& name,
    file_id const& id,
    bool replaces
) {
    int const dir = directory.get();
    unsigned const flags = replaces ? 0 : RENAME_NOREPLACE;
    int const result = ::renameat2(dir, temporary.c_str(), dir, name.c_str(), flags);
    if (result != 0 && errno == EINVAL && !replaces && file.is_open()) {
        // File systems without RENAME_NOREPLACE.
        int const error = link_open_file(file, directory, name.c_str());
        if (error == 0) ::unlinkat(dir, temporary.c_str(), 0);
        return error;
    }
    if (result != 0) return errno;
    // Another copy may have given it to its own file since.
    if (is_at(directory, name, id) || had_name(file, name)) return 0;
    // Something else was under the temporary name. It may be what another copy has finished: it is not removed.
    if (file.is_open())
        static_cast<void>(::renameat2(dir, name.c_str(), dir, temporary.c_str(), RENAME_NOREPLACE));
    return error_target_changed;
}

descriptor::~descriptor() {
    if (fd_ >= 0) ::close(fd_);
}

tree tree::open(std::string const& path, int& error, int flags) {
    descriptor root{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags)};
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

std::pair<descriptor, std::string> tree::parent_of(target_path const& path, int& error) const {
    std::string const& text = path.text;
    if (!is_inside(text)) {
        error = EINVAL;
        return {};
    }
    std::size_t const slash = text.rfind('/');
    bool const is_here = slash == std::string::npos;
    descriptor d = open_at(is_here ? "" : text.substr(0, slash), O_RDONLY | O_DIRECTORY, error);
    struct stat s {};
    if (error == 0 && path.directory) {
        error = error_of(::fstat(d.get(), &s));
        if (error == 0 && file_id::of(s) != *path.directory) error = error_target_changed;
    }
    return {std::move(d), is_here ? text : text.substr(slash + 1)};
}

struct stat tree::status_of(std::string const& path, int& error) const {
    struct stat s {};
    descriptor const d = open_at(path, O_PATH, error);
    if (error == 0) error = error_of(::fstat(d.get(), &s));
    return s;
}

std::string target_of(descriptor const& link, int& error) {
    std::array<char, PATH_MAX> target{};
    ssize_t const size = ::readlinkat(link.get(), "", target.data(), target.size());
    error = size < 0 ? errno : 0;
    return size < 0 ? std::string{} : std::string{target.data(), static_cast<std::size_t>(size)};
}

std::string tree::target_of_link(std::string const& path, struct stat& status, int& error) const {
    descriptor const link = open_at(path, O_PATH, error);
    if (error == 0) error = error_of(::fstat(link.get(), &status));
    if (error == 0 && !S_ISLNK(status.st_mode)) error = error_source_changed;
    return error == 0 ? target_of(link, error) : std::string{};
}

std::vector<hash> tree::identities_up_from(std::string const& path) const {
    std::vector<hash> all;
    int error = 0;
    descriptor at = open_at(path, O_PATH | O_DIRECTORY, error);
    std::optional<file_id> below;
    for (struct stat s{}; at.is_open() && ::fstat(at.get(), &s) == 0;) {
        // The root is in itself.
        if (below == file_id::of(s)) break;
        below = file_id::of(s);
        all.push_back(identity_of(*below));
        at = descriptor{::openat(at.get(), "..", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    }
    return all;
}

int make_directory_in(
    descriptor const& parent,
    std::string const& name,
    file_id& made,
    unsigned mode,
    descriptor& opened
) {
    bool const is_new = ::mkdirat(parent.get(), name.c_str(), mode) == 0;
    if (!is_new && errno != EEXIST) return errno;
    int error = 0;
    opened = open_here(parent, name, O_RDONLY | O_DIRECTORY, error);
    struct stat s {};
    if (error == 0) error = error_of(::fstat(opened.get(), &s));
    made = file_id::of(s);
    // An earlier copy may have finished it.
    bool const is_closed = s.st_uid == ::geteuid() && (s.st_mode & S_IRWXU) != S_IRWXU;
    if (error == 0 && !is_new && is_closed)
        error = error_of(::fchmod(opened.get(), (s.st_mode & 07777) | S_IRWXU));
    return error;
}

int tree::make_directory(target_path const& path, file_id& made, unsigned mode) const {
    int error = 0;
    auto const [parent, name] = parent_of(path, error);
    if (error != 0) return error;
    descriptor opened;
    error = make_directory_in(parent, name, made, mode, opened);
    // Of one that is there, too: an earlier copy may have ended before it did that.
    return error != 0 ? error : sync_directory(parent);
}

int set_attributes_of(
    descriptor const& directory, attributes const& a, struct stat& now, extended& lost
) {
    int const fd = directory.get();
    struct stat s {};
    if (::fstat(fd, &s) != 0) return errno;
    // A directory that was there keeps, for example, its group for new files.
    unsigned const special = a.owned_by ? 0 : s.st_mode & (S_ISUID | S_ISGID | S_ISVTX);
    if (a.owned_by && ::fchown(fd, a.owned_by->user, a.owned_by->group) != 0) return errno;
    lost = give_extended(directory, a);
    if (::fchmod(fd, a.mode | special) != 0) return errno;
    if (::futimens(fd, only_mtime(a.mtime).data()) != 0) return errno;
    return error_of(::fstat(fd, &now));
}

int tree::set_attributes(
    std::string const& path,
    file_id const& which,
    attributes const& a,
    struct stat& now,
    extended& lost
) const {
    int error = 0;
    descriptor const d = open_at(path, O_RDONLY | O_DIRECTORY, error);
    if (error != 0) return error;
    struct stat s {};
    if (::fstat(d.get(), &s) != 0) return errno;
    if (file_id::of(s) != which) return error_target_changed;
    error = set_attributes_of(d, a, now, lost);
    return error != 0 ? error : sync_directory(d);
}

namespace {

// Gives a name that is made by `make` to what it makes, in place of another if `replaces`. `is_made` finds out
// whether a name is of that.
template <class Make, class IsMade>
int make_in_place(
    descriptor const& directory, std::string const& name, bool replaces, Make make, IsMade is_made
) {
    int error = make(name.c_str());
    if (error != EEXIST || !replaces) return error;
    struct stat s {};
    if (::fstatat(directory.get(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    if (S_ISDIR(s.st_mode)) return EISDIR;
    std::string const temporary = temporary_name(name, random_text());
    error = make(temporary.c_str());
    if (error != 0) return error;
    error = error_of(::renameat(directory.get(), temporary.c_str(), directory.get(), name.c_str()));
    // rename(2) leaves both names if they are of the same file.
    ::unlinkat(directory.get(), temporary.c_str(), 0);
    // What another copy has put there since stays.
    return error != 0 || is_made(name) ? error : error_target_changed;
}

int set_attributes_of_link(descriptor const& link, attributes const& a) {
    int const fd = link.get();
    if (a.owned_by && ::fchownat(fd, "", a.owned_by->user, a.owned_by->group, AT_EMPTY_PATH) != 0)
        return errno;
    auto const times = only_mtime(a.mtime);
    if (::utimensat(fd, "", times.data(), AT_EMPTY_PATH) == 0) return 0;
    if (errno != EINVAL) return errno;
    // Before Linux 5.8.
    std::string const itself = "/proc/self/fd/" + std::to_string(fd);
    return error_of(::utimensat(AT_FDCWD, itself.c_str(), times.data(), 0));
}

}  // namespace

int make_symbolic_link_in(
    descriptor const& parent,
    std::string const& name,
    std::string const& target,
    attributes const& a,
    bool replaces,
    bool continues,
    struct stat& now
) {
    // One symbolic link to a target is as good as another.
    auto const open_link = [&](std::string const& at) {
        int failed = 0;
        descriptor link = open_here(parent, at, O_PATH, failed);
        bool const is_it = failed == 0 && target_of(link, failed) == target && failed == 0;
        return is_it ? std::move(link) : descriptor{};
    };
    descriptor link;
    if (continues) link = open_link(name);
    if (!link.is_open()) {
        int const error = make_in_place(
            parent,
            name,
            replaces,
            [&](char const* as) { return error_of(::symlinkat(target.c_str(), parent.get(), as)); },
            [&](std::string const& at) { return open_link(at).is_open(); }
        );
        if (error != 0) return error;
        link = open_link(name);
    }
    if (!link.is_open()) return error_target_changed;
    int const error = set_attributes_of_link(link, a);
    return error != 0 ? error : error_of(::fstat(link.get(), &now));
}

int tree::make_symbolic_link(
    target_path const& path,
    std::string const& target,
    attributes const& a,
    bool replaces,
    bool continues,
    struct stat& now
) const {
    int error = 0;
    auto const [parent, name] = parent_of(path, error);
    if (error != 0) return error;
    error = make_symbolic_link_in(parent, name, target, a, replaces, continues, now);
    return error != 0 ? error : sync_directory(parent);
}

int tree::make_hard_link(
    target_path const& path,
    std::string const& existing,
    file_id const& id,
    bool replaces,
    bool continues
) const {
    int error = 0;
    auto const [parent, name] = parent_of(path, error);
    if (error != 0) return error;
    descriptor const file = open_at(existing, O_PATH, error);
    if (error != 0) return error;
    struct stat s {};
    if (::fstat(file.get(), &s) != 0) return errno;
    if (file_id::of(s) != id) return error_target_changed;
    if (!S_ISREG(s.st_mode)) return EPERM;
    struct stat there {};
    bool const is_there =
        continues && ::fstatat(parent.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_there && S_ISREG(there.st_mode) && there.st_size == s.st_size &&
        there.st_mtim.tv_sec == s.st_mtim.tv_sec && there.st_mtim.tv_nsec == s.st_mtim.tv_nsec)
        return sync_directory(parent);
    error = make_in_place(
        parent,
        name,
        replaces,
        [&, &in = parent](char const* as) { return link_open_file(file, in, as); },
        [&, &in = parent](std::string const& at) { return is_at(in, at, id); }
    );
    return error != 0 ? error : sync_directory(parent);
}

}  // namespace copy
