#include "reservation_keeper.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "error/detailed_error.hpp"

namespace rcverbs::nvme::detail {

namespace {

[[noreturn]] void refuse(
    int number, std::filesystem::path const& file, std::string const& what = {}
) {
    error_code const ec{number, boost::system::system_category()};
    throw rcverbs::detail::detailed_error{
        ec, file.string() + ": " + (what.empty() ? ec.message() : what)};
}

std::filesystem::path beside(std::filesystem::path const& file, char const* ending) {
    std::filesystem::path other = file;
    other += ending;
    return other;
}

bool write_all(int fd, std::string const& text) noexcept {
    for (std::size_t at = 0; at < text.size();) {
        ssize_t const n = ::write(fd, text.data() + at, text.size() - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += static_cast<std::size_t>(n);
    }
    return true;
}

}  // namespace

std::shared_ptr<reservation_keeper> reservation_keeper::open(
    std::filesystem::path const& file, uuid_bytes const& disk
) {
    static std::mutex mutex;
    static std::map<std::filesystem::path, std::weak_ptr<reservation_keeper>> all;
    std::lock_guard const lock{mutex};
    std::error_code ec;
    auto const place = std::filesystem::weakly_canonical(file, ec);
    std::weak_ptr<reservation_keeper>& known = all[ec ? file : place];
    if (auto found = known.lock()) {
        if (found->disk_ != disk) refuse(EINVAL, file, "it has the reservations of another disk");
        return found;
    }
    std::shared_ptr<reservation_keeper> made{new reservation_keeper{file, disk}};
    known = made;
    std::erase_if(all, [](auto const& each) { return each.second.expired(); });
    return made;
}

reservation_keeper::reservation_keeper(std::filesystem::path file, uuid_bytes const& disk)
    : file_{std::move(file)},
      disk_{disk},
      // Not the file itself, of which another one takes the place.
      lock_{::open(beside(file_, ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)} {
    if (lock_.get() < 0) refuse(errno, file_);
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
        refuse(EBUSY, file_, "another program keeps its reservations there");
    read();
}

void reservation_keeper::read() {
    std::ifstream from{file_, std::ios::binary};
    if (!from) {
        if (std::filesystem::exists(file_)) refuse(EACCES, file_);
        return;
    }
    std::string line;
    std::getline(from, line);
    if (line != "disk " + hexadecimal(disk_)) {
        bool const is_ours = line.starts_with("disk ");
        refuse(
            EINVAL,
            file_,
            is_ours ? "it has the reservations of another disk" : "it holds no reservations"
        );
    }
    std::ostringstream rest;
    rest << from.rdbuf();
    auto const read = reservations::from_text(rest.str());
    if (!read) refuse(EINVAL, file_, "it holds no reservations");
    state_ = *read;
    is_reserved_ = state_.is_reserved();
}

reservations::outcome reservation_keeper::execute(
    command const& c, host_id const& host, std::span<std::byte const> data
) {
    std::lock_guard const lock{mutex_};
    reservations next = state_;
    reservations::outcome done = next.execute(c, host, data, true);
    return replace(std::move(next)) ? done : reservations::outcome{status::internal_error, {}, {}};
}

bool reservation_keeper::keep(bool is_it) {
    std::lock_guard const lock{mutex_};
    reservations next = state_;
    next.keep(is_it);
    return replace(std::move(next));
}

// With the lock.
bool reservation_keeper::replace(reservations next) {
    if (next == state_) return true;
    bool const is_in_file = state_.is_kept() || next.is_kept();
    if (is_in_file && !write(next)) return false;
    state_ = std::move(next);
    is_reserved_.store(state_.is_reserved(), std::memory_order_release);
    return true;
}

std::vector<std::byte> reservation_keeper::report() const {
    std::lock_guard const lock{mutex_};
    return state_.report();
}

// A new file takes the place of the old one when it is on the disk.
bool reservation_keeper::write(reservations const& what) const noexcept {
    try {
        if (!what.is_kept()) {
            std::error_code ec;
            std::filesystem::remove(file_, ec);
            return !ec;
        }
        std::filesystem::path const made = beside(file_, ".new");
        {
            descriptor const to{
                ::open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
            if (to.get() < 0 ||
                !write_all(to.get(), "disk " + hexadecimal(disk_) + '\n' + what.to_text()) ||
                ::fsync(to.get()) != 0)
                return false;
        }
        if (::rename(made.c_str(), file_.c_str()) != 0) return false;
        std::filesystem::path const folder = file_.has_parent_path() ? file_.parent_path() : ".";
        descriptor const in{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
        return in.get() >= 0 && ::fsync(in.get()) == 0;
    } catch (std::exception const&) {
        return false;
    }
}

}  // namespace rcverbs::nvme::detail
