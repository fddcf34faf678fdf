// block_size.hpp — the logical block size that the contents of a file or device were written for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rcverbs::nvme::detail {

/// Bytes of the beginning of a file that block_bytes_in() looks at.
inline constexpr std::size_t block_size_probe_bytes = 8192;

/// The block size that a partition table or a file system shows; 4096 if there is none.
///
/// @param beginning  The first block_size_probe_bytes of the contents, or fewer.
std::uint32_t block_bytes_in(std::span<std::byte const> beginning) noexcept;

/// That of a block device; of a file the one that was kept for it, or else that of its contents. 512
/// to 4096.
std::uint32_t block_bytes_of(int fd);

}  // namespace rcverbs::nvme::detail
