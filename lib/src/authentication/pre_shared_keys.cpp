#include <rcverbs/authentication.hpp>
#include <rcverbs/detail/access.hpp>

#include <boost/algorithm/hex.hpp>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "authentication/key_set.hpp"

namespace rcverbs {

namespace {

using detail::key_map;
using detail::secret;

constexpr std::size_t file_bytes_max = std::size_t{1} << 24;

error_code add_to(key_map& all, std::string_view identity, std::span<std::byte const> key) {
    bool const is_printable =
        std::ranges::all_of(identity, [](char c) { return c > ' ' && c < '\x7f'; });
    bool const is_right = is_printable && !identity.empty() && identity.front() != '#' &&
                          identity.size() <= pre_shared_keys::identity_bytes_max &&
                          key.size() >= pre_shared_keys::key_bytes_min &&
                          key.size() <= pre_shared_keys::key_bytes_max;
    if (!is_right) return errc::invalid_option;
    std::vector<secret>& each = all[std::string{identity}];
    if (each.size() == pre_shared_keys::keys_each_max) return errc::invalid_option;
    each.emplace_back(key);
    return {};
}

// The whole file, if its rights are as they must be.
secret read_file(std::string const& path, error_code& ec, std::string& problem) {
    struct descriptor {
        int const fd;
        ~descriptor() {
            if (fd >= 0) ::close(fd);
        }
    };
    auto const failed = [&] {
        ec = error_code{errno, boost::system::generic_category()};
        problem = path;
        return secret{};
    };
    auto const refused = [&](char const* why) {
        ec = errc::invalid_key_file;
        problem = path + ": " + why;
        return secret{};
    };
    descriptor const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.fd < 0) return failed();
    struct stat is = {};
    if (::fstat(file.fd, &is) != 0) return failed();
    if (!S_ISREG(is.st_mode)) return refused("is no file");
    if ((is.st_mode & (S_IWGRP | S_IRWXO)) != 0)
        return refused("others may read or write it; set its mode to 0600 or 0640");
    if (static_cast<std::size_t>(is.st_size) > file_bytes_max) return refused("is too large");
    secret all{static_cast<std::size_t>(is.st_size)};
    std::size_t size = 0;
    while (size < all.bytes().size()) {
        ssize_t const got = ::read(file.fd, all.bytes().data() + size, all.bytes().size() - size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return failed();
        if (got == 0) return refused("has changed while it was read");
        size += static_cast<std::size_t>(got);
    }
    return all;
}

key_map keys_in(std::string const& path, error_code& ec, std::string& problem) {
    secret const all = read_file(path, ec, problem);
    if (ec) return {};
    auto const* const text = reinterpret_cast<char const*>(all.bytes().data());
    key_map found = detail::parse_keys({text, all.bytes().size()}, ec, problem);
    if (ec) problem.insert(0, path + ": ");
    return found;
}

[[noreturn]] void refuse(error_code ec, std::string const& problem) {
    throw boost::system::system_error{ec, problem};
}

}  // namespace

namespace detail {

key_map parse_keys(std::string_view text, error_code& ec, std::string& problem) {
    constexpr std::string_view blank = " \t\r";
    key_map all;
    ec = {};
    for (std::size_t number = 1; !text.empty(); ++number) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        auto const refused = [&](char const* why) {
            ec = errc::invalid_key_file;
            problem = "line " + std::to_string(number) + ": " + why;
            return key_map{};
        };
        line.remove_prefix(std::min(line.find_first_not_of(blank), line.size()));
        line = line.substr(0, line.find_last_not_of(blank) + 1);
        if (line.empty() || line.front() == '#') continue;
        std::string_view const identity = line.substr(0, line.find_first_of(blank));
        std::string_view digits = line.substr(identity.size());
        digits.remove_prefix(std::min(digits.find_first_not_of(blank), digits.size()));
        if (digits.empty() || digits.size() % 2 != 0 ||
            digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
            return refused("not an identity and a key in hexadecimal digits");
        secret key{digits.size() / 2};
        boost::algorithm::unhex(
            digits.begin(), digits.end(), reinterpret_cast<char*>(key.bytes().data())
        );
        if (key.bytes().size() < pre_shared_keys::key_bytes_min)
            return refused("the key has less than 16 bytes");
        if (key.bytes().size() > pre_shared_keys::key_bytes_max)
            return refused("the key has more than 64 bytes");
        if (auto const known = all.find(identity);
            known != all.end() && known->second.size() == pre_shared_keys::keys_each_max)
            return refused("the third key of this identity");
        if (add_to(all, identity, key.bytes()))
            return refused("an identity has 1 to 32 printable characters of ASCII");
    }
    if (all.empty()) {
        ec = errc::invalid_key_file;
        problem = "there are no keys";
    }
    return all;
}

std::vector<secret> key_set::keys_of(std::string_view identity) const {
    std::lock_guard const lock{mutex_};
    auto const found = keys_.find(identity);
    return found == keys_.end() ? std::vector<secret>{} : found->second;
}

std::vector<std::string> key_set::identities() const {
    std::lock_guard const lock{mutex_};
    std::vector<std::string> all;
    for (auto const& [identity, keys] : keys_) all.push_back(identity);
    return all;
}

error_code key_set::add(std::string_view identity, std::span<std::byte const> key) {
    std::lock_guard const lock{mutex_};
    return add_to(keys_, identity, key);
}

void key_set::reload(error_code& ec, std::string& problem) {
    if (path_.empty()) return;
    key_map found = keys_in(path_, ec, problem);
    if (ec) return;
    std::lock_guard const lock{mutex_};
    keys_.swap(found);
}

}  // namespace detail

pre_shared_keys::pre_shared_keys() noexcept = default;

pre_shared_keys pre_shared_keys::load(std::string const& path) {
    error_code ec;
    std::string problem;
    pre_shared_keys made;
    key_map found = keys_in(path, ec, problem);
    if (ec) refuse(ec, problem);
    made.set_ = std::make_shared<detail::key_set>(path, std::move(found));
    return made;
}

pre_shared_keys pre_shared_keys::load(std::string const& path, error_code& ec) {
    std::string ignored;
    ec = {};
    pre_shared_keys made;
    key_map found = keys_in(path, ec, ignored);
    if (!ec) made.set_ = std::make_shared<detail::key_set>(path, std::move(found));
    return made;
}

void pre_shared_keys::add(std::string_view identity, std::span<std::byte const> key) {
    auto const to = set_ != nullptr ? set_ : std::make_shared<detail::key_set>();
    if (error_code const ec = to->add(identity, key)) refuse(ec, "pre_shared_keys::add");
    set_ = to;
}

void pre_shared_keys::reload() {
    error_code ec;
    std::string problem;
    if (set_ != nullptr) set_->reload(ec, problem);
    if (ec) refuse(ec, problem);
}

void pre_shared_keys::reload(error_code& ec) {
    std::string ignored;
    ec = {};
    if (set_ != nullptr) set_->reload(ec, ignored);
}

pre_shared_keys pre_shared_keys::as(std::string_view identity) const {
    if (identity.empty() || identity.size() > identity_bytes_max)
        refuse(errc::invalid_option, "pre_shared_keys::as");
    pre_shared_keys made = *this;
    made.identity_ = std::make_shared<std::string const>(identity);
    return made;
}

std::vector<std::string> pre_shared_keys::identities() const {
    return set_ != nullptr ? set_->identities() : std::vector<std::string>{};
}

}  // namespace rcverbs
