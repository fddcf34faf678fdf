#include "rdma-copy/directory_stream.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "rdma-copy/result.hpp"

namespace copy {

directory_stream directory_stream::open(tree const& in, std::string path, int& error) {
    directory_stream s;
    s.in_ = &in;
    s.directory_ = in.open_at(path, O_RDONLY | O_DIRECTORY, error);
    s.path_ = std::move(path);
    s.begin(error);
    return s;
}

directory_stream directory_stream::open_inside(std::string const& name, int& error) const {
    directory_stream s;
    s.in_ = in_;
    s.path_ = path_.empty() ? name : path_ + '/' + name;
    s.directory_ = open_here(directory_, name, O_RDONLY | O_DIRECTORY, error);
    if (error == ENOTDIR || error == ELOOP) error = error_source_changed;
    s.begin(error);
    return s;
}

directory_stream directory_stream::open_again(
    tree const& in, std::string path, descriptor const& opened, int& error
) {
    directory_stream s;
    s.in_ = &in;
    s.path_ = std::move(path);
    s.directory_ = open_here(opened, ".", O_RDONLY | O_DIRECTORY, error);
    s.begin(error);
    return s;
}

int directory_stream::rewind() { return ::lseek(directory_.get(), 0, SEEK_SET) < 0 ? errno : 0; }

void directory_stream::begin(int& error) {
    if (error == 0 && ::fstat(directory_.get(), &status_) != 0) error = errno;
    if (error == 0) has_ = extended_of(directory_.get());
}

void directory_stream::reopen_from(directory_stream const& inside) {
    if (directory_.is_open() || !inside.directory_.is_open()) return;
    int error = 0;
    descriptor above = open_here(inside.directory_, "..", O_RDONLY | O_DIRECTORY, error);
    struct stat s {};
    // It may have been put into another one.
    bool const is_this =
        error == 0 && ::fstat(above.get(), &s) == 0 && file_id::of(s) == file_id::of(status_);
    if (is_this && ::lseek(above.get(), position_, SEEK_SET) >= 0) directory_ = std::move(above);
}

void directory_stream::close_behind(directory_entry const& last) {
    position_ = last.behind;
    directory_ = descriptor{};
}

std::vector<directory_entry> directory_stream::next(int& error) {
    std::vector<directory_entry> some = names(error);
    for (directory_entry& e : some)
        if (::fstatat(directory_.get(), e.name.c_str(), &e.status, AT_SYMLINK_NOFOLLOW) != 0)
            e.error = errno;
    return some;
}

std::vector<directory_entry> directory_stream::names(int& error) {
    error = 0;
    if (!directory_.is_open()) {
        directory_ = in_->open_at(path_, O_RDONLY | O_DIRECTORY, error);
        struct stat s {};
        if (error == 0 && ::fstat(directory_.get(), &s) != 0) error = errno;
        if (error == 0 && file_id::of(s) != file_id::of(status_)) error = error_source_changed;
        // File systems keep positions for NFS servers, which open a directory anew for each request.
        if (error == 0 && ::lseek(directory_.get(), position_, SEEK_SET) < 0) error = errno;
        if (error != 0) return {};
    }
    // Room for a few of the longest names; no entry is smaller than 24 bytes.
    alignas(dirent64) std::array<char, entries_max * 24> buffer{};
    std::vector<directory_entry> some;
    while (some.empty()) {
        ssize_t const size = ::getdents64(directory_.get(), buffer.data(), buffer.size());
        // A directory that has been removed has no entries. Source: getdents(2).
        if (size < 0 && errno != ENOENT) error = errno;
        if (size <= 0) return {};
        for (ssize_t at = 0; at < size;) {
            auto const* const e = reinterpret_cast<dirent64 const*>(buffer.data() + at);
            at += e->d_reclen;
            std::string name = e->d_name;
            if (name != "." && name != "..") some.push_back({std::move(name), {}, 0, e->d_off});
        }
    }
    return some;
}

}  // namespace copy
