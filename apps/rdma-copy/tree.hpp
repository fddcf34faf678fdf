// tree.hpp — a directory whose contents are reached by relative paths that cannot leave it: no `..`, and
// no symbolic link is followed.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <optional>
#include <span>
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
    /// Somebody else closes it.
    void release() noexcept { fd_ = -1; }

private:
    int fd_ = -1;
};

/// Which file, whatever its name is.
struct file_id {
    dev_t device = 0;
    ino_t inode = 0;
};

/// What an entry gets besides its content.
struct attributes {
    unsigned mode = 0;  // permissions only
    timespec mtime{};
    struct owner {
        uid_t user = 0;
        gid_t group = 0;
    };
    std::optional<owner> owned_by;
};

/// What is in a directory; `.` and `..` are not.
struct directory_entry {
    std::string name;
    struct stat status {};
    /// Why there is no status.
    int error = 0;
};

/// A directory. Functions that can fail return an errno, or set one; they block, and any thread may call
/// them.
class tree {
public:
    tree() noexcept = default;
    explicit tree(descriptor root) noexcept : root_{std::move(root)} {}
    /// Opens a directory by a path of this process's, whose links are followed.
    static tree open(std::string const& path, int& error);
    /// The same for a directory of which only what is in it is read.
    static tree open_to_read(std::string const& path, int& error);

    /// Opens what is at a path inside; an empty one is the directory itself.
    descriptor open_at(std::string const& path, int flags, int& error) const;
    /// The directory that a path is in, and the path's last component.
    std::pair<descriptor, std::string> parent_of(
        std::string const& path, int& error, int flags = O_RDONLY
    ) const;
    /// Writes the directory that it is in to the disk.
    int sync_parent(std::string const& path) const;
    /// Of a link itself, if it is one.
    struct stat status_of(std::string const& path, int& error) const;
    std::string target_of_link(std::string const& path, int& error) const;
    bool is_link_to(std::string const& path, std::string const& target) const;
    /// Files with the same size and time.
    bool has_same_data(std::string const& path, std::string const& other) const;
    /// All of a directory, sorted by name, without statuses: to read those of many takes long.
    std::vector<directory_entry> list(std::string const& path, int& error) const;
    /// Reads the statuses of some entries of a directory. ENOENT: it has gone meanwhile.
    void look(std::string const& path, std::span<directory_entry> some) const;

    /// Makes a directory. If there is one of this process's, its owner may write to it.
    ///
    /// @param mode  Without the umask's bits. By default only its owner may read and write it.
    int make_directory(std::string const& path, unsigned mode = 0700) const;
    /// Of a directory.
    int set_attributes(std::string const& path, attributes const& a) const;
    /// Makes a symbolic link. What exists is replaced if `replaces`, but no directory.
    int make_symbolic_link(
        std::string const& path, std::string const& target, attributes const& a, bool replaces
    ) const;
    /// Of a symbolic link.
    int set_attributes_of_link(std::string const& path, attributes const& a) const;
    /// Makes another name of a file, if it is still that one; else ESTALE. What exists is replaced if
    /// `replaces`, but no directory.
    int make_hard_link(
        std::string const& path, std::string const& existing, file_id const& id, bool replaces
    ) const;

private:
    descriptor root_;
};

/// The name of a temporary file for one that will get `name`: in the same directory, and not longer than a
/// name may be.
std::string temporary_name(std::string const& name, std::string const& suffix);
/// 16 random digits.
std::string random_text();
/// For futimens(2) and utimensat(2).
std::array<timespec, 2> only_mtime(timespec const& mtime) noexcept;
/// Opens a name of a directory, itself and no link.
descriptor open_here(descriptor const& directory, std::string const& name, int flags, int& error);

}  // namespace copy
