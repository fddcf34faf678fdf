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
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/registered_buffer.hpp>

#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/disk.hpp"
#include "rdma-copy/link.hpp"
#include "rdma-copy/result.hpp"
#include "rdma-copy/tree.hpp"

namespace copy {

/// Where the files go.
struct destination {
    /// Inside of it all files stay.
    tree const* root = nullptr;
    /// A directory in the root; empty for the root.
    std::string directory;
    /// The name in place of what the sender calls the source.
    std::optional<std::string> name;
    bool replaces = false;

    /// The path of an entry in the root. REQUIRES: is_inside(path).
    std::string place_of(std::string const& path) const;
};

/// Finds out where the files of a copy to `name` go: into a directory of that name, or under that name.
destination destination_of(
    tree const& root, std::string const& name, bool is_into_directory, int& error
);

class receiver {
public:
    /// Files that are written at a time, at most.
    static constexpr std::size_t files_max = 16;

    receiver(link& over, disk& files, destination to, failure_report report);
    receiver(receiver const&) = delete;
    receiver& operator=(receiver const&) = delete;

    /// Until the sender has finished. Throws boost::system::system_error when the connection ends; what
    /// was not finished is gone then.
    asio::awaitable<void> run();
    result const& counters() const noexcept { return result_; }

private:
    struct file {
        entry what;
        std::string path;
        incoming_file writes;
        std::uint64_t bytes = 0;
        std::size_t blocks_under_way = 0;
        bool has_ended = false;
        int error = 0;
    };

    asio::awaitable<void> serve();
    asio::awaitable<bool> on(entry e);
    bool on(block const& b);
    bool on(end const& e);
    asio::awaitable<void> store(block b);
    asio::awaitable<void> finish(std::uint64_t id);
    void finish_if_complete(std::uint64_t id, file& f);
    void report(std::uint64_t id, std::string const& path, int error);

    link& link_;
    disk& disk_;
    destination const to_;
    failure_report const report_;
    rcverbs::registered_buffer const slots_;
    std::vector<bool> is_granted_;
    std::map<std::uint64_t, file> files_;
    std::uint64_t next_ = 0;
    std::size_t jobs_ = 0;
    change job_ends_;
    result result_;
};

}  // namespace copy
