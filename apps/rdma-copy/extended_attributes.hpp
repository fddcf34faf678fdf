// extended_attributes.hpp — extended attributes and ACLs of files and directories.
//
// Copied are those that users and programs set: user., trusted., security.capability, and the attributes in which Linux
// stores POSIX ACLs. Labels that a security policy or a file system gives to every file are neither copied nor missed.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rdma-copy/copy_message.hpp"

namespace copy {

/// Which of both a file has, or a copy keeps, or a file has lost.
struct extended {
    bool attributes = false;
    bool acl = false;

    bool has(std::string_view name) const noexcept;
    void set(std::string_view name) noexcept;
    extended operator&(extended const& other) const noexcept {
        return {attributes && other.attributes, acl && other.acl};
    }
    bool is_any() const noexcept { return attributes || acl; }
};

/// All of a file. What a peer sends of them is bounded.
class extended_attributes {
public:
    /// Of one value. Source: XATTR_SIZE_MAX.
    static constexpr std::size_t value_bytes_max = std::size_t{64} << 10;
    /// Of all names and values.
    static constexpr std::size_t bytes_max = std::size_t{256} << 10;

    /// Adds a value, or what follows of the last one. False if it is none, or there is no room for it.
    bool add(attribute const& part);
    /// The last value has no more parts.
    bool is_complete() const noexcept { return !continues_; }
    std::size_t bytes() const noexcept { return bytes_; }
    /// For add() at the other side.
    std::vector<attribute> parts() const;

    std::map<std::string, std::vector<std::byte>> const& values() const noexcept { return values_; }

private:
    // What each takes besides its name and its value.
    static constexpr std::size_t bytes_besides = 64;

    std::map<std::string, std::vector<std::byte>> values_;
    std::string last_;
    std::size_t bytes_ = 0;
    bool continues_ = false;
};

/// Of a file or directory that is open to be read; nothing if its file system has none.
extended extended_of(int file);
/// Reads those of both kinds that are wanted.
///
/// @param left  What could not be read, or has no room.
extended_attributes read_extended(int file, extended const& wanted, extended& left);
/// Gives an open file these, and takes away its others of the kinds that are kept: a directory can have been there, and
/// the default ACL of a directory gives one to each new file.
///
/// @return  What could not be set.
extended give_extended(int file, extended const& keeps, extended_attributes const& values);

}  // namespace copy
