// receiver.hpp — the side of a copy that writes files.
//
// A file is written under a temporary name. It gets its own when all blocks have arrived with the hash
// that the sender has made of them and are on the disk; then the sender hears that it is done. A slot is
// given back when its bytes are written, so the speed of the disk is the limit for the sender.
//
// Nothing that the sender says is believed: which slots it has, where it writes, paths, sizes, counts. A
// sender that breaks the rules loses its connection; a file with a wrong hash is not finished.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/registered_buffer.hpp>

#include "rdma-copy/batch_job.hpp"
#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/disk.hpp"
#include "rdma-copy/file_io.hpp"
#include "rdma-copy/incoming_file.hpp"
#include "rdma-copy/exclusions.hpp"
#include "rdma-copy/link.hpp"
#include "rdma-copy/removal.hpp"
#include "rdma-copy/result.hpp"
#include "rdma-copy/tree.hpp"

namespace copy {

/// Where the files go, and how.
struct destination {
    /// Inside of it all files stay.
    tree const* root = nullptr;
    /// A directory in the root; empty for the root.
    std::string directory;
    /// Which one it was when the copy began.
    std::optional<file_id> id;
    /// The name in place of what the sender calls the source.
    std::optional<std::string> name;
    /// What the sender must call the source; without, anything.
    std::optional<std::string> expected;
    bool replaces = false;
    bool keeps_owners = false;
    extended keeps = {};
    bool verifies = false;
    /// What an earlier copy has finished is not copied again.
    bool continues = false;
    /// A sender that sends no entry, and says of none why, breaks the protocol.
    bool needs_entries = false;
    /// Nothing is written; what would be is counted as if it were, and listed.
    bool lists = false;
    listing listed = {};
    /// Directories that are copied lose all that the source does not have, as long as nothing fails.
    bool deletes = false;
    listing listed_deletion = {};
    /// The sender has asked for that, and hears what is deleted.
    bool reports_deletions = false;
    /// What stays.
    exclusions excluded = {};
    /// Of a copy that lists: the directory would be made.
    bool is_absent = false;

    /// The path of an entry in the root. REQUIRES: is_inside(path).
    std::string place_of(std::string const& path) const;
};

/// Finds out where the files of a copy to `name` go: into a directory of that name, or under that name.
///
/// @param continues  An earlier copy may have made the directory: error_place_unclear if only that could tell.
/// @param lists      No directory is made.
destination destination_of(
    tree const& root, std::string const& name, placing where, bool continues, bool lists, int& error
);

class receiver {
public:
    /// Files that are written at a time, at most.
    static constexpr std::size_t files_max = 16;
    /// Bytes of the paths of files to which hard links may follow, and what each takes besides, at most. The
    /// sender keeps no more either.
    static constexpr std::size_t linkable_bytes_max = std::size_t{32} << 20;
    static constexpr std::size_t linkable_bytes_besides = 128;
    /// Directories that wait for their mode and time, at most.
    static constexpr std::size_t directories_max = 4096;
    /// Names in directories that have not ended, at most, of a copy that deletes. Each takes 8 bytes.
    static constexpr std::size_t names_max = std::size_t{4} << 20;

    /// @param counters  Outlives this.
    receiver(link& over, disk& files, destination to, failure_report report, result& counters);
    receiver(receiver const&) = delete;
    receiver& operator=(receiver const&) = delete;

    /// Until the sender has finished. Throws boost::system::system_error when the connection ends; what
    /// was not finished is gone then, or waits to be continued.
    asio::awaitable<void> run();

private:
    struct part {
        file_part what;
        bool is_written = false;
    };
    struct file {
        entry what;
        std::string path;
        std::shared_ptr<extended_attributes const> values;
        incoming_file writes;
        std::uint64_t next = 0;  // where the next block or hole begins
        std::deque<part> under_way;  // in order, from the first that is not written
        std::vector<file_part> written;  // before those, and not stored
        std::uint64_t stored_end = 0;
        bool is_storing = false;
        bool last_is_hole = false;
        bool has_ended = false;
        bool is_error_of_source = false;
        int error = 0;
    };

    struct arrived {
        std::optional<std::uint16_t> slot;
        std::vector<batch_item> items;
    };

    asio::awaitable<void> serve();
    asio::awaitable<bool> on(entry e);
    bool on(batch const& b);
    bool on(attribute const& a);
    bool on_alone(entry e, std::shared_ptr<extended_attributes const> values);
    void list(batch_item const& i);
    void note_name(entry const& e, target_directory& in, std::string const& name);
    bool deletes() const noexcept;
    asio::awaitable<void> report_deletions();
    void report_not_deleted(std::string const& path, int error);
    void start_batch(arrived a);
    bool add_to_batch(entry e, std::vector<std::byte> bytes, std::vector<batch_item>& items);
    std::shared_ptr<target_directory> begin_directory(
        entry const& e, std::shared_ptr<target_directory> const& in
    );
    asio::awaitable<void> do_batches();
    bool on(block const& b);
    bool on(hole const& h);
    bool on(end const& e);
    bool on(skipped const& s);
    bool on(total const& t);
    bool is_expected(std::string const& source) const;
    std::shared_ptr<target_directory> directory_of(entry const& e) const;
    std::string name_of(entry const& e) const;
    asio::awaitable<int> make_directory(entry const& e, target_path const& at, file_id& made);
    asio::awaitable<int> make_hard_link(entry const& e, target_path const& path);
    file* file_that_continues(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes);
    asio::awaitable<void> write(block b);
    void on_written(std::uint64_t id, file& f);
    asio::awaitable<void> store(std::uint64_t id);
    asio::awaitable<void> finish(std::uint64_t number);
    asio::awaitable<void> keep();
    void start_job(asio::awaitable<void> work);
    void finish_if_complete(std::uint64_t id, file& f);
    static bool is_spoiled(file const& f, int error);
    void fail(std::uint64_t id, file& f, int error);
    void report(std::uint64_t id, std::string const& path, int error);
    void count(std::string const& path, std::string const& why);
    void count_lost(entry const& e, struct stat const& now, extended const& lost);
    attributes attributes_of(entry const& e, std::shared_ptr<extended_attributes const> values = {})
        const;

    link& link_;
    disk& disk_;
    destination const to_;
    failure_report const report_;
    result& result_;
    rcverbs::registered_buffer const slots_;
    file_io io_;
    std::vector<bool> is_granted_;
    std::map<std::uint64_t, file> files_;
    std::map<std::uint64_t, std::shared_ptr<target_directory>>
        directories_;  // that have no end yet
    std::shared_ptr<target_directory> top_;  // where the sources go
    std::deque<arrived> batches_;  // one for each slot at most; the first one is being done
    batch_job batch_job_;
    removal removal_;
    std::size_t names_ = 0;  // in directories that have not ended
    std::vector<hash> sources_;  // of a copy that deletes
    std::uint64_t not_deleted_ = 0;
    std::optional<std::vector<hash>>
        around_target_;  // the target's directory, and those that it is in
    std::map<std::string, file_id> linkable_;  // finished, by path
    std::size_t linkable_bytes_ = 0;
    bool has_forgotten_names_ = false;
    bool has_too_many_names_ = false;
    std::shared_ptr<extended_attributes> values_;  // of the entry that follows
    bool has_entries_ = false;
    bool has_failed_ = false;
    std::uint64_t next_ = 0;
    std::size_t jobs_ = 0;
    change job_ends_;
};

}  // namespace copy
