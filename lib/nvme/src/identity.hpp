// identity.hpp — identifiers that differ from machine to machine and from file to file, and survive
// restarts.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace rcverbs::nvme::detail {

using uuid_bytes = std::array<std::byte, 16>;

/// A name of this machine, derived from /etc/machine-id, which is not revealed; empty without one.
std::string machine_name();

/// A UUID of version 5 derived from a text.
uuid_bytes derived_uuid(std::string const& text);
/// A UUID of version 4.
uuid_bytes random_uuid();
/// Two hexadecimal digits for each byte.
std::string hexadecimal(std::span<std::byte const> bytes);

/// The identity of a file's or a block device's contents.
struct file_identity {
    uuid_bytes uuid{};
    /// False if it is random: the next one who asks gets another.
    bool is_lasting = true;
};

/// A file keeps its UUID in the extended attribute user.rcverbs.uuid, together with its file handle
/// (inode and generation). If the handle is another one, as of a copy, or if the attribute cannot
/// be stored, the UUID is derived from the machine and the handle. A block device has that of its
/// wwid; without one, that of the machine and its link in /dev/disk/by-id.
///
/// @param fd  An open file or block device. Its attribute is stored if fd is writable.
file_identity identify_file(int fd);

}  // namespace rcverbs::nvme::detail
