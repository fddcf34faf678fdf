// batch_job.hpp — entries that arrive together are made together: all files are written, then all of them are written
// to the disk, then they get their names, then the directories are written to the disk. So an entry is finished in
// the same sense as a file that arrives alone, for a few system calls.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/removal.hpp"
#include "rdma-copy/tree.hpp"

namespace copy {

/// A directory that a copy has begun.
struct target_directory {
    std::string name;  // in the one above; without one, the path in the tree
    std::shared_ptr<target_directory> above;
    std::size_t path_bytes = 0;  // in the copy
    int error = 0;  // why it could not be made
    std::vector<std::uint64_t>
        names;  // hash_of_name() of what the source has, of a copy that deletes
    bool is_absent = false;  // it would be made by a copy that makes something
    std::optional<file_id> id;
    descriptor opened;  // of the few that were used last

    /// In the tree. For messages and what is rare: it takes as long as the directory is deep.
    std::string path() const;
    /// In the source that it is, or is in.
    std::string path_in_source() const;
};

/// What arrives, and what becomes of it.
struct batch_item {
    entry what;
    std::vector<std::byte> bytes;
    std::string name;
    attributes gets;
    std::shared_ptr<target_directory> in;
    std::shared_ptr<target_directory> itself;  // of a directory and its end
    int error = 0;
    bool is_wanted = false;  // asked for, or only listed, and not there
    struct stat now {};
    extended lost;

    bool is_file() const noexcept { return what.type == entry_type::file; }
    /// In the tree.
    std::string path() const { return joined(in->path(), name); }
};

struct batch_options {
    bool replaces = false;
    /// What an earlier copy has finished is not copied again.
    bool continues = false;
    /// Nothing is made; what would be is wanted.
    bool lists = false;
    /// Directories that must not be made again: the target's, and those around it.
    std::vector<hash> around_target = {};
    /// Of a copy that deletes, and in which nothing has failed: what directories lose at their end.
    removal* removes = nullptr;
    /// Directories that are not removed.
    std::vector<hash> sources = {};
};

/// One thread at a time uses it.
class batch_job {
public:
    /// @param in  Outlives this.
    explicit batch_job(tree const& in) noexcept : tree_{in} {}

    /// Does all of it, in order. Blocks. Directories that wait for their end keep few descriptors.
    ///
    /// @return  False if the removal has results that must be taken; then call it again with these items.
    bool run(std::vector<batch_item>& items, batch_options const& options);

private:
    struct temporary {
        batch_item* item = nullptr;
        std::string name;
        file_id id;
    };

    void begin_all(std::vector<batch_item>& items, batch_options const& options);
    void begin(batch_item& i, batch_options const& options);
    bool remove_others(
        batch_item& end, std::vector<batch_item> const& items, batch_options const& options
    );
    void finish(batch_item& i, batch_options const& options);
    void write(batch_item& i);
    int name_file(descriptor const& in, temporary const& t, batch_options const& options);
    void look_for(batch_item& i, batch_options const& options);
    void list(batch_item& i, batch_options const& options);
    void list_directory(batch_item& i, descriptor const& in, batch_options const& options);
    void make_directory(batch_item& i, batch_options const& options);
    void end_directory(batch_item& i);
    void sync_files();
    void sync_directories(std::vector<batch_item>& items);
    bool can_sync_all(dev_t device) const noexcept { return syncs_all_ && device == device_; }
    descriptor const* open(std::shared_ptr<target_directory> const& d, int& error);
    void keep(std::shared_ptr<target_directory> const& d, descriptor opened);
    void touch(std::shared_ptr<target_directory> const& d);

    tree const& tree_;
    std::deque<std::shared_ptr<target_directory>> opened_;
    // The directory that has ended last, through which the one above it is opened.
    descriptor ended_;
    std::shared_ptr<target_directory> above_ended_;

    // Of one run.
    std::string suffix_;
    descriptor all_;  // of the file system that is written to the disk as a whole
    dev_t device_ = 0;
    bool syncs_all_ = false;
    std::size_t to_sync_ = 0;  // files that are not on the disk yet
    std::vector<temporary> files_;
    std::size_t next_file_ = 0;  // that gets its name
    std::size_t next_ = 0;  // item that is finished
    std::vector<std::shared_ptr<target_directory>> touched_;
};

}  // namespace copy
