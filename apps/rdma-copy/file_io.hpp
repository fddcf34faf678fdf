// file_io.hpp — reads and writes of files with a buffer that the kernel knows: io_uring with fixed
// buffers, or the disk's threads where that is refused.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "rdma-copy/disk.hpp"

namespace copy {

class file_io {
public:
    /// @param memory         Where all bytes come from and go to. It is locked once more, if that is
    ///                       allowed; outlives this.
    /// @param transfers_max  Reads and writes under way at a time; more are done by threads.
    file_io(
        asio::io_context& io, disk& threads, std::span<std::byte> memory, std::size_t transfers_max
    );
    file_io(file_io const&) = delete;
    file_io& operator=(file_io const&) = delete;
    /// REQUIRES: nothing is under way.
    ~file_io();

    /// All of it, or an errno; error_source_changed if the file ends before.
    asio::awaitable<int> read(int file, std::uint64_t offset, std::span<std::byte> into);
    /// All of it, or an errno.
    asio::awaitable<int> write(int file, std::uint64_t offset, std::span<std::byte const> from);

    bool has_ring() const noexcept { return ring_ != nullptr; }

private:
    class ring;

    asio::awaitable<int> transfer(
        bool is_write, int file, std::uint64_t offset, std::span<std::byte> bytes
    );
    asio::awaitable<int> part(
        bool is_write, int file, std::uint64_t offset, std::span<std::byte> bytes
    );

    disk& threads_;
    std::shared_ptr<ring> ring_;  // none where io_uring is refused
};

}  // namespace copy
