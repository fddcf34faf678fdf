#include "block_size.hpp"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>

namespace rcverbs::nvme::detail {

namespace {

constexpr std::uint32_t smallest = 512;
constexpr std::uint32_t largest = 4096;

bool has_text(std::span<std::byte const> in, std::size_t at, std::string_view text) noexcept {
    if (in.size() < at + text.size()) return false;
    return std::equal(
        text.begin(),
        text.end(),
        in.begin() + static_cast<std::ptrdiff_t>(at),
        [](char c, std::byte b) { return static_cast<std::byte>(c) == b; }
    );
}

std::uint32_t byte_at(std::span<std::byte const> in, std::size_t at) noexcept {
    return at < in.size() ? std::to_integer<std::uint32_t>(in[at]) : 0;
}

std::uint32_t valid(std::uint32_t bytes) noexcept {
    return std::has_single_bit(bytes) ? std::clamp(bytes, smallest, largest) : largest;
}

}  // namespace

std::uint32_t block_bytes_in(std::span<std::byte const> beginning) noexcept {
    // The header of a GUID partition table is in the second block. Source: UEFI, 5.3.2.
    if (has_text(beginning, smallest, "EFI PART")) return smallest;
    if (has_text(beginning, largest, "EFI PART")) return largest;
    // XFS: sb_sectsize. Source: xfs_format.h.
    if (has_text(beginning, 0, "XFSB"))
        return valid(byte_at(beginning, 102) << 8 | byte_at(beginning, 103));
    // ext2 to ext4: the superblock is at 1024, its blocks have 1024 << s_log_block_size bytes.
    if (has_text(beginning, 1024 + 56, "\x53\xef"))
        return valid(1024U << std::min(byte_at(beginning, 1024 + 24), 2U));
    // A table of partitions in blocks of 512 bytes, or a boot sector of FAT or NTFS.
    if (has_text(beginning, 510, "\x55\xaa")) return smallest;
    return largest;
}

std::uint32_t block_bytes_of(int fd) noexcept {
    struct stat here {};
    if (::fstat(fd, &here) == 0 && S_ISBLK(here.st_mode)) {
        int bytes = 0;
        if (::ioctl(fd, BLKSSZGET, &bytes) == 0 && bytes > 0)
            return valid(static_cast<std::uint32_t>(bytes));
        return largest;
    }
    std::array<std::byte, block_size_probe_bytes> beginning{};
    ssize_t const n = ::pread(fd, beginning.data(), beginning.size(), 0);
    return block_bytes_in(std::span{beginning}.first(n > 0 ? static_cast<std::size_t>(n) : 0));
}

}  // namespace rcverbs::nvme::detail
