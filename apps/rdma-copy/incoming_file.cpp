#include "rdma-copy/incoming_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "rdma-copy/result.hpp"

namespace copy {

namespace {

// Bytes that are hashed again before a copy continues. Source: what may be under way between the
// last two syncs.
constexpr std::uint64_t window_bytes = incoming_file::checkpoint_bytes;
constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

// The beginning of a state file. It is read by the machine that wrote it.
struct state_head {
    std::array<char, 8> magic{'R', 'C', 'O', 'P', 'Y', '0', '0', '1'};
    std::uint64_t size = 0;
    std::uint64_t inode = 0;  // of the temporary file
    hash identity{};
    hash checksum{};  // of what is before

    static state_head of(incoming_options const& o, std::uint64_t inode) {
        state_head h;
        h.size = o.size;
        h.inode = inode;
        h.identity = o.identity;
        h.checksum = hash_of(std::as_bytes(std::span{&h, 1}).first(offsetof(state_head, checksum)));
        return h;
    }
};
static_assert(sizeof(state_head) == 56 && sizeof(file_part) == 24);

off_t place_of_part(std::uint64_t number) {
    return static_cast<off_t>(sizeof(state_head) + number * sizeof(file_part));
}

int write_all(int fd, void const* bytes, std::size_t size, off_t offset) {
    auto const* at = static_cast<char const*>(bytes);
    while (size > 0) {
        ssize_t const n = ::pwrite(fd, at, size, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        at += n;
        offset += n;
        size -= static_cast<std::size_t>(n);
    }
    return 0;
}

// All of it, or an errno.
int read_all(int fd, void* into, std::size_t size, std::uint64_t offset) {
    auto* at = static_cast<char*>(into);
    while (size > 0) {
        ssize_t const n = ::pread(fd, at, size, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EUCLEAN;
        at += n;
        offset += static_cast<std::uint64_t>(n);
        size -= static_cast<std::size_t>(n);
    }
    return 0;
}

// This process's own, under no second name.
bool is_own_file(int fd) {
    struct stat s {};
    return ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_nlink == 1 && s.st_uid == ::geteuid();
}

bool is_at(descriptor const& directory, std::string const& name, descriptor const& file) {
    struct stat s {};
    return ::fstat(file.get(), &s) == 0 && is_at(directory, name, file_id::of(s));
}

bool is_hole(file_part const& part) { return part.checksum == hash{}; }

struct freed {
    void operator()(void* p) const { std::free(p); }
};
std::unique_ptr<void, freed> aligned_buffer() {
    return std::unique_ptr<void, freed>{std::aligned_alloc(block_alignment, buffer_bytes)};
}

// The bytes of a hole are zero; what the file system says is a hole is not read.
int verify_hole(int fd, std::uint64_t begin, std::uint64_t end, void* buffer) {
    while (begin < end) {
        off_t const data = ::lseek(fd, static_cast<off_t>(begin), SEEK_DATA);
        if (data < 0 && errno == ENXIO) {
            struct stat s {};
            bool const is_there =
                ::fstat(fd, &s) == 0 && static_cast<std::uint64_t>(s.st_size) >= end;
            return is_there ? 0 : EUCLEAN;
        }
        if (data >= 0) begin = std::max(begin, static_cast<std::uint64_t>(data));
        begin -= begin % block_alignment;
        if (begin >= end) return 0;
        auto const size =
            static_cast<std::size_t>(std::min<std::uint64_t>(end - begin, buffer_bytes));
        std::size_t const asked = (size + block_alignment - 1) / block_alignment * block_alignment;
        ssize_t const n = ::pread(fd, buffer, asked, static_cast<off_t>(begin));
        if (n < static_cast<ssize_t>(size)) return n < 0 ? errno : EUCLEAN;
        auto const* const bytes = static_cast<char const*>(buffer);
        if (std::any_of(bytes, bytes + size, [](char c) { return c != 0; })) return EUCLEAN;
        begin += size;
    }
    return 0;
}

}  // namespace

bool has_time(struct stat const& there, timespec const& source, bool is_vfat) noexcept {
    timespec const& time = there.st_mtim;
    if (time.tv_sec == source.tv_sec && time.tv_nsec == source.tv_nsec) return true;
    timespec kept = source;
    // The clock of a file system that keeps nanoseconds gives such a time to one file in very many.
    for (long const nanoseconds : {1'000'000'000L, 10'000'000L, 1'000'000L, 1'000L, 100L}) {
        bool const is_kept =
            time.tv_nsec % nanoseconds == 0 && there.st_ctim.tv_nsec % nanoseconds == 0;
        if (!is_kept) continue;
        kept.tv_nsec -= kept.tv_nsec % nanoseconds;
        break;
    }
    if (is_vfat) kept = {kept.tv_sec - (kept.tv_sec & 1), 0};
    return time.tv_sec == kept.tv_sec && time.tv_nsec == kept.tv_nsec;
}

bool has_time(
    descriptor const& directory, struct stat const& there, timespec const& source
) noexcept {
    if (has_time(there, source, false)) return true;
    struct statfs s {};
    constexpr std::uint32_t vfat = 0x4D44;
    bool const is_vfat =
        ::fstatfs(directory.get(), &s) == 0 && static_cast<std::uint32_t>(s.f_type) == vfat;
    return is_vfat && has_time(there, source, true);
}

// What this one was goes with the other.
incoming_file& incoming_file::operator=(incoming_file&& other) noexcept {
    std::swap(directory_, other.directory_);
    std::swap(data_, other.data_);
    std::swap(state_, other.state_);
    std::swap(name_, other.name_);
    std::swap(data_name_, other.data_name_);
    std::swap(state_name_, other.state_name_);
    std::swap(options_, other.options_);
    std::swap(begin_, other.begin_);
    std::swap(stored_, other.stored_);
    std::swap(stored_end_, other.stored_end_);
    std::swap(is_named_, other.is_named_);
    std::swap(is_kept_, other.is_kept_);
    std::swap(is_there_, other.is_there_);
    std::swap(has_lost_, other.has_lost_);
    std::swap(id_, other.id_);
    std::swap(status_, other.status_);
    std::swap(lost_, other.lost_);
    return *this;
}

incoming_file::~incoming_file() {
    if (data_.is_open() && !is_kept_) remove();
}

void incoming_file::remove() noexcept {
    // Somebody may have removed them, and another copy made them again.
    if (!data_name_.empty() && is_at(directory_, data_name_, data_))
        ::unlinkat(directory_.get(), data_name_.c_str(), 0);
    if (!state_name_.empty() && is_at(directory_, state_name_, state_))
        ::unlinkat(directory_.get(), state_name_.c_str(), 0);
    data_name_.clear();
    state_name_.clear();
}

incoming_file incoming_file::create(
    tree const& in, target_path const& path, incoming_options const& options, int& error
) {
    incoming_file f;
    f.options_ = options;
    std::tie(f.directory_, f.name_) = in.parent_of(path, error);
    if (error != 0) return {};
    struct stat there {};
    bool const exists =
        ::fstatat(f.directory_.get(), f.name_.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0;
    bool const is_same = exists && S_ISREG(there.st_mode) &&
                         static_cast<std::uint64_t>(there.st_size) == options.size &&
                         has_time(f.directory_, there, options.mtime);
    if (options.continues && is_same) {
        f.remove_leftovers();
        f.is_there_ = true;
        f.begin_ = options.size;
        f.id_ = file_id::of(there);
        // The earlier copy may have ended before it did that.
        if (options.is_alone && ::fsync(f.directory_.get()) != 0) error = errno;
        return f;
    }
    if (exists && S_ISDIR(there.st_mode)) {
        error = EISDIR;
        return {};
    }
    if (exists && !options.replaces) {
        error = EEXIST;
        return {};
    }
    if (options.size >= resume_bytes_min && f.open_state()) f.begin_ = f.resume();
    if (!f.data_.is_open()) error = f.open_plain();
    if (error == 0) error = f.reserve();
    // What an earlier copy has left stays.
    if (error != 0) f.keep();
    return f;
}

// What an interrupted copy has left of a file that is finished now.
void incoming_file::remove_leftovers() {
    struct stat there {};
    std::string const name = temporary_name(name_, "state");
    if (::fstatat(directory_.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (open_state()) remove();
    state_ = {};
    data_ = {};
}

// Under a name of its own, which nobody finds again.
int incoming_file::open_plain() {
    int error = 0;
    data_name_ = temporary_name(name_, random_text());
    data_ = open_here(directory_, data_name_, O_RDWR | O_CREAT | O_EXCL, error);
    if (error != 0) data_name_.clear();
    if (error != 0 || state_.is_open() || options_.size < resume_bytes_min || !options_.verifies)
        return error;
    // The parts of a large file are not kept in memory.
    std::string const name = temporary_name(name_, random_text());
    state_ = open_here(directory_, name, O_RDWR | O_CREAT | O_EXCL, error);
    if (error == 0) ::unlinkat(directory_.get(), name.c_str(), 0);
    return error;
}

// False if another copy to this name is under way, or if the files there are not this process's own.
bool incoming_file::open_state() {
    int error = 0;
    std::string const state_name = temporary_name(name_, "state");
    std::string const data_name = temporary_name(name_, "part");
    descriptor state = open_here(directory_, state_name, O_RDWR | O_CREAT | O_EXCL, error);
    bool const is_new = error == 0;
    if (error == EEXIST) state = open_here(directory_, state_name, O_RDWR, error);
    if (error != 0) return false;
    if (!is_own_file(state.get())) {
        // Some file systems give every file to one user.
        if (is_new) ::unlinkat(directory_.get(), state_name.c_str(), 0);
        return false;
    }
    if (::flock(state.get(), LOCK_EX | LOCK_NB) != 0) {
        // A file system without locks: nothing there says anything.
        if (errno != EWOULDBLOCK) ::unlinkat(directory_.get(), state_name.c_str(), 0);
        return false;
    }
    if (!is_at(directory_, state_name, state)) return false;
    data_name_ = data_name;
    descriptor data = open_part(error);
    data_name_.clear();
    bool const is_own = error == 0 && is_own_file(data.get());
    bool const is_locked = is_own && ::flock(data.get(), LOCK_EX | LOCK_NB) == 0;
    // Nothing is known of a file that could not be looked at.
    bool const is_unknown =
        error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO || error == ESTALE;
    if (is_unknown && !is_new) return false;
    if (!is_locked || !is_at(directory_, data_name, data)) {
        // It says nothing of a file that cannot be used. That takes room, and nobody else removes it.
        struct stat s {};
        bool const is_closed = error == 0 || error == EACCES || error == EPERM;
        bool const is_left =
            is_closed && !is_own &&
            ::fstatat(directory_.get(), data_name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(s.st_mode) && s.st_nlink == 1;
        if (is_left) ::unlinkat(directory_.get(), data_name.c_str(), 0);
        ::unlinkat(directory_.get(), state_name.c_str(), 0);
        return false;
    }
    // It may have the mode of a source that could be read by others.
    if (::fchmod(data.get(), 0600) != 0) return false;
    state_ = std::move(state);
    data_ = std::move(data);
    state_name_ = state_name;
    data_name_ = data_name;
    return true;
}

// One that was killed while it finished may have left the file with its last mode.
descriptor incoming_file::open_part(int& error) const {
    descriptor data = open_here(directory_, data_name_, O_RDWR | O_CREAT, error);
    if (error != EACCES) return data;
    descriptor const place = open_here(directory_, data_name_, O_PATH, error);
    if (error != 0 || !is_own_file(place.get())) {
        error = EACCES;
        return {};
    }
    std::string const itself = "/proc/self/fd/" + std::to_string(place.get());
    if (::chmod(itself.c_str(), 0600) != 0) {
        error = errno;
        return {};
    }
    return open_here(directory_, data_name_, O_RDWR, error);
}

// Finds out what is there of the same source, and forgets the rest.
std::uint64_t incoming_file::resume() {
    struct stat data {};
    if (::fstat(data_.get(), &data) != 0) data = {};
    auto const there = static_cast<std::uint64_t>(data.st_size);
    state_head const wanted = state_head::of(options_, data.st_ino);
    state_head head;
    struct stat s {};
    std::uint64_t parts = 0;
    auto const end_of = [&](std::uint64_t count) -> std::uint64_t {
        file_part p;
        if (count == 0) return 0;
        bool const is_read =
            read_all(
                state_.get(), &p, sizeof p, static_cast<std::uint64_t>(place_of_part(count - 1))
            ) == 0;
        return is_read ? p.end : UINT64_MAX;
    };
    auto const buffer = aligned_buffer();
    if (buffer != nullptr && ::fstat(state_.get(), &s) == 0 &&
        s.st_size >= static_cast<off_t>(sizeof head) &&
        read_all(state_.get(), &head, sizeof head, 0) == 0 &&
        std::memcmp(&head, &wanted, sizeof head) == 0) {
        parts = (static_cast<std::uint64_t>(s.st_size) - sizeof head) / sizeof(file_part);
        // From the last one back.
        std::uint64_t hashed = 0;
        for (std::uint64_t i = parts; i > 0 && hashed < window_bytes; --i) {
            file_part p;
            std::uint64_t const begin = end_of(i - 1);
            bool const is_read =
                read_all(
                    state_.get(), &p, sizeof p, static_cast<std::uint64_t>(place_of_part(i - 1))
                ) == 0;
            bool const is_good = is_read && begin < p.end && p.end <= options_.size &&
                                 p.end <= there &&
                                 verify_part(data_.get(), begin, p, buffer.get()) == 0;
            if (is_good) {
                if (!is_hole(p)) hashed += p.end - begin;
            } else {
                parts = i - 1;
                hashed = 0;
            }
        }
    }
    stored_ = parts;
    std::uint64_t const begin = end_of(parts);
    stored_end_ = begin;
    // Holes behind it must be holes.
    bool const is_ready = ::ftruncate(state_.get(), place_of_part(parts)) == 0 &&
                          write_all(state_.get(), &wanted, sizeof wanted, 0) == 0 &&
                          ::ftruncate(data_.get(), static_cast<off_t>(begin)) == 0;
    if (is_ready) return begin;
    // It cannot be continued, but it can be copied.
    remove();
    state_ = {};
    data_ = {};
    stored_ = stored_end_ = 0;
    return 0;
}

// A full disk is heard of before the data is on its way.
int incoming_file::reserve() const {
    if (options_.size == 0) return 0;
    auto const size = static_cast<off_t>(options_.size);
    auto const from = static_cast<off_t>(begin_);
    if (options_.is_sparse) return ::ftruncate(data_.get(), size) == 0 ? 0 : errno;
    if (from >= size || ::fallocate(data_.get(), 0, from, size - from) == 0) return 0;
    return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : errno;
}

// A failure is final: the kernel may have thrown the pages away, and reports it once. Source: fsync(2),
// NOTES.
int incoming_file::sync(int (*with)(int)) {
    if (has_lost_) return EIO;
    if (with(data_.get()) == 0) return 0;
    has_lost_ = true;
    return errno;
}

void incoming_file::keep() noexcept {
    is_kept_ = stored_ > 0 && !state_name_.empty();
    // The room that is reserved is needed by others. If this fails, it is taken a while longer.
    if (is_kept_) static_cast<void>(!::ftruncate(data_.get(), static_cast<off_t>(stored_end_)));
}

int incoming_file::store(std::vector<file_part> const& parts) {
    // What the state file says is on the disk.
    if (int const error = sync(&::fdatasync)) return error;
    std::size_t const bytes = parts.size() * sizeof(file_part);
    int error = write_all(state_.get(), parts.data(), bytes, place_of_part(stored_));
    if (error == 0 && ::fdatasync(state_.get()) != 0) error = errno;
    if (error == 0 && !std::exchange(is_named_, true) && ::fsync(directory_.get()) != 0)
        error = errno;
    if (error != 0) {
        has_lost_ = true;  // the next parts would not follow
        return error;
    }
    stored_ += parts.size();
    if (!parts.empty()) stored_end_ = parts.back().end;
    return 0;
}

int incoming_file::verify_part(int fd, std::uint64_t begin, file_part const& part, void* buffer)
    const {
    if (is_hole(part)) return verify_hole(fd, begin, part.end, buffer);
    if (part.end - begin > buffer_bytes) return EUCLEAN;
    auto const size = static_cast<std::size_t>(part.end - begin);
    // Direct I/O reads whole blocks, also the last one.
    std::size_t const asked = (size + block_alignment - 1) / block_alignment * block_alignment;
    std::size_t got = 0;
    while (got < size) {
        ssize_t const n = ::pread(
            fd, static_cast<char*>(buffer) + got, asked - got, static_cast<off_t>(begin + got)
        );
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EUCLEAN;
        got += static_cast<std::size_t>(n);
    }
    return hash_of({static_cast<std::byte const*>(buffer), size}) == part.checksum ? 0 : EUCLEAN;
}

// Reads it back from the disk, past the page cache where the file system can.
int incoming_file::verify(std::vector<file_part> const& parts) const {
    // Some file systems refuse direct I/O when the file is opened, some when it is read.
    int const error = verify(parts, O_DIRECT);
    return error == EINVAL ? verify(parts, 0) : error;
}

int incoming_file::verify(std::vector<file_part> const& parts, int flags) const {
    int error = 0;
    // Without waiting for a pipe that has taken the name.
    descriptor const direct =
        open_here(directory_, data_name_, O_RDONLY | O_NONBLOCK | flags, error);
    if (error != 0) return error;
    struct stat s {};
    if (::fstat(direct.get(), &s) != 0) return errno;
    if (file_id::of(s) != id_) return error_target_changed;
    // Without direct I/O: pages that are on the disk are thrown away.
    ::posix_fadvise(direct.get(), 0, 0, POSIX_FADV_DONTNEED);
    auto const buffer = aligned_buffer();
    if (buffer == nullptr) return ENOMEM;
    std::uint64_t begin = 0;
    auto const verify_all = [&](std::vector<file_part> const& some) {
        for (file_part const& p : some) {
            if (p.end <= begin) return EUCLEAN;
            if (int const failed = verify_part(direct.get(), begin, p, buffer.get())) return failed;
            begin = p.end;
        }
        return 0;
    };
    constexpr std::uint64_t parts_at_a_time = 4096;
    for (std::uint64_t i = 0; i < stored_; i += parts_at_a_time) {
        std::vector<file_part> some(std::min(parts_at_a_time, stored_ - i));
        auto const place = static_cast<std::uint64_t>(place_of_part(i));
        error = read_all(state_.get(), some.data(), some.size() * sizeof(file_part), place);
        if (error == 0) error = verify_all(some);
        if (error != 0) return error;
    }
    error = verify_all(parts);
    return error == 0 && begin != options_.size ? EUCLEAN : error;
}

int incoming_file::finish(attributes const& a, std::vector<file_part> const& parts) {
    if (is_there_) return give_again(a);
    auto const size = static_cast<off_t>(options_.size);
    struct stat s {};
    if (::fstat(data_.get(), &s) != 0) return errno;
    if (!is_at(directory_, data_name_, data_)) return ENOENT;  // somebody has removed it
    id_ = file_id::of(s);
    if (s.st_size != size && ::ftruncate(data_.get(), size) != 0) return errno;
    if (options_.verifies) {
        if (int const error = sync(&::fdatasync)) return error;
        if (int const error = verify(parts)) return error;
    }
    int error = give_attributes(data_, a, status_, lost_);
    if (error == 0) error = sync(&::fsync);
    if (error == 0) error = give_name(directory_, data_, data_name_, name_, id_, options_.replaces);
    if (error != 0) {
        // It may be continued, by this user.
        if (a.owned_by) static_cast<void>(!::fchown(data_.get(), s.st_uid, s.st_gid));
        static_cast<void>(!::fchmod(data_.get(), 0600));
        return error;
    }
    data_name_.clear();
    remove();
    return ::fsync(directory_.get()) == 0 ? 0 : errno;
}

// To a file that an earlier copy has finished, of a source whose mode or owner may have changed since.
int incoming_file::give_again(attributes const& a) {
    int error = 0;
    descriptor const there = open_here(directory_, name_, O_PATH, error);
    if (error != 0) return error;
    struct stat& s = status_;
    if (::fstat(there.get(), &s) != 0) return errno;
    if (file_id::of(s) != id_) return error_target_changed;
    bool const is_owned =
        !a.owned_by || (s.st_uid == a.owned_by->user && s.st_gid == a.owned_by->group);
    if (is_owned && (s.st_mode & 07777) == a.mode && !a.keeps.is_any()) return 0;
    if (!is_owned &&
        ::fchownat(there.get(), "", a.owned_by->user, a.owned_by->group, AT_EMPTY_PATH) != 0)
        return errno;
    std::string const itself = "/proc/self/fd/" + std::to_string(there.get());
    // To change its extended attributes, and to write that to the disk, takes a file that can be opened.
    if (::chmod(itself.c_str(), a.mode | S_IRUSR | S_IWUSR) != 0) return errno;
    descriptor const readable{::open(itself.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    if (readable.is_open()) lost_ = give_extended(readable, a);
    else if (a.values != nullptr) lost_ = a.keeps;
    if (::chmod(itself.c_str(), a.mode) != 0) return errno;
    if (::fstat(there.get(), &s) != 0) return errno;
    return readable.is_open() && ::fsync(readable.get()) != 0 ? errno : 0;
}

}  // namespace copy
