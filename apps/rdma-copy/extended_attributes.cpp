#include "rdma-copy/extended_attributes.hpp"

#include <linux/limits.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace copy {

namespace {

bool is_acl(std::string_view name) noexcept {
    return name == "system.posix_acl_access" || name == "system.posix_acl_default";
}

std::vector<std::string> names_of(int file) {
    std::vector<char> list(1024);
    ssize_t size = ::flistxattr(file, list.data(), list.size());
    if (size < 0 && errno == ERANGE) {
        list.resize(XATTR_LIST_MAX);
        size = ::flistxattr(file, list.data(), list.size());
    }
    std::vector<std::string> names;
    for (ssize_t at = 0; at < size;) {
        names.emplace_back(list.data() + at);
        at += static_cast<ssize_t>(names.back().size()) + 1;
    }
    return names;
}

}  // namespace

bool is_attribute_name(std::string_view name) noexcept {
    constexpr std::size_t bytes_max = XATTR_NAME_MAX;
    bool const is_known = is_acl(name) || name.starts_with("user.") ||
                          name.starts_with("trusted.") || name == "security.capability";
    return is_known && name.size() <= bytes_max && name.find('\0') == std::string_view::npos;
}

bool extended::has(std::string_view name) const noexcept {
    return is_attribute_name(name) && (is_acl(name) ? acl : attributes);
}

void extended::set(std::string_view name) noexcept {
    if (!is_attribute_name(name)) return;
    (is_acl(name) ? acl : attributes) = true;
}

bool extended_attributes::add(attribute const& part) {
    bool const is_next = continues_ ? part.name == last_ : !values_.contains(part.name);
    if (!is_next || !is_attribute_name(part.name)) return false;
    std::size_t const more =
        part.value.size() + (continues_ ? 0 : part.name.size() + bytes_besides);
    std::size_t const before = continues_ ? values_[part.name].size() : 0;
    bool const has_room =
        more <= bytes_max - bytes_ && part.value.size() <= value_bytes_max - before;
    if (!has_room) return false;
    std::vector<std::byte>& value = values_[part.name];
    value.insert(value.end(), part.value.begin(), part.value.end());
    bytes_ += more;
    last_ = part.name;
    continues_ = part.continues;
    return true;
}

std::vector<attribute> extended_attributes::parts() const {
    std::vector<attribute> all;
    for (auto const& [name, value] : values_) {
        std::size_t at = 0;
        do {
            std::size_t const size = std::min(value.size() - at, attribute_part_bytes_max);
            auto const begin = value.begin() + static_cast<std::ptrdiff_t>(at);
            at += size;
            all.push_back(
                {name, at < value.size(), {begin, begin + static_cast<std::ptrdiff_t>(size)}}
            );
        } while (at < value.size());
    }
    return all;
}

extended extended_of(int file) {
    extended found;
    for (std::string const& name : names_of(file)) found.set(name);
    return found;
}

extended_attributes read_extended(int file, extended const& wanted, extended& left) {
    extended_attributes all;
    std::vector<std::byte> value(extended_attributes::value_bytes_max);
    for (std::string const& name : names_of(file)) {
        if (!wanted.has(name)) continue;
        ssize_t const size = ::fgetxattr(file, name.c_str(), value.data(), value.size());
        if (size < 0 && errno == ENODATA) continue;  // removed meanwhile
        bool const is_added =
            size >= 0 && all.add({name, false, {value.begin(), value.begin() + size}});
        if (!is_added) left.set(name);
    }
    return all;
}

extended give_extended(int file, extended const& keeps, extended_attributes const& values) {
    extended lost;
    if (!keeps.is_any()) return lost;
    for (std::string const& name : names_of(file)) {
        if (!keeps.has(name) || values.values().contains(name)) continue;
        if (::fremovexattr(file, name.c_str()) != 0 && errno != ENODATA) lost.set(name);
    }
    for (auto const& [name, value] : values.values())
        if (::fsetxattr(file, name.c_str(), value.data(), value.size(), 0) != 0) lost.set(name);
    return lost;
}

}  // namespace copy
