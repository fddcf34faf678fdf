// sender.hpp — the side of a copy that reads files.
//
// Blocks are read into registered memory, hashed there, and written into free slots of the receiver. What
// is hashed is what is sent. Blocks of a file, and several files, are under way at a time.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/registered_buffer.hpp>

#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/disk.hpp"
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

class sender {
public:
    sender(link& over, disk& files, failure_report report);
    sender(sender const&) = delete;
    sender& operator=(sender const&) = delete;

    /// Sends all, until each is finished at the receiver. Throws boost::system::system_error when the
    /// connection ends.
    asio::awaitable<void> run(std::vector<source> sources);
    /// Counts and reports an entry that cannot be copied.
    void fail(std::string const& path, int error);
    result const& counters() const noexcept { return result_; }

private:
    // Entries that are not done yet.
    static constexpr std::size_t entries_max = 64;

    struct file {
        descriptor reads;
        std::uint64_t size = 0;
        std::size_t blocks_under_way = 0;
        int error = 0;
    };
    struct pending {
        std::string path;
        std::uint64_t bytes = 0;
        std::shared_ptr<file> reads;  // of a file that is being sent
    };

    asio::awaitable<void> listen();
    asio::awaitable<void> send_all(std::vector<source> sources);
    asio::awaitable<void> send_entry(source s);
    asio::awaitable<void> send_directory(source s, struct stat status);
    asio::awaitable<void> send_file(source s);
    asio::awaitable<void> send_blocks(
        std::uint64_t id, std::shared_ptr<file> f, struct stat before
    );
    asio::awaitable<void> send_block(
        std::uint64_t id,
        std::shared_ptr<file> f,
        std::uint64_t offset,
        std::size_t local,
        std::size_t remote
    );
    asio::awaitable<std::uint64_t> announce(
        entry e, std::string const& path, std::shared_ptr<file> f = {}
    );
    bool on(credit const& c);
    bool on(abort_file const& a);
    bool on(done const& d);

    void require_open() const;

    link& link_;
    disk& disk_;
    failure_report const report_;
    rcverbs::registered_buffer const buffer_;
    std::vector<std::size_t> free_local_;
    std::vector<std::size_t> free_remote_;
    std::vector<bool> is_used_;  // of the remote slots
    std::optional<slots> remote_;
    std::map<std::uint64_t, pending> pending_;
    std::size_t files_ = 0;
    std::uint64_t next_ = 0;
    std::size_t jobs_ = 0;
    bool has_finished_ = false;
    std::exception_ptr end_;
    change changes_;
    result result_;
};

}  // namespace copy
