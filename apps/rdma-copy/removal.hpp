// removal.hpp — removes from a directory of the target what the source does not have (--delete).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "rdma-copy/directory_stream.hpp"
#include "rdma-copy/exclusions.hpp"
#include "rdma-copy/tree.hpp"

namespace copy {

/// Of a name in a directory. If two names have the same hash, one of them stays.
std::uint64_t hash_of_name(std::string const& name) noexcept;

/// Follows no symbolic link, enters no other file system and no mount. What is excluded stays, and so do temporary
/// files of copies, and the directories that either is in. One thread at a time uses it; functions block.
///
/// It stops when there are some results, and goes on when it is called again: its memory and its descriptors do not
/// depend on what it removes.
class removal {
public:
    static constexpr std::size_t results_max = 256;
    struct result {
        std::string path;
        int error = 0;
    };

    /// @param lists  Nothing is removed.
    removal(exclusions excluded, bool lists) : excluded_{std::move(excluded)}, lists_{lists} {}

    /// Begins to remove all from a directory but these names. Nothing is removed if one of the names is not listed in
    /// it: then the file system spells names in its own way (as vfat, for which A and a are the same), and what
    /// seems to be another file can be the one that was copied.
    ///
    /// @param below    Its path below the source, for the exclusions; empty for the source itself.
    /// @param names    hash_of_name() of each.
    /// @param sources  identity_of() the directories that are copied: they stay, wherever they are.
    void begin(
        directory_stream all,
        std::string below,
        std::vector<std::uint64_t> names,
        std::vector<hash> sources
    );
    bool has_begun() const noexcept { return !levels_.empty(); }
    /// Goes on. False if results_max were found, and there is more to do.
    bool run();
    /// Of all that was removed since the last call, or could not be.
    std::vector<result> take_results();

private:
    // A directory, and one that is in the one before.
    struct level {
        directory_stream entries;
        std::string name;
        std::string below;
        std::deque<directory_entry> some;
        bool has_kept = false;  // something in it stays
    };

    int remove(level& from, directory_entry const& e, std::string const& below);
    int open_inside(level& from, directory_entry const& e, std::string const& below);
    void leave();
    void report(std::string const& path, int error);

    exclusions const excluded_;
    bool const lists_;
    std::deque<level> levels_;
    std::vector<std::uint64_t> names_;  // sorted, of the first level
    std::vector<hash> sources_;
    dev_t device_ = 0;
    std::uint64_t mount_ = 0;
    std::vector<result> results_;
};

}  // namespace copy
