// identity.hpp — identifiers that differ from machine to machine and from file to file, and survive
// restarts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
    /// The UUID that another machine has kept for the file.
    std::optional<uuid_bytes> elsewhere = {};
};

/// The UUID of a file is derived from the machine, the file system and the file handle (inode and
/// generation), and kept with the handle and the machine in the extended attribute user.rcverbs.uuid. If
/// another handle is kept there, as of a copy, or another machine, as of a clone of a virtual machine, it is
/// derived anew.
/// A block device has that of its wwid; without one, that of the machine and the UUID of the device
/// mapper, or its best link in /dev/disk/by-id.
///
/// @param fd  An open file or block device. Its attribute is stored if fd is writable.
file_identity identify_file(int fd);

/// The name that identifies a device best, of its links in /dev/disk/by-id; empty if none does. Links
/// that name what an administrator chose (dm-name, md-name), or what the device holds (lvm-pv-uuid),
/// identify no device.
std::string identifying_link(std::vector<std::string> const& names);

/// The block size with which a file was served last, if it was kept for this file.
std::optional<std::uint32_t> kept_block_bytes(int fd);
/// Keeps it in the extended attribute user.rcverbs.block_bytes, where the file system has such.
void keep_block_bytes(int fd, std::uint32_t bytes);

}  // namespace rcverbs::nvme::detail
