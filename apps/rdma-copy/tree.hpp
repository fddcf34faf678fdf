// tree.hpp — a directory whose contents are reached by relative paths that cannot leave it: no `..`, and
// no symbolic link is followed.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace copy {

/// A file descriptor that is closed at the end.
class descriptor {
public:
    descriptor() noexcept = default;
    explicit descriptor(int fd) noexcept : fd_{fd} {}
    descriptor(descriptor&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
    descriptor& operator=(descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~descriptor();

    bool is_open() const noexcept { return fd_ >= 0; }
    int get() const noexcept { return fd_; }

private:
    int fd_ = -1;
};

/// What is in a directory; `.` and `..` are not.
struct directory_entry {
    std::string name;
    struct stat status {};
};

/// A directory. Functions that can fail return an errno, or set one; they block, and any thread may call
/// them.
class tree {
public:
    tree() noexcept = default;
    explicit tree(descriptor root) noexcept : root_{std::move(root)} {}
    /// Opens a directory by a path of this process's, whose links are followed.
    static tree open(std::string const& path, int& error);

    /// Opens what is at a path inside; an empty one is the directory itself.
    descriptor open_at(std::string const& path, int flags, int& error) const;
    /// The directory that a path is in, and the path's last component.
    std::pair<descriptor, std::string> parent_of(std::string const& path, int& error) const;
    /// Of a link itself, if it is one.
    struct stat status_of(std::string const& path, int& error) const;
    std::string target_of_link(std::string const& path, int& error) const;
    /// All of a directory, sorted by name.
    std::vector<directory_entry> list(std::string const& path, int& error) const;

    /// Makes a directory that its owner may write; succeeds if there is one.
    int make_directory(std::string const& path) const;
    int set_mode_and_time(std::string const& path, unsigned mode, timespec const& mtime) const;
    /// Makes a link. Only another link is replaced, and only if `replaces`.
    int make_link(
        std::string const& path, std::string const& target, timespec const& mtime, bool replaces
    ) const;

private:
    descriptor root_;
};

/// A file on its way: under a temporary name until all of it is on the disk, and unlinked if that never
/// happens.
class incoming_file {
public:
    incoming_file() noexcept = default;
    /// Reserves room for it, where the file system can. EEXIST if there is something of that name, unless
    /// it `replaces` that; finish() finds out again.
    static incoming_file create(
        tree const& in, std::string const& path, std::uint64_t size, bool replaces, int& error
    );
    incoming_file(incoming_file&&) noexcept = default;
    incoming_file& operator=(incoming_file&& other) noexcept;
    ~incoming_file();

    int write(std::uint64_t offset, void const* bytes, std::size_t size) const;
    /// Writes it to the disk, gives it its mode, time and name, and writes its directory to the disk.
    int finish(std::uint64_t size, unsigned mode, timespec const& mtime, bool replaces);

private:
    descriptor directory_;
    descriptor file_;
    std::string name_;
    std::string temporary_;
};

}  // namespace copy
