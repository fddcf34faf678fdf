#include "rdma-copy/sender.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <rcverbs/channel_error.hpp>

namespace copy {

namespace {

entry entry_of(entry_type type, std::string name, struct stat const& s) {
    entry e;
    e.type = type;
    e.path = std::move(name);
    e.mode = static_cast<std::uint16_t>(s.st_mode & 07777U);
    e.seconds = s.st_mtim.tv_sec;
    e.nanoseconds = static_cast<std::uint32_t>(s.st_mtim.tv_nsec);
    if (type == entry_type::file) e.size = static_cast<std::uint64_t>(s.st_size);
    return e;
}

bool is_same(timespec const& a, timespec const& b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

// All of it, or ESTALE: the file has become shorter.
int read_all(int fd, std::span<std::byte> into, std::uint64_t offset) {
    while (!into.empty()) {
        ssize_t const n = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : ESTALE;
        into = into.subspan(static_cast<std::size_t>(n));
        offset += static_cast<std::uint64_t>(n);
    }
    return 0;
}

}  // namespace

sender::sender(link& over, disk& files, failure_report report)
    : link_{over},
      disk_{files},
      report_{std::move(report)},
      buffer_{
          over.connection().domain(),
          over.slots() * over.slot_bytes(),
          rcverbs::access_flags::local_write},
      changes_{over.io()} {
    for (std::size_t i = over.slots(); i-- > 0;) free_local_.push_back(i);
}

asio::awaitable<void> sender::run(std::vector<source> sources) {
    ++jobs_;
    asio::co_spawn(link_.io(), listen(), [this](std::exception_ptr e) {
        end_ = e;
        --jobs_;
        changes_.notify();
    });
    std::exception_ptr failed;
    try {
        co_await send_all(std::move(sources));
    } catch (...) {
        failed = std::current_exception();
        link_.close();
    }
    while (jobs_ > 0) co_await changes_.wait();
    if (end_) std::rethrow_exception(end_);
    if (failed) std::rethrow_exception(failed);
}

// --- what the receiver says ----------------------------------------------------------------------

// Until all is done.
asio::awaitable<void> sender::listen() {
    for (;;) {
        copy_message const m = co_await link_.receive();
        bool is_allowed = false;
        if (auto const* const s = std::get_if<slots>(&m)) {
            is_allowed = !remote_;
            remote_ = *s;
            is_used_.assign(s->count, false);
            for (std::size_t i = s->count; i-- > 0;) free_remote_.push_back(i);
        } else if (auto const* const c = std::get_if<credit>(&m)) {
            is_allowed = on(*c);
        } else if (auto const* const a = std::get_if<abort_file>(&m)) {
            is_allowed = on(*a);
        } else if (auto const* const d = std::get_if<done>(&m)) {
            is_allowed = on(*d);
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

bool sender::on(abort_file const& a) {
    auto const found = pending_.find(a.file);
    // It may cross the END.
    if (found == pending_.end()) return a.file < next_;
    auto const& reads = found->second.reads;
    if (reads == nullptr || a.error == 0) return false;
    if (reads->error == 0) reads->error = a.error;
    return true;
}

bool sender::on(done const& d) {
    auto const found = pending_.find(d.file);
    if (found == pending_.end()) return false;
    pending const p = std::move(found->second);
    pending_.erase(found);
    if (p.reads != nullptr) {
        // Not before the END.
        if (p.reads->reads.is_open()) return false;
        --files_;
    }
    if (d.error != 0) {
        fail(p.path, d.error);
    } else {
        ++result_.entries;
        result_.bytes += p.bytes;
    }
    return true;
}

void sender::fail(std::string const& path, int error) {
    ++result_.failed;
    report_(path, why(error));
}

void sender::require_open() const {
    if (end_) std::rethrow_exception(end_);
}

// --- what is sent --------------------------------------------------------------------------------

asio::awaitable<void> sender::send_all(std::vector<source> sources) {
    for (source& s : sources) co_await send_entry(std::move(s));
    while (!pending_.empty()) {
        require_open();
        co_await changes_.wait();
    }
    has_finished_ = true;
    link_.send(finished{});
}

// The entry's number, once the receiver may hear of one more.
asio::awaitable<std::uint64_t> sender::announce(
    entry e, std::string const& path, std::shared_ptr<file> f
) {
    while (!remote_ || pending_.size() >= entries_max ||
           (f != nullptr && files_ == receiver::files_max)) {
        require_open();
        co_await changes_.wait();
    }
    require_open();
    if (f != nullptr) ++files_;
    e.file = next_++;
    pending_.emplace(e.file, pending{path, e.size, std::move(f)});
    link_.send(e);
    co_return e.file;
}

asio::awaitable<void> sender::send_entry(source s) {
    int error = 0;
    struct stat const status = co_await disk_.run([&] { return s.root->status_of(s.path, error); });
    if (error == 0 && s.name.size() > text_bytes_max) error = ENAMETOOLONG;
    if (error != 0) co_return fail(s.path, error);
    if (S_ISREG(status.st_mode)) co_return co_await send_file(std::move(s));
    if (S_ISDIR(status.st_mode)) co_return co_await send_directory(std::move(s), status);
    if (!S_ISLNK(status.st_mode)) {
        ++result_.failed;
        co_return report_(s.path, "neither a file, nor a directory, nor a symbolic link: skipped");
    }
    entry e = entry_of(entry_type::symbolic_link, s.name, status);
    e.target = co_await disk_.run([&] { return s.root->target_of_link(s.path, error); });
    if (error != 0) co_return fail(s.path, error);
    co_await announce(std::move(e), s.path);
}

asio::awaitable<void> sender::send_directory(source s, struct stat status) {
    int error = 0;
    auto const all = co_await disk_.run([&] { return s.root->list(s.path, error); });
    if (error != 0) co_return fail(s.path, error);
    co_await announce(entry_of(entry_type::directory, s.name, status), s.path);
    for (directory_entry const& each : all) {
        std::string const path = s.path.empty() ? each.name : s.path + '/' + each.name;
        source next{s.root, path, s.name + '/' + each.name};
        co_await send_entry(std::move(next));
    }
    // Its files are finished before it gets its time.
    while (std::ranges::any_of(pending_, [](auto const& p) { return p.second.reads != nullptr; })) {
        require_open();
        co_await changes_.wait();
    }
    co_await announce(entry_of(entry_type::directory_end, s.name, status), s.path);
}

asio::awaitable<void> sender::send_file(source s) {
    int error = 0;
    auto const f = std::make_shared<file>();
    struct stat before {};
    f->reads = co_await disk_.run([&] {
        descriptor d = s.root->open_at(s.path, O_RDONLY, error);
        if (error == 0 && ::fstat(d.get(), &before) != 0) error = errno;
        return d;
    });
    if (error == 0 && !S_ISREG(before.st_mode)) error = ESTALE;
    if (error != 0) co_return fail(s.path, error);
    f->size = static_cast<std::uint64_t>(before.st_size);
    std::uint64_t const id =
        co_await announce(entry_of(entry_type::file, s.name, before), s.path, f);
    ++jobs_;
    asio::co_spawn(link_.io(), send_blocks(id, f, before), [this](std::exception_ptr) {
        --jobs_;
        changes_.notify();
    });
}

asio::awaitable<void> sender::send_blocks(
    std::uint64_t id, std::shared_ptr<file> f, struct stat before
) {
    std::uint64_t const slot_bytes =
        std::min<std::uint64_t>(link_.slot_bytes(), remote_->slot_bytes);
    for (std::uint64_t at = 0; at < f->size && f->error == 0; at += slot_bytes) {
        while (free_local_.empty() || free_remote_.empty()) {
            if (end_) break;
            co_await changes_.wait();
        }
        if (end_ || f->error != 0) break;
        std::size_t const local = free_local_.back();
        std::size_t const remote = free_remote_.back();
        free_local_.pop_back();
        free_remote_.pop_back();
        ++f->blocks_under_way;
        asio::co_spawn(
            link_.io(),
            send_block(id, f, at, local, remote),
            [this, f, local](std::exception_ptr) {
                free_local_.push_back(local);
                --f->blocks_under_way;
                changes_.notify();
            }
        );
    }
    while (f->blocks_under_way > 0) co_await changes_.wait();
    struct stat after {};
    int const error =
        co_await disk_.run([&] { return ::fstat(f->reads.get(), &after) != 0 ? errno : 0; });
    if (f->error == 0 && error != 0) f->error = error;
    bool const has_changed = after.st_size != before.st_size ||
                             !is_same(after.st_mtim, before.st_mtim) ||
                             !is_same(after.st_ctim, before.st_ctim);
    if (f->error == 0 && has_changed) f->error = ESTALE;
    f->reads = {};
    if (!end_) link_.send(end{id, f->error});
}

asio::awaitable<void> sender::send_block(
    std::uint64_t id,
    std::shared_ptr<file> f,
    std::uint64_t offset,
    std::size_t local,
    std::size_t remote
) {
    std::uint64_t const most = std::min<std::uint64_t>(link_.slot_bytes(), remote_->slot_bytes);
    auto const bytes = static_cast<std::size_t>(std::min(most, f->size - offset));
    block b{id, offset, static_cast<std::uint32_t>(bytes), static_cast<std::uint16_t>(remote), {}};
    std::size_t const begin = local * link_.slot_bytes();
    int const error = co_await disk_.run([&] {
        auto const into = buffer_.bytes().subspan(begin, bytes);
        int const failed = read_all(f->reads.get(), into, offset);
        if (failed == 0) b.checksum = hash_of(into);
        return failed;
    });
    if (error != 0 || f->error != 0 || end_) {
        if (f->error == 0) f->error = error;
        free_remote_.push_back(remote);
        co_return;
    }
    rcverbs::remote_region const to{
        remote_->address + remote * remote_->slot_bytes,
        bytes,
        rcverbs::remote_key{remote_->key},
        rcverbs::access_flags::remote_write};
    co_await link_.connection().async_write(buffer_.slice(begin, bytes), to, asio::use_awaitable);
    is_used_[remote] = true;
    link_.send(b);
}

}  // namespace copy
