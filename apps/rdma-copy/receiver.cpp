#include "rdma-copy/receiver.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include <rcverbs/channel_error.hpp>

namespace copy {

namespace {

timespec mtime_of(entry const& e) {
    return {static_cast<time_t>(e.seconds), static_cast<long>(e.nanoseconds)};
}

// Programs that run as someone else must not come from a peer.
unsigned mode_of(entry const& e) { return e.mode & 0777U; }

}  // namespace

std::string why(int error) {
    if (error == ESTALE) return "the source has changed while it was copied";
    if (error == EBADMSG) return "the data has changed on its way";
    return std::strerror(error);
}

std::string destination::place_of(std::string const& path) const {
    std::string inside = path;
    if (name) inside.replace(0, std::min(path.find('/'), path.size()), *name);
    return directory.empty() ? inside : directory + '/' + inside;
}

destination destination_of(
    tree const& root, std::string const& name, bool is_into_directory, int& error
) {
    destination to{&root, name, {}, false};
    error = 0;
    if (name.empty()) return to;
    if (!is_inside(name)) {
        error = EINVAL;
        return to;
    }
    int absent = 0;
    struct stat const s = root.status_of(name, absent);
    if (absent == 0 && S_ISDIR(s.st_mode)) return to;
    if (is_into_directory) {
        error = root.make_directory(name);
        return to;
    }
    std::size_t const slash = name.rfind('/');
    bool const is_in_root = slash == std::string::npos;
    to.directory = is_in_root ? "" : name.substr(0, slash);
    to.name = is_in_root ? name : name.substr(slash + 1);
    return to;
}

receiver::receiver(link& over, disk& files, destination to, failure_report report)
    : link_{over},
      disk_{files},
      to_{std::move(to)},
      report_{std::move(report)},
      slots_{
          over.connection().domain(),
          over.slots() * over.slot_bytes(),
          rcverbs::access_flags::local_write | rcverbs::access_flags::remote_write},
      is_granted_(over.slots(), true),
      job_ends_{over.io()} {}

asio::awaitable<void> receiver::run() {
    std::exception_ptr failed;
    try {
        co_await serve();
    } catch (...) {
        failed = std::current_exception();
    }
    // Threads use the slots and files of this object.
    while (jobs_ > 0) co_await job_ends_.wait();
    if (failed) std::rethrow_exception(failed);
}

asio::awaitable<void> receiver::serve() {
    rcverbs::remote_region const all = slots_.remote();
    link_.send(slots{
        all.address(),
        all.key().value,
        static_cast<std::uint32_t>(link_.slot_bytes()),
        static_cast<std::uint16_t>(link_.slots())});
    for (;;) {
        copy_message m = co_await link_.receive();
        bool is_allowed = false;
        if (auto* const e = std::get_if<entry>(&m)) is_allowed = co_await on(std::move(*e));
        else if (auto const* const b = std::get_if<block>(&m)) is_allowed = on(*b);
        else if (auto const* const e2 = std::get_if<end>(&m)) is_allowed = on(*e2);
        else if (std::holds_alternative<finished>(m) && files_.empty()) co_return link_.send(m);
        if (is_allowed) continue;
        link_.close_violated();
        throw boost::system::system_error{rcverbs::channel_errc::malformed_message};
    }
}

// False if the sender must not do that.
asio::awaitable<bool> receiver::on(entry e) {
    if (e.file != next_ || !is_inside(e.path)) co_return false;
    ++next_;
    std::string path = to_.place_of(e.path);
    int error = 0;
    switch (e.type) {
    case entry_type::file: {
        if (files_.size() == files_max) co_return false;
        file f{std::move(e), std::move(path), {}, 0, 0, false, 0};
        f.writes = co_await disk_.run([&] {
            return incoming_file::create(*to_.root, f.path, f.what.size, to_.replaces, error);
        });
        f.error = error;
        std::uint64_t const id = f.what.file;
        if (error != 0) link_.send(abort_file{id, error});
        files_.emplace(id, std::move(f));
        co_return true;
    }
    case entry_type::directory:
        error = co_await disk_.run([&] { return to_.root->make_directory(path); });
        break;
    case entry_type::directory_end:
        error = co_await disk_.run([&] {
            return to_.root->set_mode_and_time(path, mode_of(e), mtime_of(e));
        });
        break;
    case entry_type::symbolic_link:
        error = co_await disk_.run([&] {
            return to_.root->make_link(path, e.target, mtime_of(e), to_.replaces);
        });
        break;
    }
    report(e.file, path, error);
    co_return true;
}

bool receiver::on(block const& b) {
    auto const found = files_.find(b.file);
    bool const is_allowed = found != files_.end() && !found->second.has_ended &&
                            b.slot < is_granted_.size() && is_granted_[b.slot] &&
                            b.bytes <= link_.slot_bytes() && b.offset <= found->second.what.size &&
                            b.bytes <= found->second.what.size - b.offset;
    if (!is_allowed) return false;
    is_granted_[b.slot] = false;
    ++found->second.blocks_under_way;
    ++jobs_;
    asio::co_spawn(link_.io(), store(b), asio::detached);
    return true;
}

asio::awaitable<void> receiver::store(block b) {
    file& f = files_.at(b.file);  // there as long as a block is under way
    std::span<std::byte const> const bytes =
        slots_.bytes().subspan(b.slot * link_.slot_bytes(), b.bytes);
    if (f.error == 0) {
        int const error = co_await disk_.run([&] {
            if (hash_of(bytes) != b.checksum) return EBADMSG;
            return f.writes.write(b.offset, bytes.data(), bytes.size());
        });
        if (error == 0) f.bytes += b.bytes;
        if (error != 0 && f.error == 0) {
            f.error = error;
            link_.send(abort_file{b.file, error});
        }
    }
    is_granted_[b.slot] = true;
    link_.send(credit{b.slot});
    --f.blocks_under_way;
    finish_if_complete(b.file, f);
    --jobs_;
    job_ends_.notify();
}

bool receiver::on(end const& e) {
    auto const found = files_.find(e.file);
    if (found == files_.end() || found->second.has_ended) return false;
    found->second.has_ended = true;
    if (e.error != 0 && found->second.error == 0) found->second.error = e.error;
    finish_if_complete(e.file, found->second);
    return true;
}

void receiver::finish_if_complete(std::uint64_t id, file& f) {
    if (!f.has_ended || f.blocks_under_way > 0) return;
    ++jobs_;
    asio::co_spawn(link_.io(), finish(id), asio::detached);
}

asio::awaitable<void> receiver::finish(std::uint64_t id) {
    file& f = files_.at(id);
    // A sender that leaves something out.
    if (f.error == 0 && f.bytes != f.what.size) f.error = EBADMSG;
    int const error = co_await disk_.run([&] {
        int const failed =
            f.error != 0
                ? f.error
                : f.writes.finish(f.what.size, mode_of(f.what), mtime_of(f.what), to_.replaces);
        // Unlinks it if it has no other name.
        f.writes = {};
        return failed;
    });
    if (error == 0) result_.bytes += f.bytes;
    std::string const path = std::move(f.path);
    files_.erase(id);
    report(id, path, error);
    --jobs_;
    job_ends_.notify();
}

void receiver::report(std::uint64_t id, std::string const& path, int error) {
    ++(error == 0 ? result_.entries : result_.failed);
    if (error != 0) report_(path, why(error));
    link_.send(done{id, error});
}

}  // namespace copy
