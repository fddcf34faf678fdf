// directory_stream.hpp — a directory that is read a few entries at a time, so that its size costs no memory.
#pragma once

#include <sys/stat.h>

#include <string>
#include <vector>

#include "rdma-copy/tree.hpp"

namespace copy {

/// What is in a directory; `.` and `..` are not.
struct directory_entry {
    std::string name;
    struct stat status {};
    /// Why there is no status. ENOENT: it has gone meanwhile.
    int error = 0;
    /// Where the directory goes on behind it.
    off_t behind = 0;
};

/// In the order of the file system. Functions block; one thread at a time calls them.
class directory_stream {
public:
    static constexpr std::size_t entries_max = 64;
    /// Of one walk through a tree: a directory that is deeper below others closes while what is in it is read,
    /// so that the depth costs no descriptors.
    static constexpr std::size_t open_max = 16;

    /// @param in  Outlives this.
    static directory_stream open(tree const& in, std::string path, int& error);
    /// Opens a directory in this one, which is open, whatever the depth is. error_source_changed if it is none any
    /// more.
    directory_stream open_inside(std::string const& name, int& error) const;

    /// Opens one that is open once more, to read it from its beginning.
    ///
    /// @param path  Of it in the tree.
    static directory_stream open_again(
        tree const& in, std::string path, descriptor const& opened, int& error
    );

    /// In the tree.
    std::string const& path() const noexcept { return path_; }
    /// Of the directory that is read.
    struct stat const& status() const noexcept {
        return status_;
    }
    extended const& has() const noexcept { return has_; }
    /// As long as it is open.
    descriptor const& directory() const noexcept { return directory_; }

    /// The next entries, at most entries_max; none at the end. error_source_changed if it was closed, and another
    /// directory has its name now.
    std::vector<directory_entry> next(int& error);
    /// The same without their status.
    std::vector<directory_entry> names(int& error);
    /// From the beginning again. Returns an errno.
    int rewind();
    /// Closes it. next() opens it again, and goes on behind this entry.
    void close_behind(directory_entry const& last);
    /// Opens it again through one that is in it, so that the depth costs nothing. If that fails, next() opens it.
    void reopen_from(directory_stream const& inside);

private:
    void begin(int& error);

    tree const* in_ = nullptr;
    std::string path_;
    descriptor directory_;
    struct stat status_ {};
    extended has_;
    off_t position_ = 0;  // where it goes on when it is opened again
};

}  // namespace copy
