// incoming_file.hpp — a file that arrives: under a temporary name until all of it is on the disk, and
// unlinked if that never happens.
//
// A large one can be continued. Beside its temporary file it has a state file: the identity of the source,
// and for each part that is on the disk its end and its hash. Whoever copies the same source to the same
// name again begins where the state file ends; the last parts are hashed again first, and what does not
// have its hash is copied again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/tree.hpp"

namespace copy {

/// Bytes that were written in order up to `end`, from the end of the part before; a hash of zeros means a
/// hole.
struct file_part {
    std::uint64_t end = 0;
    hash checksum{};
};

/// True if a file has the time that it would have after a copy of a source with this time: the same, or what the
/// file system keeps of it. That shows in the time of the last change, which no program can set: vfat keeps even
/// seconds, ext3 seconds, exFAT 10 ms, CIFS 100 ns.
///
/// @param is_vfat  Where these times are the same.
bool has_time(struct stat const& there, timespec const& source, bool is_vfat) noexcept;
/// The same of a file in this directory.
bool has_time(
    descriptor const& directory, struct stat const& there, timespec const& source
) noexcept;

struct incoming_options {
    std::uint64_t size = 0;
    bool is_sparse = false;
    bool replaces = false;
    /// The parts are read back from the disk at the end.
    bool verifies = false;
    /// A file of that name with this size and time is finished already.
    bool continues = false;
    /// Nothing syncs its directory afterwards.
    bool is_alone = false;
    timespec mtime{};
    hash identity{};
};

/// Functions block; one thread at a time calls them.
class incoming_file {
public:
    incoming_file() noexcept = default;
    /// Opens a temporary file, and reserves room for all of it, where the file system can. EEXIST if there
    /// is something of that name, unless it `replaces` that; finish() finds out again.
    static incoming_file create(
        tree const& in, target_path const& path, incoming_options const& options, int& error
    );
    incoming_file(incoming_file&&) noexcept = default;
    incoming_file& operator=(incoming_file&& other) noexcept;
    ~incoming_file();

    /// Where to write; -1 if there is none.
    int descriptor_of_data() const noexcept { return data_.get(); }
    /// How much of it is there already.
    std::uint64_t begin() const noexcept { return begin_; }
    /// True if parts are worth to be stored, every checkpoint_bytes.
    bool has_state() const noexcept { return state_.is_open(); }
    static constexpr std::uint64_t checkpoint_bytes = std::uint64_t{64} << 20;
    /// Writes what is written so far to the disk, and then that these parts are there. They follow those of
    /// the last call. Fails after a failure: nothing more can be known to be there.
    int store(std::vector<file_part> const& parts);
    /// It stays, to be continued, if anything of it was stored.
    void keep() noexcept;
    /// Writes it to the disk, gives it its attributes and name, and writes its directory to the disk.
    ///
    /// @param parts  Those that were not stored.
    int finish(attributes const& a, std::vector<file_part> const& parts);

    /// An earlier copy has finished it: nothing is written.
    bool is_there() const noexcept { return is_there_; }
    /// Which file it is, after finish().
    file_id id() const noexcept { return id_; }
    /// What it has got, after finish().
    struct stat const& status() const noexcept {
        return status_;
    }
    extended const& lost() const noexcept { return lost_; }

private:
    int sync(int (*with)(int));
    int give_again(attributes const& a);
    descriptor open_part(int& error) const;
    void remove_leftovers();
    int open_plain();
    bool open_state();
    std::uint64_t resume();
    int reserve() const;
    int verify(std::vector<file_part> const& parts) const;
    int verify(std::vector<file_part> const& parts, int flags) const;
    int verify_part(int fd, std::uint64_t begin, file_part const& part, void* buffer) const;
    void remove() noexcept;

    descriptor directory_;
    descriptor data_;
    descriptor state_;  // locked
    std::string name_;
    std::string data_name_;
    std::string state_name_;  // empty if it has none any more
    incoming_options options_;
    std::uint64_t begin_ = 0;
    std::uint64_t stored_ = 0;  // parts in the state file
    std::uint64_t stored_end_ = 0;  // of the last of them
    bool is_named_ = false;  // the names of both files are on the disk
    bool is_kept_ = false;
    bool is_there_ = false;
    bool has_lost_ = false;  // something that was written may not be on the disk
    file_id id_;
    struct stat status_ {};
    extended lost_;
};

}  // namespace copy
