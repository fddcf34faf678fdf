// small_entries.hpp — entries of a directory that are read several at a time: files whose content goes with their
// entry, files of which only the receiver knows whether they are there, and symbolic links.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/directory_stream.hpp"
#include "rdma-copy/tree.hpp"

namespace copy {

struct small_entry {
    directory_entry const* from = nullptr;
    /// Without number, directory and name.
    entry what;
    std::vector<std::byte> bytes;
    int error = 0;
    /// It is sent in another way: it has holes or other names, or has become large, or something else.
    bool is_other = false;
};

/// True if read_small() may read it.
///
/// @param asks  The receiver is asked first whether it has the file.
bool is_small(directory_entry const& e, bool asks);
/// Reads entries for which is_small() is true, as they are now; of those that the receiver is asked for, what their
/// directory says is enough. Blocks.
///
/// @param keeps  A file that has some of these is sent in another way.
std::vector<small_entry> read_small(
    descriptor const& directory,
    std::span<directory_entry const* const> some,
    bool asks,
    extended const& keeps
);
/// What an entry is told to be, without its number, directory and name.
entry entry_of(entry_type type, struct stat const& s);
/// True if a file is another one than it was, or has other content.
bool has_changed(struct stat const& before, struct stat const& after);
/// True for a file that says it is empty, and is not, as those of /proc.
bool has_more(int file, std::uint64_t size);

}  // namespace copy
