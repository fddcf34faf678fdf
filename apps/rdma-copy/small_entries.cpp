#include "rdma-copy/small_entries.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <utility>

#include "rdma-copy/result.hpp"
#include "rdma-copy/system_call.hpp"

namespace copy {

namespace {

// Which file it is, and which content it has. No program can set the time of the last change (ctime).
hash identity_of(struct stat const& s) {
    std::array<std::uint64_t, 7> const all{
        s.st_dev,
        s.st_ino,
        static_cast<std::uint64_t>(s.st_size),
        static_cast<std::uint64_t>(s.st_mtim.tv_sec),
        static_cast<std::uint64_t>(s.st_mtim.tv_nsec),
        static_cast<std::uint64_t>(s.st_ctim.tv_sec),
        static_cast<std::uint64_t>(s.st_ctim.tv_nsec)};
    return hash_of(std::as_bytes(std::span{all}));
}

// All of it and not a byte more.
int read_content(int file, std::vector<std::byte>& into) {
    std::size_t got = 0;
    while (got < into.size()) {
        ssize_t const n =
            ::pread(file, into.data() + got, into.size() - got, static_cast<off_t>(got));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : error_source_changed;
        got += static_cast<std::size_t>(n);
    }
    return has_more(file, into.size()) ? error_source_changed : 0;
}

void read_file(descriptor const& directory, small_entry& e, bool asks, extended const& keeps) {
    // Without waiting for a pipe that has taken the file's name.
    descriptor const d = open_here(directory, e.from->name, O_RDONLY | O_NONBLOCK, e.error);
    struct stat before {};
    if (e.error == 0 && ::fstat(d.get(), &before) != 0) e.error = errno;
    if (e.error != 0) return;
    bool const is_file = S_ISREG(before.st_mode) && before.st_nlink == 1;
    auto const size = static_cast<std::uint64_t>(before.st_size);
    e.is_other = !is_file || (!asks && size > whole_bytes_max);
    if (e.is_other) return;
    extended const has = extended_of(d.get());
    e.is_other = (has & keeps).is_any();
    if (e.is_other) return;
    e.what = entry_of(entry_type::file, before);
    e.what.has_attributes = has.attributes;
    e.what.has_acl = has.acl;
    e.what.asks = asks;
    if (asks) return;
    off_t const gap = size == 0 ? 0 : ::lseek(d.get(), 0, SEEK_HOLE);
    e.is_other = gap >= 0 && gap < before.st_size;
    if (e.is_other) return;
    e.bytes.resize(size);
    e.error = read_content(d.get(), e.bytes);
    struct stat after {};
    if (e.error == 0 && ::fstat(d.get(), &after) != 0) e.error = errno;
    if (e.error == 0 && has_changed(before, after)) e.error = error_source_changed;
}

// It is opened if the receiver wants it. Whether it has attributes that are not kept is not asked for a file
// that is not copied.
void ask_for(small_entry& e) {
    e.what = entry_of(entry_type::file, e.from->status);
    e.what.asks = true;
}

void read_link(descriptor const& directory, small_entry& e) {
    descriptor const d = open_here(directory, e.from->name, O_PATH, e.error);
    struct stat s {};
    if (e.error == 0 && ::fstat(d.get(), &s) != 0) e.error = errno;
    if (e.error == 0 && !S_ISLNK(s.st_mode)) e.is_other = true;
    if (e.error != 0 || e.is_other) return;
    e.what = entry_of(entry_type::symbolic_link, s);
    e.what.target = target_of(d, e.error);
}

}  // namespace

bool has_changed(struct stat const& before, struct stat const& after) {
    return after.st_size != before.st_size || !is_same(after.st_mtim, before.st_mtim) ||
           !is_same(after.st_ctim, before.st_ctim);
}

bool has_more(int file, std::uint64_t size) {
    char byte = 0;
    return size == 0 && ::pread(file, &byte, 1, 0) > 0;
}

entry entry_of(entry_type type, struct stat const& s) {
    entry e;
    e.type = type;
    e.mode = static_cast<std::uint16_t>(s.st_mode & 07777U);
    e.user = s.st_uid;
    e.group = s.st_gid;
    e.seconds = s.st_mtim.tv_sec;
    e.nanoseconds = static_cast<std::uint32_t>(s.st_mtim.tv_nsec);
    if (type == entry_type::file) {
        e.size = static_cast<std::uint64_t>(s.st_size);
        e.identity = identity_of(s);
    }
    return e;
}

bool is_small(directory_entry const& e, bool asks) {
    bool const is_file = S_ISREG(e.status.st_mode) && e.status.st_nlink == 1;
    bool const fits = asks || static_cast<std::uint64_t>(e.status.st_size) <= whole_bytes_max;
    return S_ISLNK(e.status.st_mode) || (is_file && fits);
}

std::vector<small_entry> read_small(
    descriptor const& directory,
    std::span<directory_entry const* const> some,
    bool asks,
    extended const& keeps
) {
    std::vector<small_entry> all(some.size());
    for (std::size_t i = 0; i < some.size(); ++i) {
        all[i].from = some[i];
        if (S_ISLNK(some[i]->status.st_mode)) read_link(directory, all[i]);
        else if (asks && !keeps.is_any()) ask_for(all[i]);
        else read_file(directory, all[i], asks, keeps);
    }
    return all;
}

}  // namespace copy
