// sender.hpp — the side of a copy that reads files.
//
// Blocks are read into registered memory, hashed there, and written into free slots of the receiver. What
// is hashed is what is sent. Blocks of a file, and several files, are under way at a time; those of a file
// are sent in order.
//
// Small files, links and directories are collected, and go together in one slot.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/registered_buffer.hpp>

#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/directory_stream.hpp"
#include "rdma-copy/disk.hpp"
#include "rdma-copy/exclusions.hpp"
#include "rdma-copy/file_io.hpp"
#include "rdma-copy/link.hpp"
#include "rdma-copy/receiver.hpp"
#include "rdma-copy/result.hpp"
#include "rdma-copy/tree.hpp"

namespace copy {

/// A file or directory to copy, with all that is in it.
struct source {
    /// Where it is.
    tree const* root = nullptr;
    std::string path;
    /// What the receiver is told that it is called.
    std::string name;
};

struct sender_options {
    /// All is counted first.
    bool wants_total = false;
    /// The receiver is asked which files it has.
    bool continues = false;
    /// Files are read back: they do not go in batches.
    bool verifies = false;
    /// Nothing is copied. The receiver is asked for all, and what it would make is counted and listed.
    bool lists = false;
    /// What is sent of these. Nothing, if the copy lists.
    extended keeps = {};
    /// 0 for no limit.
    std::uint64_t bytes_per_second = 0;
    listing listed = {};
    /// The receiver deletes, and says what; that is counted, and listed.
    bool deletes = false;
    listing listed_deletion = {};
    /// What is not sent; not sources.
    exclusions excluded = {};

    static sender_options of(
        hello const& h, exclusions excluded, listing listed = {}, listing listed_deletion = {}
    ) {
        return {
            h.wants_total,
            h.continues,
            h.verifies,
            h.lists,
            {h.keeps_attributes && !h.lists, h.keeps_acls && !h.lists},
            h.bytes_per_second,
            std::move(listed),
            h.deletes,
            std::move(listed_deletion),
            std::move(excluded)};
    }
};

class sender {
public:
    /// @param counters  Outlives this.
    sender(
        link& over, disk& files, sender_options options, failure_report report, result& counters
    );
    sender(sender const&) = delete;
    sender& operator=(sender const&) = delete;

    /// Sends all, until each is finished at the receiver. Throws boost::system::system_error when the
    /// connection ends.
    asio::awaitable<void> run(std::vector<source> sources);
    /// Counts and reports a source that is not sent, on both sides.
    void skip(source const& s, int error);

private:
    struct directory;
    // A source, or what is in one.
    struct place {
        std::shared_ptr<directory> in;  // none of a source
        source const* top = nullptr;  // the source
        std::string name;

        // In the tree, and in the copy. For messages and what is rare: it takes as long as the place is deep.
        std::string path() const;
        std::string path_in_copy() const;
        // Of path_in_copy().
        std::size_t path_bytes() const noexcept;
    };
    // Entries that are not done yet.
    static constexpr std::size_t entries_max = 1024;

    // A block, or a hole, from reading it to sending it.
    struct part {
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
        bool is_hole = false;
        bool is_ready = false;
        std::size_t local = 0;
        std::size_t remote = 0;
        hash checksum{};
    };
    struct file {
        std::uint64_t id = 0;
        descriptor reads;
        bool has_ended = false;
        struct stat before {};
        std::uint64_t size = 0;
        bool is_sparse = false;
        std::optional<std::uint64_t> begin;  // what the receiver asks for
        std::deque<std::shared_ptr<part>> parts;  // in order
        std::size_t writes_under_way = 0;
        int error = 0;
        bool is_error_of_target = false;
    };
    // Gets its mode and time when all that is in it is done.
    struct directory {
        place what;
        std::uint64_t id = 0;
        std::size_t path_bytes = 0;
        struct stat status {};
        extended has;
        std::size_t depth = 0;
        // For which its end waits: itself while it is read, directories without their end, and what is not sent in
        // batches and not done.
        std::size_t entries = 1;
        bool has_failed = false;
        bool is_around_target = false;  // nothing in it is sent
    };
    // A file with several names.
    struct linked {
        std::string path;  // in the copy
        std::uint64_t id = 0;
        bool has_failed = false;
        // Of the content that was sent.
        off_t size = 0;
        timespec mtime{};
    };
    struct pending {
        place at;
        std::uint64_t bytes = 0;
        std::shared_ptr<file> sends;  // of a file
        bool is_awaited = false;  // by the directory that it is in
        std::optional<directory_entry> asked;  // the receiver may have it
        std::shared_ptr<directory> begins;  // of a directory
        std::shared_ptr<directory> ends;
        linked* names = nullptr;
    };

    asio::awaitable<void> listen();
    asio::awaitable<void> send_all();
    asio::awaitable<void> send_entry(place at, std::optional<struct stat> known);
    struct position {
        directory_stream& above;
        directory_entry const& at;
        bool closes = false;
    };
    asio::awaitable<bool> send_directory(place at, position const* from);
    asio::awaitable<void> send_small(
        descriptor const& from,
        std::vector<directory_entry const*> some,
        std::shared_ptr<directory> in,
        bool asks
    );
    asio::awaitable<void> send_wanted();
    asio::awaitable<bool> flush_batch();
    asio::awaitable<void> wait_for_turn(std::uint64_t bytes);
    std::size_t batch_room() const;
    bool is_batched(directory_entry const& e, bool asks) const;
    asio::awaitable<void> send_some(
        std::vector<directory_entry> const& some,
        directory_stream& all,
        std::shared_ptr<directory> const& here
    );
    asio::awaitable<void> send_file(place at);
    asio::awaitable<bool> send_hard_link(place const& at, struct stat const& status);
    asio::awaitable<void> send_parts(std::shared_ptr<file> f);
    asio::awaitable<void> read_part(std::shared_ptr<file> f, std::shared_ptr<part> p);
    asio::awaitable<std::uint64_t> announce(
        entry e,
        pending p,
        std::optional<std::vector<std::byte>> content = {},
        extended_attributes const& values = {}
    );
    asio::awaitable<void> send_ends();
    extended_attributes read_values(directory const& d, extended& left) const;
    asio::awaitable<void> count();
    void skip(place const& at, int error);
    void flush(std::shared_ptr<file> const& f);
    void write_slot(
        std::size_t local, std::size_t remote, std::uint64_t bytes, std::function<void()> then
    );
    void leave(std::shared_ptr<directory> d);
    bool on(credit const& c);
    bool on(begin const& b);
    bool on(abort_file const& a);
    bool on(done const& d);
    bool on(wanted const& w);
    bool on(deleted const& d);
    bool waits_for_begin(file const& f) const;
    bool asks_first() const noexcept { return options_.continues || options_.lists; }
    void fail(std::string const& path, std::string const& why);
    void require_open() const;
    void end_job(std::exception_ptr const& failed = {});
    void note_progress();
    /// What this side's disk does; the receiver may be silent meanwhile.
    template <class Work>
    auto on_disk(Work work) -> asio::awaitable<decltype(work())> {
        ++disk_work_;
        note_progress();
        auto result = co_await disk_.run(std::move(work));
        --disk_work_;
        note_progress();
        co_return result;
    }

    link& link_;
    disk& disk_;
    sender_options const options_;
    failure_report const report_;
    result& result_;
    rcverbs::registered_buffer const buffer_;
    file_io io_;
    std::vector<std::size_t> free_local_;
    std::vector<std::size_t> free_remote_;
    std::vector<bool> is_used_;  // of the remote slots
    std::optional<slots> remote_;
    std::vector<source> sources_;
    std::map<std::uint64_t, pending> pending_;
    std::map<std::pair<dev_t, ino_t>, linked> linked_;
    std::size_t linked_bytes_ = 0;
    std::deque<std::shared_ptr<directory>> to_end_;
    std::deque<pending> wanted_;
    std::chrono::steady_clock::time_point next_turn_;
    std::vector<std::byte> batch_;
    std::size_t batch_entries_ = 0;
    std::size_t files_ = 0;
    std::size_t directories_ = 0;
    std::uint64_t next_ = 0;
    std::size_t jobs_ = 0;
    std::size_t disk_work_ = 0;
    std::uint64_t ended_bytes_ = 0;  // of files that wait for DONE
    bool has_finished_ = false;
    std::atomic<bool> is_over_{false};
    std::exception_ptr end_;
    change changes_;
};

}  // namespace copy
