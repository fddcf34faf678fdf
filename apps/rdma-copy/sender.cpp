#include "rdma-copy/sender.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include <rcverbs/channel_error.hpp>

#include "rdma-copy/small_entries.hpp"
#include "rdma-copy/system_call.hpp"

namespace copy {

namespace {

// The next data of a file, in whole blocks.
struct extent {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    int error = 0;
};
extent data_from(int fd, std::uint64_t at, std::uint64_t size) {
    off_t const data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) return {size, size};
    off_t const gap = data < 0 ? -1 : ::lseek(fd, data, SEEK_HOLE);
    if (gap < 0) return {at, size, errno};
    auto const begin = static_cast<std::uint64_t>(data);
    auto const end = static_cast<std::uint64_t>(gap) + block_alignment - 1;
    extent const e{
        std::clamp(begin - begin % block_alignment, at, size),
        std::min(end - end % block_alignment, size)};
    // A hole was made between the two calls.
    bool const is_data = e.begin < e.end || e.begin == size;
    return is_data ? e : extent{at, size, error_source_changed};
}

// Blocks from reading to writing. More bytes do not make a copy faster, and wait in the device, where they
// can be late for the acknowledgement timeout.
std::size_t blocks_of(link const& over) {
    constexpr std::size_t bytes_most = std::size_t{2} << 20;
    constexpr std::size_t most = 8;
    return std::min({over.slots(), most, std::max<std::size_t>(bytes_most / over.slot_bytes(), 1)});
}

// Of what is in a source, without what the source is called.
std::string_view path_below_source(std::string_view name) {
    return name.substr(name.find('/') + 1);
}

// Files with several names, so that their bytes are counted once. The memory is free when all is counted; if there
// are more, the bytes of the rest are counted for each name.
class counted_files {
public:
    bool is_first(struct stat const& s) {
        if (s.st_nlink < 2) return true;
        constexpr std::size_t most = 65536;
        if (all_.size() == most) return !all_.contains({s.st_dev, s.st_ino});
        return all_.emplace(s.st_dev, s.st_ino).second;
    }

private:
    std::set<std::pair<dev_t, ino_t>> all_;
};

// Entries and bytes of what is in a directory, and in those in it.
void count_in(
    directory_stream& entries,
    std::string const& path,
    exclusions const& excluded,
    std::size_t depth,
    std::atomic<bool> const& is_over,
    counted_files& files,
    result::whole& all
) {
    int error = 0;
    while (!is_over) {
        std::vector<directory_entry> const some = entries.next(error);
        if (some.empty()) break;
        for (directory_entry const& each : some) {
            std::string const inside_path = joined(path, each.name);
            bool const is_excluded = excluded.has(inside_path, S_ISDIR(each.status.st_mode));
            if (is_reserved(each.name) || each.error != 0 || is_excluded) continue;
            ++all.entries;
            if (S_ISREG(each.status.st_mode) && files.is_first(each.status))
                all.bytes += static_cast<std::uint64_t>(each.status.st_size);
            if (!S_ISDIR(each.status.st_mode)) continue;
            directory_stream inside = entries.open_inside(each.name, error);
            if (error != 0) continue;
            bool const closes = depth >= directory_stream::open_max;
            if (closes) entries.close_behind(each);
            count_in(inside, inside_path, excluded, depth + 1, is_over, files, all);
            if (!closes) continue;
            entries.reopen_from(inside);
            break;
        }
    }
}

// From a source's own path, or from what it is called.
template <class Place>
std::string path_from(std::string from, Place const& at) {
    std::vector<std::string const*> names;
    for (auto const* p = &at; p->in != nullptr; p = &p->in->what) names.push_back(&p->name);
    for (; !names.empty(); names.pop_back()) from = joined(std::move(from), *names.back());
    return from;
}

}  // namespace

std::string sender::place::path() const { return path_from(top->path, *this); }

std::string sender::place::path_in_copy() const { return path_from(top->name, *this); }

std::size_t sender::place::path_bytes() const noexcept {
    return (in == nullptr ? 0 : in->path_bytes + 1) + name.size();
}

sender::sender(
    link& over, disk& files, sender_options options, failure_report report, result& counters
)
    : link_{over},
      disk_{files},
      options_{std::move(options)},
      report_{std::move(report)},
      result_{counters},
      buffer_{
          over.connection().domain(),
          blocks_of(over) * over.slot_bytes(),
          rcverbs::access_flags::local_write},
      io_{over.io(), files, buffer_.bytes(), blocks_of(over)},
      changes_{over.io()} {
    for (std::size_t i = blocks_of(over); i-- > 0;) free_local_.push_back(i);
}

// A receiver may take long to write a file to the disk, and to read it back.
void sender::note_progress() {
    constexpr std::uint64_t disk_bytes_per_second = std::uint64_t{10} << 20;
    link_.set_idle(disk_work_ == 0, std::chrono::seconds{ended_bytes_ / disk_bytes_per_second});
}

void sender::end_job(std::exception_ptr const& failed) {
    if (failed) link_.close();
    --jobs_;
    changes_.notify();
}

asio::awaitable<void> sender::run(std::vector<source> sources) {
    link_.require_message();  // SLOTS, which may have come with HELLO
    sources_ = std::move(sources);
    ++jobs_;
    asio::co_spawn(link_.io(), listen(), [this](std::exception_ptr e) {
        end_ = e;
        end_job();
    });
    if (options_.wants_total) {
        ++jobs_;
        asio::co_spawn(link_.io(), count(), [this](std::exception_ptr) { end_job(); });
    }
    std::exception_ptr failed;
    try {
        co_await send_all();
    } catch (...) {
        failed = std::current_exception();
        link_.close();
    }
    is_over_ = true;
    while (jobs_ > 0) co_await changes_.wait();
    if (end_) std::rethrow_exception(end_);
    if (failed) std::rethrow_exception(failed);
}

asio::awaitable<void> sender::count() {
    result::whole all;
    co_await disk_.run_long([&] {
        counted_files files;
        for (source const& s : sources_) {
            int error = 0;
            struct stat const status = s.root->status_of(s.path, error);
            if (error != 0 || is_over_) continue;
            ++all.entries;
            if (S_ISREG(status.st_mode) && files.is_first(status))
                all.bytes += static_cast<std::uint64_t>(status.st_size);
            if (!S_ISDIR(status.st_mode)) continue;
            directory_stream entries = directory_stream::open(*s.root, s.path, error);
            if (error == 0) count_in(entries, {}, options_.excluded, 0, is_over_, files, all);
        }
        return 0;
    });
    if (is_over_ || end_ || has_finished_) co_return;
    result_.total = all;
    link_.send(total{all.entries, all.bytes});
}

// --- what the receiver says ----------------------------------------------------------------------

// Until all is done.
asio::awaitable<void> sender::listen() {
    for (;;) {
        copy_message const m = co_await link_.receive();
        bool is_allowed = false;
        if (auto const* const s = std::get_if<slots>(&m)) {
            is_allowed = !remote_ && s->slot_bytes >= block_alignment && s->count > 0;
            remote_ = *s;
            is_used_.assign(s->count, false);
            for (std::size_t i = s->count; i-- > 0;) free_remote_.push_back(i);
        } else if (auto const* const c = std::get_if<credit>(&m)) {
            is_allowed = on(*c);
        } else if (auto const* const b = std::get_if<begin>(&m)) {
            is_allowed = on(*b);
        } else if (auto const* const a = std::get_if<abort_file>(&m)) {
            is_allowed = on(*a);
        } else if (auto const* const d = std::get_if<done>(&m)) {
            is_allowed = on(*d);
        } else if (auto const* const w = std::get_if<wanted>(&m)) {
            is_allowed = on(*w);
        } else if (auto const* const gone = std::get_if<deleted>(&m)) {
            is_allowed = on(*gone);
        } else if (auto const* const lost = std::get_if<not_kept>(&m)) {
            is_allowed = has_finished_ && result_.lost == not_kept{};
            result_.lost = *lost;
        } else if (std::holds_alternative<finished>(m) && has_finished_) {
            co_return;
        }
        if (!is_allowed) {
            link_.close_violated();
            throw boost::system::system_error{rcverbs::channel_errc::malformed_message};
        }
        changes_.notify();
    }
}

bool sender::on(credit const& c) {
    if (c.slot >= is_used_.size() || !is_used_[c.slot]) return false;
    is_used_[c.slot] = false;
    free_remote_.push_back(c.slot);
    return true;
}

bool sender::on(begin const& b) {
    auto const found = pending_.find(b.file);
    if (found == pending_.end() || found->second.sends == nullptr) return false;
    file& f = *found->second.sends;
    if (!waits_for_begin(f) || f.begin || f.error != 0) return false;
    if (b.offset > f.size || (b.offset % block_alignment != 0 && b.offset != f.size)) return false;
    f.begin = b.offset;
    add_to(result_.moved, b.offset);
    add_to(result_.continued, b.offset);
    return true;
}

bool sender::on(abort_file const& a) {
    auto const found = pending_.find(a.file);
    // It may cross the END.
    if (found == pending_.end()) return a.file < next_;
    auto const& sends = found->second.sends;
    if (sends == nullptr || a.error == 0) return false;
    if (sends->error == 0) {
        sends->error = a.error;
        sends->is_error_of_target = true;
    }
    return true;
}

bool sender::on(done const& d) {
    auto const found = pending_.find(d.file);
    if (found == pending_.end()) return false;
    pending const p = std::move(found->second);
    pending_.erase(found);
    bool is_own_error = false;
    if (p.sends != nullptr) {
        // Not before the END.
        if (!p.sends->has_ended) return false;
        --files_;
        ended_bytes_ -= p.sends->size;
        note_progress();
        is_own_error = p.sends->error != 0 && !p.sends->is_error_of_target;
    }
    if (p.names != nullptr) p.names->has_failed = d.error != 0;
    if (p.begins != nullptr) {
        p.begins->has_failed = d.error != 0;
        p.begins->is_around_target = d.error == error_into_itself;
    }
    // A directory is counted once: if it cannot be made, or at its end.
    bool const is_counted =
        p.begins != nullptr ? d.error != 0 : p.ends == nullptr || !p.ends->has_failed;
    if (is_counted && d.error != 0) {
        fail(
            p.at.path(), is_own_error ? why_of_source(p.sends->error) : why_there("target", d.error)
        );
    } else if (is_counted && !options_.lists) {
        ++result_.entries;
        result_.bytes += p.bytes;
    }
    if (p.asked && d.error == 0) {
        add_to(result_.moved, p.bytes);
        add_to(result_.continued, p.bytes);
    }
    if (p.ends != nullptr) --directories_;
    if (p.is_awaited) leave(p.at.in);
    return true;
}

// The receiver does not have it.
bool sender::on(wanted const& w) {
    auto const found = pending_.find(w.file);
    if (found == pending_.end() || (!found->second.asked && !options_.lists)) return false;
    if (options_.lists) {
        pending const p = std::move(found->second);
        pending_.erase(found);
        ++result_.entries;
        add_to(result_.bytes, p.bytes);
        if (options_.listed) options_.listed(p.at.path());
        if (p.is_awaited) leave(p.at.in);
        return p.ends == nullptr;
    }
    wanted_.push_back(std::move(found->second));
    pending_.erase(found);
    return true;
}

bool sender::on(deleted const& d) {
    if (!options_.deletes) return false;
    if (d.error != 0) {
        fail(d.path, not_deleted(why_there("target", d.error)));
        return true;
    }
    ++result_.deleted;
    if (options_.listed_deletion) options_.listed_deletion(d.path);
    return true;
}

bool sender::waits_for_begin(file const& f) const {
    return f.size >= resume_bytes_min || options_.continues;
}

void sender::fail(std::string const& path, std::string const& why) {
    ++result_.failed;
    report_(path, why);
}

void sender::skip(source const& s, int error) { skip(place{nullptr, &s, s.name}, error); }

void sender::skip(place const& at, int error) {
    std::string const path = at.path();
    std::string const in_copy = at.path_in_copy();
    fail(path.empty() ? in_copy : path, why_of_source(error));
    link_.send(skipped{error, in_copy.substr(0, text_bytes_max)});
}

void sender::require_open() const {
    if (end_) std::rethrow_exception(end_);
}

// --- entries -------------------------------------------------------------------------------------

asio::awaitable<void> sender::send_all() {
    for (source const& s : sources_) {
        place at{nullptr, &s, s.name};
        co_await send_entry(std::move(at), {});
    }
    while (!pending_.empty() || !to_end_.empty() || !wanted_.empty()) {
        require_open();
        co_await send_wanted();
        co_await send_ends();
        if (co_await flush_batch() || !wanted_.empty() || !to_end_.empty()) continue;
        if (!pending_.empty()) co_await changes_.wait();
    }
    has_finished_ = true;
    link_.send(finished{});
}

std::size_t sender::batch_room() const {
    return std::min<std::size_t>({link_.slot_bytes(), remote_->slot_bytes, batch_bytes_max});
}

// True if there was something to send.
asio::awaitable<bool> sender::flush_batch() {
    if (batch_.empty()) co_return false;
    co_await wait_for_turn(batch_.size());
    while (free_local_.empty() || free_remote_.empty()) {
        require_open();
        co_await changes_.wait();
    }
    require_open();
    batch_entries_ = 0;
    std::size_t const local = free_local_.back();
    std::size_t const remote = free_remote_.back();
    free_local_.pop_back();
    free_remote_.pop_back();
    is_used_[remote] = true;
    // A receiver that lies may have answered already.
    if (!pending_.empty()) result_.current = pending_.rbegin()->second.at.path();
    auto const into = buffer_.bytes().subspan(local * link_.slot_bytes(), batch_.size());
    // std::ranges::copy() of g++ 12 copies byte by byte.
    std::copy(batch_.begin(), batch_.end(), into.begin());
    batch_.clear();  // and keeps its memory
    write_slot(local, remote, into.size(), [this] { end_job(); });
    ++jobs_;
    link_.send(batch{
        static_cast<std::uint16_t>(remote), static_cast<std::uint32_t>(into.size()), hash_of(into)}
    );
    co_return true;
}

// Of a sender with a limit: until these bytes may follow those before.
asio::awaitable<void> sender::wait_for_turn(std::uint64_t bytes) {
    if (options_.bytes_per_second == 0) co_return;
    using clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds longest{100};
    clock::time_point const turn = std::max(next_turn_, clock::now());
    std::chrono::duration<double> const takes{
        static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second)};
    next_turn_ = turn + std::chrono::duration_cast<clock::duration>(takes);
    asio::steady_timer timer{link_.io()};
    for (clock::time_point now = clock::now(); now < turn && !end_; now = clock::now()) {
        timer.expires_after(std::min<clock::duration>(turn - now, longest));
        co_await timer.async_wait(asio::use_awaitable);
    }
}

// The entry's number, once the receiver may hear of one more. All but files and hard links goes in batches, and files
// with their content, or that are asked for; but nothing that has extended attributes.
asio::awaitable<std::uint64_t> sender::announce(
    entry e,
    pending p,
    std::optional<std::vector<std::byte>> content,
    extended_attributes const& values
) {
    bool const is_file = p.sends != nullptr;
    bool const is_directory = e.type == entry_type::directory;
    while (!remote_ || pending_.size() >= entries_max ||
           (is_file && files_ == receiver::files_max) ||
           (is_directory && directories_ == receiver::directories_max)) {
        require_open();
        if (is_directory) co_await send_ends();
        if (!remote_ || !co_await flush_batch()) co_await changes_.wait();
    }
    require_open();
    e.file = next_;
    if (p.ends != nullptr) {
        e.directory = p.ends->id;
    } else {
        if (p.at.in != nullptr) e.directory = p.at.in->id;
        e.name = p.at.name;
    }
    std::uint64_t const bytes_of_whole = content ? content->size() : 0;
    bool const is_alone = is_file || e.type == entry_type::hard_link || !values.values().empty();
    std::vector<std::byte> message;
    if (content) append(message, whole_file{e, std::move(*content)});
    else append(message, e);
    bool const fits = message.size() <= batch_room();
    bool const is_full =
        batch_.size() + message.size() > batch_room() || batch_entries_ == batch_entries_max;
    if (is_alone || !fits || is_full) co_await flush_batch();
    if (is_file) ++files_;
    if (is_directory) ++directories_;
    if (p.begins != nullptr) p.begins->id = e.file;
    if (p.is_awaited) ++p.at.in->entries;
    if (is_file) p.sends->id = e.file;
    ++next_;
    pending_.emplace(e.file, std::move(p));
    if (is_alone || !fits) {
        for (attribute const& each : values.parts()) link_.send(each);
        link_.send(e);
        co_return e.file;
    }
    add_to(result_.moved, bytes_of_whole);
    batch_.insert(batch_.end(), message.begin(), message.end());
    ++batch_entries_;
    co_return e.file;
}

void sender::leave(std::shared_ptr<directory> d) {
    if (--d->entries == 0) to_end_.push_back(std::move(d));
}

// Of a directory, which has been closed.
extended_attributes sender::read_values(directory const& d, extended& left) const {
    int error = 0;
    descriptor const opened =
        d.what.top->root->open_at(d.what.path(), O_RDONLY | O_DIRECTORY, error);
    struct stat s {};
    bool const is_it =
        error == 0 && ::fstat(opened.get(), &s) == 0 && file_id::of(s) == file_id::of(d.status);
    if (is_it) return read_extended(opened.get(), options_.keeps, left);
    left = d.has;
    return {};
}

// Directories in which all is done get their mode and time.
asio::awaitable<void> sender::send_ends() {
    while (!to_end_.empty()) {
        auto const d = std::move(to_end_.front());
        to_end_.pop_front();
        pending p;
        p.at = d->what;
        p.ends = d;
        entry e = entry_of(entry_type::directory_end, d->status);
        extended left{
            d->has.attributes && !options_.keeps.attributes, d->has.acl && !options_.keeps.acl};
        extended_attributes values;
        if ((d->has & options_.keeps).is_any()) {
            co_await link_.wait_for_room();
            values = co_await on_disk([&] { return read_values(*d, left); });
        }
        e.has_attributes = left.attributes;
        e.has_acl = left.acl;
        co_await announce(std::move(e), std::move(p), {}, values);
        if (d->what.in != nullptr) leave(d->what.in);
    }
}

asio::awaitable<void> sender::send_entry(place at, std::optional<struct stat> known) {
    co_await link_.wait_for_room();
    tree const& root = *at.top->root;
    int error = 0;
    if (!known) known = co_await on_disk([&] { return root.status_of(at.path(), error); });
    struct stat const status = *known;
    if (error == 0 && at.path_bytes() > text_bytes_max) error = ENAMETOOLONG;
    if (error != 0) co_return skip(at, error);
    if (S_ISREG(status.st_mode) && options_.lists) {
        entry e = entry_of(entry_type::file, status);
        e.asks = true;
        pending p;
        p.at = std::move(at);
        p.bytes = e.size;
        co_await announce(std::move(e), std::move(p));
        co_return;
    }
    if (S_ISREG(status.st_mode)) {
        bool const is_linked = status.st_nlink > 1 && co_await send_hard_link(at, status);
        if (!is_linked) co_await send_file(std::move(at));
        co_return;
    }
    if (S_ISDIR(status.st_mode)) {
        co_await send_directory(std::move(at), nullptr);
        co_return;
    }
    if (!S_ISLNK(status.st_mode)) co_return skip(at, error_type_not_copied);
    struct stat opened {};
    std::string target =
        co_await on_disk([&] { return root.target_of_link(at.path(), opened, error); });
    if (error != 0) co_return skip(at, error);
    entry e = entry_of(entry_type::symbolic_link, opened);
    e.target = std::move(target);
    pending p;
    p.at = std::move(at);
    co_await announce(std::move(e), std::move(p));
}

// False if it could not be opened.
asio::awaitable<bool> sender::send_directory(place at, position const* from) {
    int error = at.path_bytes() > text_bytes_max ? ENAMETOOLONG : 0;
    directory_stream all;
    if (error == 0)
        all = co_await on_disk([&] {
            return from != nullptr ? from->above.open_inside(from->at.name, error)
                                   : directory_stream::open(*at.top->root, at.path(), error);
        });
    if (error != 0) {
        skip(at, error);
        co_return false;
    }
    if (from != nullptr && from->closes) from->above.close_behind(from->at);
    auto const here = std::make_shared<directory>();
    here->path_bytes = at.path_bytes();
    here->what = std::move(at);
    // The rights are those of the directory that is read.
    here->status = all.status();
    here->has = all.has();
    bool const is_source = here->what.in == nullptr;
    here->depth = is_source ? 0 : here->what.in->depth + 1;
    if (!is_source) ++here->what.in->entries;
    pending p;
    p.at = here->what;
    p.begins = here;
    entry e = entry_of(entry_type::directory, here->status);
    e.identity = identity_of(file_id::of(here->status));
    std::uint64_t const id = co_await announce(std::move(e), std::move(p));
    // The answer says whether the target is in this source.
    while (is_source && pending_.contains(id)) {
        require_open();
        if (!co_await flush_batch()) co_await changes_.wait();
    }
    while (!here->is_around_target) {
        std::vector<directory_entry> const some = co_await on_disk([&] { return all.next(error); });
        if (error != 0) skip(here->what, error);
        if (some.empty()) break;
        co_await send_some(some, all, here);
    }
    if (from != nullptr && from->closes)
        co_await on_disk([&] {
            from->above.reopen_from(all);
            return 0;
        });
    leave(here);
    co_await send_ends();
    co_return true;
}

bool sender::is_batched(directory_entry const& e, bool asks) const {
    return is_small(e, asks) && (asks || !options_.verifies || S_ISLNK(e.status.st_mode));
}

// Until a directory that closes this one.
asio::awaitable<void> sender::send_some(
    std::vector<directory_entry> const& some,
    directory_stream& all,
    std::shared_ptr<directory> const& here
) {
    co_await send_wanted();
    // A peer's patterns and long paths can take a while: not on the thread of all clients.
    std::vector<directory_entry const*> copied;
    auto const leave_out = [&] {
        std::string const above = here->what.path_in_copy();
        for (directory_entry const& each : some) {
            std::string const path = joined(above, each.name);
            bool const is_directory = S_ISDIR(each.status.st_mode);
            if (!options_.excluded.has(path_below_source(path), is_directory))
                copied.push_back(&each);
        }
        return 0;
    };
    if (!options_.excluded.is_empty()) co_await on_disk(leave_out);
    else
        for (directory_entry const& each : some) copied.push_back(&each);
    std::vector<directory_entry const*> small;
    for (directory_entry const* const kept : copied) {
        directory_entry const& each = *kept;
        if (here->is_around_target) co_return;
        if (each.error == ENOENT) continue;
        place next{here, here->what.top, each.name};
        // Of another copy, which is not finished.
        int const error = is_reserved(each.name) ? error_name_reserved : each.error;
        if (error != 0) {
            co_await link_.wait_for_room();
            skip(next, error);
            continue;
        }
        if (is_batched(each, asks_first())) {
            small.push_back(&each);
            continue;
        }
        if (!S_ISDIR(each.status.st_mode)) {
            co_await send_entry(std::move(next), each.status);
            continue;
        }
        position const from{all, each, here->depth >= directory_stream::open_max};
        if (from.closes)
            co_await send_small(all.directory(), std::exchange(small, {}), here, asks_first());
        if (co_await send_directory(std::move(next), &from) && from.closes) co_return;
    }
    co_await send_small(all.directory(), std::move(small), here, asks_first());
}

// In batches, and what cannot be sent so as any other entry.
asio::awaitable<void> sender::send_small(
    descriptor const& from,
    std::vector<directory_entry const*> some,
    std::shared_ptr<directory> in,
    bool asks
) {
    if (some.empty()) co_return;
    co_await link_.wait_for_room();
    std::vector<small_entry> all =
        co_await on_disk([&] { return read_small(from, some, asks, options_.keeps); });
    for (small_entry& each : all) {
        place next{in, in->what.top, each.from->name};
        if (each.error == 0 && next.path_bytes() > text_bytes_max) each.error = ENAMETOOLONG;
        if (each.error != 0) {
            co_await link_.wait_for_room();
            skip(next, each.error);
            continue;
        }
        bool const is_whole = each.what.type == entry_type::file && !each.what.asks;
        // With room for the head of a FILE, and its name.
        std::size_t const bytes =
            message_bytes_max - 2 * text_bytes_max + next.name.size() + each.bytes.size();
        while (!remote_) {
            require_open();
            co_await changes_.wait();
        }
        if (each.is_other || (is_whole && message_head_bytes + bytes > batch_room())) {
            co_await send_entry(std::move(next), {});
            continue;
        }
        pending p;
        p.at = std::move(next);
        p.bytes = each.what.size;
        p.is_awaited = each.what.asks;
        if (each.what.asks) p.asked = *each.from;
        std::optional<std::vector<std::byte>> content;
        if (is_whole) content = std::move(each.bytes);
        co_await announce(std::move(each.what), std::move(p), std::move(content));
    }
}

// What the receiver does not have.
asio::awaitable<void> sender::send_wanted() {
    while (!wanted_.empty()) {
        std::deque<pending> const some = std::exchange(wanted_, {});
        for (auto at = some.begin(); at != some.end();) {
            std::shared_ptr<directory> const in = at->at.in;
            place const& above = in->what;
            std::vector<directory_entry const*> small;
            auto const end =
                std::find_if(at, some.end(), [&](auto const& p) { return p.at.in != in; });
            std::size_t const entries = static_cast<std::size_t>(end - at);
            for (; at != end; ++at) {
                if (is_batched(*at->asked, false)) {
                    small.push_back(&*at->asked);
                    continue;
                }
                place next = at->at;
                co_await send_entry(std::move(next), {});
            }
            int error = 0;
            descriptor from;
            if (!small.empty())
                from = co_await on_disk([&] {
                    return above.top->root->open_at(above.path(), O_RDONLY | O_DIRECTORY, error);
                });
            for (std::size_t i = 0; i < small.size(); i += directory_stream::entries_max) {
                auto const first = small.begin() + static_cast<std::ptrdiff_t>(i);
                auto const left = std::min(directory_stream::entries_max, small.size() - i);
                std::vector<directory_entry const*> next{
                    first, first + static_cast<std::ptrdiff_t>(left)};
                co_await send_small(from, std::move(next), in, false);
            }
            // They counted as asked for until now.
            for (std::size_t i = 0; i < entries; ++i) leave(in);
        }
    }
}

// False if it is the first of its names, or the first one could not be copied.
asio::awaitable<bool> sender::send_hard_link(place const& at, struct stat const& status) {
    auto const found = linked_.find({status.st_dev, status.st_ino});
    if (found == linked_.end()) co_return false;
    linked const& first = found->second;
    while (pending_.contains(first.id)) {
        require_open();
        co_await changes_.wait();
    }
    if (first.has_failed) co_return false;
    int error = 0;
    struct stat const now =
        co_await on_disk([&] { return at.top->root->status_of(at.path(), error); });
    bool const is_same_file = error == 0 && now.st_dev == status.st_dev &&
                              now.st_ino == status.st_ino &&
                              // An inode can be used again, and a file can change.
                              now.st_size == first.size && is_same(now.st_mtim, first.mtime);
    if (!is_same_file) co_return false;
    entry e = entry_of(entry_type::hard_link, status);
    e.target = first.path;
    pending p;
    p.at = at;
    p.is_awaited = at.in != nullptr;
    co_await announce(std::move(e), std::move(p));
    co_return true;
}

// --- files ---------------------------------------------------------------------------------------

asio::awaitable<void> sender::send_file(place at) {
    int error = 0;
    auto const f = std::make_shared<file>();
    extended left;
    extended_attributes values;
    f->reads = co_await on_disk([&] {
        // Without waiting for a pipe that has taken the file's name.
        descriptor d = at.top->root->open_at(at.path(), O_RDONLY | O_NONBLOCK, error);
        if (error == 0 && ::fstat(d.get(), &f->before) != 0) error = errno;
        if (error == 0 && !S_ISREG(f->before.st_mode)) error = error_source_changed;
        if (error == 0) {
            off_t const gap = ::lseek(d.get(), 0, SEEK_HOLE);
            f->is_sparse = gap >= 0 && gap < f->before.st_size;
            extended const has = extended_of(d.get());
            left = {has.attributes && !options_.keeps.attributes, has.acl && !options_.keeps.acl};
            if ((has & options_.keeps).is_any())
                values = read_extended(d.get(), options_.keeps, left);
        }
        return d;
    });
    std::pair const inode{f->before.st_dev, f->before.st_ino};
    bool const is_linked = error == 0 && f->before.st_nlink > 1;
    if (is_linked && !linked_.contains(inode)) {
        linked_bytes_ += at.path_bytes() + receiver::linkable_bytes_besides;
        if (linked_bytes_ > receiver::linkable_bytes_max) error = error_names_too_many;
    }
    if (error != 0) co_return skip(at, error);
    f->size = static_cast<std::uint64_t>(f->before.st_size);
    entry e = entry_of(entry_type::file, f->before);
    e.is_sparse = f->is_sparse;
    e.has_names = is_linked;
    e.has_attributes = left.attributes;
    e.has_acl = left.acl;
    pending p;
    p.at = at;
    p.bytes = f->size;
    p.sends = f;
    p.is_awaited = at.in != nullptr;
    linked* names = nullptr;
    if (is_linked) {
        names = &linked_[inode];
        *names = {at.path_in_copy(), 0, false, f->before.st_size, f->before.st_mtim};
        p.names = names;
    }
    std::uint64_t const id = co_await announce(std::move(e), std::move(p), {}, values);
    if (names != nullptr) names->id = id;
    result_.current = at.path();
    ++jobs_;
    asio::co_spawn(link_.io(), send_parts(f), [this](std::exception_ptr failed) {
        end_job(failed);
    });
}

asio::awaitable<void> sender::send_parts(std::shared_ptr<file> f) {
    while (waits_for_begin(*f) && !f->begin && f->error == 0 && !end_) co_await changes_.wait();
    std::uint64_t const slot_bytes = std::min<std::uint64_t>(
        link_.slot_bytes(), remote_->slot_bytes - remote_->slot_bytes % block_alignment
    );
    std::uint64_t at = f->begin.value_or(0);
    std::uint64_t end_of_data = f->is_sparse ? at : f->size;
    while (at < f->size && f->error == 0 && !end_) {
        if (at == end_of_data) {
            extent const e =
                co_await on_disk([&] { return data_from(f->reads.get(), at, f->size); });
            if (e.error != 0) {
                f->error = e.error;
                break;
            }
            if (e.begin > at) {
                auto const gap = std::make_shared<part>();
                gap->offset = at;
                gap->bytes = e.begin - at;
                gap->is_hole = gap->is_ready = true;
                f->parts.push_back(gap);
                flush(f);
            }
            at = e.begin;
            end_of_data = e.end;
            continue;
        }
        co_await wait_for_turn(std::min(slot_bytes, end_of_data - at));
        while ((free_local_.empty() || free_remote_.empty()) && !end_) co_await changes_.wait();
        if (end_ || f->error != 0) break;
        auto const p = std::make_shared<part>();
        p->offset = at;
        p->bytes = std::min(slot_bytes, end_of_data - at);
        p->local = free_local_.back();
        p->remote = free_remote_.back();
        free_local_.pop_back();
        free_remote_.pop_back();
        f->parts.push_back(p);
        at += p->bytes;
        ++jobs_;
        asio::co_spawn(link_.io(), read_part(f, p), [this, p](std::exception_ptr failed) {
            p->is_ready = true;
            end_job(failed);
        });
    }
    while (!f->parts.empty() || f->writes_under_way > 0) {
        co_await changes_.wait();
        if (end_ && !f->parts.empty() && f->parts.front()->is_ready) flush(f);
    }
    // Also closes it: that of a file that has been removed meanwhile frees its blocks.
    auto look_again = [reads = std::move(f->reads), &f] {
        struct stat after {};
        if (::fstat(reads.get(), &after) != 0) return errno;
        return has_changed(f->before, after) || has_more(reads.get(), f->size)
                   ? error_source_changed
                   : 0;
    };
    int const error = co_await on_disk(std::move(look_again));
    if (f->error == 0) f->error = error;
    f->has_ended = true;
    ended_bytes_ += f->size;
    note_progress();
    if (!end_) link_.send(end{f->id, f->error});
}

asio::awaitable<void> sender::read_part(std::shared_ptr<file> f, std::shared_ptr<part> p) {
    auto const into = buffer_.bytes().subspan(p->local * link_.slot_bytes(), p->bytes);
    int error = f->error;
    if (error == 0) {
        ++disk_work_;
        note_progress();
        error = co_await io_.read(f->reads.get(), p->offset, into);
        --disk_work_;
        note_progress();
    }
    if (error == 0) p->checksum = hash_of(into);
    if (f->error == 0) f->error = error;
    p->is_ready = true;
    flush(f);
}

// A message that is sent afterwards arrives behind what was written, on one queue pair. If the write fails, the
// connection ends.
void sender::write_slot(
    std::size_t local, std::size_t remote, std::uint64_t bytes, std::function<void()> then
) {
    rcverbs::remote_region const to{
        remote_->address + remote * remote_->slot_bytes,
        bytes,
        rcverbs::remote_key{remote_->key},
        rcverbs::access_flags::remote_write};
    auto const from = buffer_.slice(local * link_.slot_bytes(), bytes);
    link_.connection().async_write(
        from,
        to,
        [this, local, then = std::move(then)](rcverbs::error_code const&, std::size_t) {
            free_local_.push_back(local);
            then();
        }
    );
}

// Sends what comes next, or nothing more of a file that has failed.
void sender::flush(std::shared_ptr<file> const& f) {
    while (!f->parts.empty() && f->parts.front()->is_ready) {
        auto const p = std::move(f->parts.front());
        f->parts.pop_front();
        if (f->error != 0 || end_) {
            if (p->is_hole) continue;
            free_local_.push_back(p->local);
            free_remote_.push_back(p->remote);
            continue;
        }
        result_.moved += p->bytes;
        if (p->is_hole) {
            link_.send(hole{f->id, p->offset, p->bytes});
            continue;
        }
        is_used_[p->remote] = true;
        ++jobs_;
        ++f->writes_under_way;
        write_slot(p->local, p->remote, p->bytes, [this, f] {
            --f->writes_under_way;
            end_job();
        });
        link_.send(block{
            f->id,
            p->offset,
            static_cast<std::uint32_t>(p->bytes),
            static_cast<std::uint16_t>(p->remote),
            p->checksum});
    }
    changes_.notify();
}

}  // namespace copy
