// tree.hpp — a directory whose contents are reached by relative paths that cannot leave it: no `..`, and
// no symbolic link is followed.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/extended_attributes.hpp"

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

/// Which file, whatever its name is.
struct file_id {
    dev_t device = 0;
    ino_t inode = 0;

    static file_id of(struct stat const& s) noexcept { return {s.st_dev, s.st_ino}; }
    friend bool operator==(file_id const&, file_id const&) = default;
};

/// A path in a tree.
struct target_path {
    target_path(std::string path, std::optional<file_id> in = {})
        : text{std::move(path)},
          directory{in} {}
    target_path(char const* path) : text{path} {}

    std::string text;
    /// The directory that the path is in must be this one: another user may have put another one in its
    /// place. error_target_changed if it is not.
    std::optional<file_id> directory;
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
    /// What of these it gets.
    extended keeps;
    std::shared_ptr<extended_attributes const> values;  // none, if there is none
};

/// A directory. Functions that can fail return an errno, or one of result.hpp, or set one; they block, and any
/// thread may call them.
///
/// Another user may write to directories of a tree and exchange names there. What is checked is therefore what
/// is opened, and what gets rights, an owner or another name is what was checked. Names are only removed: no
/// system call removes the name of an open file, and whoever may put another file there may remove names
/// herself.
class tree {
public:
    tree() noexcept = default;
    explicit tree(descriptor root) noexcept : root_{std::move(root)} {}
    /// Opens a directory by a path of this process's, whose links are followed.
    ///
    /// @param flags  O_NOFOLLOW: the last component must be no link.
    static tree open(std::string const& path, int& error, int flags = 0);
    /// The same for a directory of which only what is in it is read.
    static tree open_to_read(std::string const& path, int& error);

    /// Opens what is at a path inside; an empty one is the directory itself.
    descriptor open_at(std::string const& path, int flags, int& error) const;
    /// The directory that a path is in, and the path's last component.
    std::pair<descriptor, std::string> parent_of(target_path const& path, int& error) const;
    /// Of a link itself, if it is one.
    struct stat status_of(std::string const& path, int& error) const;
    /// The target of a symbolic link, and its status. error_source_changed if it is none.
    std::string target_of_link(std::string const& path, struct stat& status, int& error) const;
    /// identity_of() this directory, and all that it is in, up to the root of the file system.
    std::vector<hash> identities_up_from(std::string const& path) const;

    /// Makes a directory. If there is one of this process's, its owner may write to it.
    ///
    /// @param made  Which one it is.
    /// @param mode  Without the umask's bits. By default only its owner may read and write it.
    int make_directory(target_path const& path, file_id& made, unsigned mode = 0700) const;
    /// Of this directory.
    ///
    /// @param now   What it has then.
    /// @param lost  What it could not get.
    int set_attributes(
        std::string const& path,
        file_id const& which,
        attributes const& a,
        struct stat& now,
        extended& lost
    ) const;
    /// Makes a symbolic link. What exists is replaced if `replaces`, but no directory. If `continues`, a link
    /// to this target that exists gets the attributes.
    ///
    /// @param now  What it has then.
    int make_symbolic_link(
        target_path const& path,
        std::string const& target,
        attributes const& a,
        bool replaces,
        bool continues,
        struct stat& now
    ) const;
    /// Makes another name of a file, if it is still that one; else error_target_changed. What exists is replaced
    /// if `replaces`, but no directory. If `continues`, a file that exists with its size and time is left as it
    /// is.
    int make_hard_link(
        target_path const& path,
        std::string const& existing,
        file_id const& id,
        bool replaces,
        bool continues
    ) const;

private:
    descriptor root_;
};

/// The same as the members of tree, in a directory that is open, and not written to the disk.
///
/// @param opened  The directory that was made.
int make_directory_in(
    descriptor const& parent,
    std::string const& name,
    file_id& made,
    unsigned mode,
    descriptor& opened
);
int set_attributes_of(
    descriptor const& directory, attributes const& a, struct stat& now, extended& lost
);
int make_symbolic_link_in(
    descriptor const& parent,
    std::string const& name,
    std::string const& target,
    attributes const& a,
    bool replaces,
    bool continues,
    struct stat& now
);
/// Gives a file a name in place of its temporary one, in the same directory. error_target_changed if something else
/// was under the temporary name, or if the file is not open and another one has got the name since. Of two that
/// are given one name, the later one stays.
///
/// @param file  If it is not open, the file system must have RENAME_NOREPLACE.
int give_name(
    descriptor const& directory,
    descriptor const& file,
    std::string const& temporary,
    std::string const& name,
    file_id const& id,
    bool replaces
);
/// Gives an open file the extended attributes that it gets.
///
/// @return  What could not be set.
extended give_extended(descriptor const& file, attributes const& a);
/// Gives an open file its attributes.
///
/// @param now   What it has then.
/// @param lost  What it could not get.
int give_attributes(descriptor const& file, attributes const& a, struct stat& now, extended& lost);

/// The name of a temporary file for one that will get `name`: in the same directory, and not longer than a
/// name may be.
std::string temporary_name(std::string const& name, std::string const& suffix);
/// 16 random digits.
std::string random_text();
/// Of a directory, for processes of one running kernel, also in containers: the same for the same directory. Zeros
/// if the kernel does not say which one it is. The file systems of networks and containers can show one
/// directory as several.
hash identity_of(file_id const& directory);
/// For futimens(2) and utimensat(2).
std::array<timespec, 2> only_mtime(timespec const& mtime) noexcept;
/// Opens a name of a directory, itself and no link.
descriptor open_here(descriptor const& directory, std::string const& name, int flags, int& error);
/// The target of a symbolic link that is open.
std::string target_of(descriptor const& link, int& error);
/// True if a name of a directory is that of this file, and no link to it.
bool is_at(descriptor const& directory, std::string const& name, file_id const& id);
/// Gives a file that is open another name, whatever its own names are now. EOPNOTSUPP if that takes /proc, which
/// is not there.
int link_open_file(descriptor const& file, descriptor const& directory, char const* name);

}  // namespace copy
