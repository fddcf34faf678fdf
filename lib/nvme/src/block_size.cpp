#include "block_size.hpp"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>

#include "identity.hpp"

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
    if (!has_text(beginning, 510, "\x55\xaa")) return largest;
    // The boot sector of a file system has the size.
    bool const has_file_system = has_text(beginning, 3, "NTFS    ") ||
                                 has_text(beginning, 54, "FAT") || has_text(beginning, 82, "FAT32");
    if (has_file_system) return valid(byte_at(beginning, 12) << 8 | byte_at(beginning, 11));
    if (has_text(beginning, 3, "EXFAT   "))
        return valid(1U << std::min(byte_at(beginning, 108), 12U));
    // A table of partitions counts blocks, and has no size of them. Programs let the first partition
    // begin at 1 MiB, formerly at block 63 of 512 bytes.
    constexpr std::size_t first_entry = 446;
    std::uint32_t start = 0;
    for (std::size_t i = 4; i-- > 0;) start = start << 8 | byte_at(beginning, first_entry + 8 + i);
    constexpr std::uint32_t mebibyte = 1U << 20;
    return start % (mebibyte / largest) == 0 && start % (mebibyte / smallest) != 0 ? largest
                                                                                   : smallest;
}

std::uint32_t block_bytes_of(int fd) {
    struct stat here {};
    if (::fstat(fd, &here) == 0 && S_ISBLK(here.st_mode)) {
        int bytes = 0;
        if (::ioctl(fd, BLKSSZGET, &bytes) == 0 && bytes > 0)
            return valid(static_cast<std::uint32_t>(bytes));
        return largest;
    }
    // A table of partitions is not always clear about the size that it was written for.
    if (auto const kept = kept_block_bytes(fd)) return *kept;
    std::array<std::byte, block_size_probe_bytes> beginning{};
    ssize_t const n = ::pread(fd, beginning.data(), beginning.size(), 0);
    return block_bytes_in(std::span{beginning}.first(n > 0 ? static_cast<std::size_t>(n) : 0));
}

}  // namespace rcverbs::nvme::detail
