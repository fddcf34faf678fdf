#include "rdma-copy/removal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <iterator>
#include <utility>

#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/result.hpp"
#include "rdma-copy/system_call.hpp"

namespace copy {

namespace {

// Not an errno: it stays, and that is no failure.
constexpr int error_kept = -1;

// Bind mounts have the device of another directory. 0 before Linux 5.8, which does not say.
std::uint64_t mount_of(descriptor const& directory) {
    struct statx s {};
    bool const is_known = ::statx(directory.get(), "", AT_EMPTY_PATH, STATX_MNT_ID, &s) == 0 &&
                          (s.stx_mask & STATX_MNT_ID) != 0;
    return is_known ? s.stx_mnt_id : 0;
}

}  // namespace

std::uint64_t hash_of_name(std::string const& name) noexcept {
    return std::hash<std::string>{}(name);
}

void removal::begin(
    directory_stream all,
    std::string below,
    std::vector<std::uint64_t> names,
    std::vector<hash> sources
) {
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    std::size_t found = 0;
    std::vector<bool> is_found(names.size());
    int error = 0;
    // In a dry run they need not be there.
    while (!lists_ && error == 0) {
        std::vector<directory_entry> const some = all.names(error);
        if (some.empty()) break;
        for (directory_entry const& e : some) {
            auto const at = std::ranges::lower_bound(names, hash_of_name(e.name));
            if (at == names.end() || *at != hash_of_name(e.name)) continue;
            auto const place = static_cast<std::size_t>(at - names.begin());
            if (!is_found[place]) ++found;
            is_found[place] = true;
        }
    }
    if (error == 0 && !lists_ && found != names.size()) error = error_names_differ;
    if (error == 0) error = all.rewind();
    if (error != 0) return report(all.path(), error);
    names_ = std::move(names);
    sources_ = std::move(sources);
    device_ = all.status().st_dev;
    mount_ = mount_of(all.directory());
    levels_.push_back({std::move(all), {}, std::move(below), {}, false});
}

bool removal::run() {
    while (!levels_.empty()) {
        if (results_.size() >= results_max) return false;
        level& here = levels_.back();
        if (here.some.empty()) {
            int error = 0;
            std::ranges::move(here.entries.names(error), std::back_inserter(here.some));
            if (error != 0) {
                report(here.entries.path(), error);
                here.has_kept = true;
            }
        }
        if (here.some.empty()) {
            leave();
            continue;
        }
        directory_entry const e = std::move(here.some.front());
        here.some.pop_front();
        bool const is_first = levels_.size() == 1;
        if (is_first && std::ranges::binary_search(names_, hash_of_name(e.name))) continue;
        std::string const path = joined(here.entries.path(), e.name);
        std::string const below = joined(here.below, e.name);
        std::size_t const levels = levels_.size();
        int const error = remove(here, e, below);
        if (levels_.size() != levels || error == ENOENT) continue;
        if (error != 0) here.has_kept = true;
        if (error != error_kept) report(path, error);
    }
    return true;
}

// A directory is another level, and removed when that is left.
int removal::remove(level& from, directory_entry const& e, std::string const& below) {
    int const in = from.entries.directory().get();
    struct stat s {};
    if (::fstatat(in, e.name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    bool const is_directory = S_ISDIR(s.st_mode);
    if (is_reserved(e.name) || excluded_.has(below, is_directory)) return error_kept;
    if (is_directory) return open_inside(from, e, below);
    return lists_ ? 0 : error_of(::unlinkat(in, e.name.c_str(), 0));
}

int removal::open_inside(level& from, directory_entry const& e, std::string const& below) {
    int error = 0;
    directory_stream inside = from.entries.open_inside(e.name, error);
    if (error != 0) return error;
    if (inside.path().size() > text_bytes_max) return ENAMETOOLONG;
    if (inside.status().st_dev != device_ || mount_of(inside.directory()) != mount_) return EBUSY;
    if (std::ranges::count(sources_, identity_of(file_id::of(inside.status()))) > 0)
        return error_into_itself;
    if (levels_.size() >= directory_stream::open_max) {
        from.entries.close_behind(e);
        from.some.clear();
    }
    levels_.push_back({std::move(inside), e.name, below, {}, false});
    return 0;
}

void removal::leave() {
    level const done = std::move(levels_.back());
    levels_.pop_back();
    if (levels_.empty()) return;
    level& above = levels_.back();
    above.entries.reopen_from(done.entries);
    if (done.has_kept) {
        above.has_kept = true;
        return;
    }
    int const in = above.entries.directory().get();
    int error = 0;
    if (!lists_) error = error_of(::unlinkat(in, done.name.c_str(), AT_REMOVEDIR));
    // Another program has put something in it, or has removed it, or moved it elsewhere.
    if (error == ENOENT) return;
    if (error == EBADF) error = error_target_changed;
    if (error != 0) above.has_kept = true;
    report(done.entries.path(), error);
}

void removal::report(std::string const& path, int error) {
    if (error == error_source_changed) error = error_target_changed;
    results_.push_back({path, error});
}

std::vector<removal::result> removal::take_results() { return std::exchange(results_, {}); }

}  // namespace copy
