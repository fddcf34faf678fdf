#include "rdma-copy/batch_job.hpp"

#include <fcntl.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "rdma-copy/incoming_file.hpp"
#include "rdma-copy/result.hpp"
#include "rdma-copy/system_call.hpp"

namespace copy {

namespace {

constexpr std::size_t opened_max = 64;
// From here on one syncfs is less than several fsyncs.
constexpr std::size_t sync_all_min = 4;

// syncfs(2) reports errors since Linux 5.8.
bool reports_errors_of_syncfs() {
    static bool const reports = [] {
        utsname u{};
        int major = 0;
        int minor = 0;
        bool const is_known =
            ::uname(&u) == 0 && std::sscanf(u.release, "%d.%d", &major, &minor) == 2;
        return is_known && (major > 5 || (major == 5 && minor >= 8));
    }();
    return reports;
}

// File systems for which syncfs(2) means for each file what fsync(2) means. Those of networks, FUSE and overlays
// are not among them.
bool is_synced_by_syncfs(int file) {
    constexpr std::array<std::uint32_t, 4> known{
        0xEF53,  // ext2, ext3, ext4
        0x58465342,  // XFS
        0x9123683E,  // Btrfs
        0x01021994};  // tmpfs
    struct statfs s {};
    return reports_errors_of_syncfs() && ::fstatfs(file, &s) == 0 &&
           std::ranges::count(known, static_cast<std::uint32_t>(s.f_type)) > 0;
}

// Some sandboxes refuse it.
bool may_call_syncfs() {
    static_cast<void>(::syncfs(-1));
    return errno == EBADF;
}

int write_all(int file, std::vector<std::byte> const& bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
        ssize_t const n =
            ::pwrite(file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        done += static_cast<std::size_t>(n);
    }
    return 0;
}

// As an earlier copy would leave it.
bool is_finished_file(descriptor const& in, struct stat const& s, batch_item const& i) {
    return S_ISREG(s.st_mode) && static_cast<std::uint64_t>(s.st_size) == i.what.size &&
           has_time(in, s, i.gets.mtime);
}

bool is_link_to(descriptor const& in, std::string const& name, std::string const& target) {
    int error = 0;
    descriptor const link = open_here(in, name, O_PATH, error);
    return error == 0 && target_of(link, error) == target && error == 0;
}

// Of the directories from this one up, as far as they are part of it.
template <class IsPart>
std::string path_of(target_directory const* d, IsPart is_part) {
    std::vector<target_directory const*> all;
    for (; d != nullptr && is_part(*d); d = d->above.get()) all.push_back(d);
    std::string text;
    for (; !all.empty(); all.pop_back()) text = joined(std::move(text), all.back()->name);
    return text;
}

}  // namespace

std::string target_directory::path() const {
    return path_of(this, [](target_directory const&) { return true; });
}

std::string target_directory::path_in_source() const {
    // What is in the target itself is a source.
    return path_of(this, [](target_directory const& d) {
        return d.above != nullptr && d.above->above != nullptr;
    });
}

bool batch_job::run(std::vector<batch_item>& items, batch_options const& options) {
    if (next_ == 0 && !options.lists) begin_all(items, options);
    for (; next_ < items.size(); ++next_) {
        if (!remove_others(items[next_], items, options)) return false;
        if (options.lists) list(items[next_], options);
        else finish(items[next_], options);
    }
    next_ = next_file_ = 0;
    files_.clear();
    sync_directories(items);
    all_ = {};
    return true;
}

void batch_job::begin_all(std::vector<batch_item>& items, batch_options const& options) {
    suffix_ = random_text();
    // Reports what fails from here on.
    int error = 0;
    all_ = tree_.open_at({}, O_RDONLY | O_DIRECTORY, error);
    struct stat s {};
    syncs_all_ = error == 0 && ::fstat(all_.get(), &s) == 0 && items.size() >= sync_all_min &&
                 is_synced_by_syncfs(all_.get()) && may_call_syncfs();
    device_ = s.st_dev;
    for (batch_item& i : items)
        if (i.what.type != entry_type::directory_end) begin(i, options);
    sync_files();
}

// Before a directory gets its time.
bool batch_job::remove_others(
    batch_item& end, std::vector<batch_item> const& items, batch_options const& options
) {
    bool const is_due = options.removes != nullptr && end.what.type == entry_type::directory_end &&
                        end.itself->error == 0 && !end.itself->is_absent &&
                        std::ranges::all_of(items, [](auto const& i) { return i.error == 0; });
    if (!is_due) return true;
    if (!options.removes->has_begun()) {
        descriptor const* const d = open(end.itself, end.error);
        if (d == nullptr) return true;
        directory_stream all = directory_stream::open_again(tree_, end.path(), *d, end.error);
        if (end.error != 0) return true;
        auto names = std::move(end.itself->names);
        options.removes->begin(
            std::move(all), end.itself->path_in_source(), std::move(names), options.sources
        );
    }
    return options.removes->run();
}

void batch_job::finish(batch_item& i, batch_options const& options) {
    if (i.what.type == entry_type::directory_end) end_directory(i);
    if (next_file_ == files_.size() || files_[next_file_].item != &i) return;
    temporary const& file = files_[next_file_++];
    descriptor const* const in = open(i.in, i.error);
    if (in != nullptr && i.error == 0) i.error = name_file(*in, file, options);
    if (in != nullptr && i.error != 0 && is_at(*in, file.name, file.id))
        ::unlinkat(in->get(), file.name.c_str(), 0);
    if (i.error == 0) touch(i.in);
}

void batch_job::begin(batch_item& i, batch_options const& options) {
    if (i.error == 0 && i.in->error != 0) i.error = i.in->error;
    if (i.error == 0 && i.what.type == entry_type::directory) make_directory(i, options);
    if (i.itself != nullptr) i.itself->error = i.error;
    if (i.error != 0 || i.itself != nullptr) return;
    if (i.what.asks) return look_for(i, options);
    if (i.is_file()) return write(i);
    if (descriptor const* const in = open(i.in, i.error))
        i.error = make_symbolic_link_in(
            *in, i.name, i.what.target, i.gets, options.replaces, options.continues, i.now
        );
    if (i.error == 0) touch(i.in);
}

// Under a temporary name.
void batch_job::write(batch_item& i) {
    descriptor const* const in = open(i.in, i.error);
    if (in == nullptr) return;
    temporary t{&i, temporary_name(i.name, suffix_), {}};
    // Not kept open: a batch has more files than a client may have open.
    descriptor const data = open_here(*in, t.name, O_RDWR | O_CREAT | O_EXCL, i.error);
    if (i.error != 0) return;
    i.error = write_all(data.get(), i.bytes);
    if (i.error == 0) i.error = give_attributes(data, i.gets, i.now, i.lost);
    bool const is_known = i.error == 0 || ::fstat(data.get(), &i.now) == 0;
    t.id = file_id::of(i.now);
    if (i.error == 0 && can_sync_all(i.now.st_dev)) ++to_sync_;
    else if (i.error == 0) i.error = error_of(::fsync(data.get()));
    if (is_known) files_.push_back(std::move(t));
}

int batch_job::name_file(descriptor const& in, temporary const& t, batch_options const& options) {
    batch_item const& i = *t.item;
    int error = 0;
    descriptor data;
    // A file system without RENAME_NOREPLACE gets a link to the open file.
    if (!options.replaces && !can_sync_all(i.now.st_dev)) {
        data = open_here(in, t.name, O_PATH, error);
        struct stat s {};
        if (error == 0) error = error_of(::fstat(data.get(), &s));
        if (error == 0 && file_id::of(s) != t.id) error = error_target_changed;
    }
    return error != 0 ? error : give_name(in, data, t.name, i.name, t.id, options.replaces);
}

void batch_job::look_for(batch_item& i, batch_options const& options) {
    descriptor const* const in = open(i.in, i.error);
    if (in == nullptr) return;
    struct stat& s = i.now;
    auto const is_there = [&](std::string const& name, struct stat& found) {
        return ::fstatat(in->get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0;
    };
    if (!is_there(i.name, s)) {
        i.is_wanted = true;
        return;
    }
    if (!is_finished_file(*in, s, i)) {
        if (S_ISDIR(s.st_mode)) i.error = EISDIR;
        else if (options.replaces) i.is_wanted = true;
        else i.error = EEXIST;
        return;
    }
    auto const& owner = i.gets.owned_by;
    bool const is_finished = (s.st_mode & 07777) == i.gets.mode &&
                             (!owner || (s.st_uid == owner->user && s.st_gid == owner->group));
    struct stat left {};
    bool const may_have_state = i.what.size >= resume_bytes_min;
    if (!is_finished || (may_have_state && is_there(temporary_name(i.name, "state"), left))) {
        incoming_options o;
        o.size = i.what.size;
        o.replaces = options.replaces;
        o.continues = true;
        o.mtime = i.gets.mtime;
        o.identity = i.what.identity;
        incoming_file f = incoming_file::create(tree_, target_path{i.path(), i.in->id}, o, i.error);
        if (i.error == 0 && !f.is_there()) i.error = error_target_changed;
        if (i.error == 0) i.error = f.finish(i.gets, {});
        s = f.status();
        i.lost = f.lost();
    }
    // The earlier copy may have ended before it wrote the directory to the disk. Others are written at their end.
    if (i.error == 0 && i.what.is_source()) touch(i.in);
}

// Finds out whether it would be made.
void batch_job::list(batch_item& i, batch_options const& options) {
    if (i.what.type == entry_type::directory_end) {
        i.itself->opened = {};
        std::erase(opened_, i.itself);
        return;
    }
    if (i.error == 0) i.error = i.in->error;
    i.is_wanted = i.error == 0 && i.in->is_absent;
    bool const is_sought = i.error == 0 && !i.is_wanted;
    descriptor const* const in = is_sought ? open(i.in, i.error) : nullptr;
    if (in != nullptr && i.itself != nullptr) {
        list_directory(i, *in, options);
    } else if (in != nullptr) {
        struct stat& s = i.now;
        int const failed = error_of(::fstatat(in->get(), i.name.c_str(), &s, AT_SYMLINK_NOFOLLOW));
        bool const is_same = failed == 0 && (i.is_file() ? is_finished_file(*in, s, i)
                                                         : is_link_to(*in, i.name, i.what.target));
        i.is_wanted = failed == ENOENT;
        if (failed != 0 && !i.is_wanted) i.error = failed;
        else if (failed == 0 && S_ISDIR(s.st_mode)) i.error = EISDIR;
        else if (failed == 0 && !(is_same && options.continues)) {
            i.is_wanted = options.replaces;
            if (!options.replaces) i.error = EEXIST;
        }
    }
    if (i.itself == nullptr) return;
    i.itself->error = i.error;
    i.itself->is_absent = i.is_wanted;
}

void batch_job::list_directory(batch_item& i, descriptor const& in, batch_options const& options) {
    bool const is_around = std::ranges::count(options.around_target, i.what.identity) > 0;
    if (i.what.identity != hash{} && is_around) {
        i.error = error_into_itself;
        return;
    }
    descriptor opened = open_here(in, i.name, O_RDONLY | O_DIRECTORY, i.error);
    i.is_wanted = i.error == ENOENT;
    if (i.is_wanted) i.error = 0;
    if (!opened.is_open()) return;
    struct stat s {};
    i.error = error_of(::fstat(opened.get(), &s));
    i.itself->id = file_id::of(s);
    keep(i.itself, std::move(opened));
}

void batch_job::make_directory(batch_item& i, batch_options const& options) {
    bool const is_known = i.what.identity != hash{};
    if (is_known && std::ranges::count(options.around_target, i.what.identity) > 0) {
        i.error = error_into_itself;
        return;
    }
    descriptor const* const in = open(i.in, i.error);
    if (in == nullptr) return;
    file_id made;
    descriptor opened;
    i.error = make_directory_in(*in, i.name, made, 0700, opened);
    if (i.error == 0 && is_known && identity_of(made) == i.what.identity)
        i.error = error_into_itself;
    if (i.error != 0) return;
    i.itself->id = made;
    touch(i.in);
    keep(i.itself, std::move(opened));
}

void batch_job::end_directory(batch_item& i) {
    // It was counted when it could not be made.
    if (i.itself->error != 0 || i.error != 0) return;
    descriptor const* const d = open(i.itself, i.error);
    if (d == nullptr) return;
    i.error = set_attributes_of(*d, i.gets, i.now, i.lost);
    if (i.error == 0 && can_sync_all(i.now.st_dev)) {
        touch(i.itself);
    } else if (i.error == 0) {
        i.error = error_of(::fsync(d->get()));
        // Nobody may be able to open it again.
        std::erase(touched_, i.itself);
    }
    ended_ = std::exchange(i.itself->opened, {});
    above_ended_ = i.itself->above;
    std::erase(opened_, i.itself);
}

void batch_job::sync_files() {
    if (std::exchange(to_sync_, 0) == 0) return;
    int const error = error_of(::syncfs(all_.get()));
    for (temporary& t : files_)
        if (t.item->error == 0 && can_sync_all(t.item->now.st_dev)) t.item->error = error;
}

// Whose entries have changed.
void batch_job::sync_directories(std::vector<batch_item>& items) {
    auto const is_covered = [&](auto const& d) { return d->id && can_sync_all(d->id->device); };
    bool is_due = false;
    std::vector<std::pair<target_directory*, int>> failed;
    for (auto const& d : touched_) {
        if (is_covered(d)) {
            is_due = true;
            continue;
        }
        int error = 0;
        descriptor const* const opened = open(d, error);
        if (opened != nullptr) error = error_of(::fsync(opened->get()));
        if (error != 0) failed.emplace_back(d.get(), error);
    }
    touched_.clear();
    int const error = is_due ? error_of(::syncfs(all_.get())) : 0;
    if (error == 0 && failed.empty()) return;
    for (batch_item& i : items) {
        if (i.error != 0 || i.is_wanted) continue;
        if (is_covered(i.in)) i.error = error;
        for (auto const& [d, why] : failed)
            if (d == i.in.get() || d == i.itself.get()) i.error = why;
    }
}

void batch_job::touch(std::shared_ptr<target_directory> const& d) {
    if (touched_.empty() || (touched_.back() != d && std::ranges::count(touched_, d) == 0))
        touched_.push_back(d);
}

void batch_job::keep(std::shared_ptr<target_directory> const& d, descriptor opened) {
    if (opened_.size() == opened_max) {
        opened_.front()->opened = {};
        opened_.pop_front();
    }
    d->opened = std::move(opened);
    opened_.push_back(d);
}

// If that is possible, through a directory that is open, so that the depth costs nothing.
descriptor const* batch_job::open(std::shared_ptr<target_directory> const& d, int& error) {
    if (d->opened.is_open()) return &d->opened;
    auto const try_with = [&](descriptor opened) {
        struct stat s {};
        if (error == 0) error = error_of(::fstat(opened.get(), &s));
        if (error == 0 && d->id && file_id::of(s) != *d->id) error = error_target_changed;
        if (error == 0) {
            d->id = file_id::of(s);
            keep(d, std::move(opened));
        }
        return error == 0;
    };
    constexpr int flags = O_RDONLY | O_DIRECTORY;
    if (ended_.is_open() && above_ended_ == d && d->id) {
        descriptor opened = open_here(std::exchange(ended_, {}), "..", flags, error);
        if (try_with(std::move(opened))) return &d->opened;
    }
    error = 0;
    if (d->above != nullptr && d->above->opened.is_open()) {
        descriptor opened = open_here(d->above->opened, d->name, flags, error);
        return try_with(std::move(opened)) ? &d->opened : nullptr;
    }
    descriptor opened = tree_.open_at(d->path(), flags, error);
    return try_with(std::move(opened)) ? &d->opened : nullptr;
}

}  // namespace copy
