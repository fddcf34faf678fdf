// block_store.hpp — the interface of a store, which holds the blocks of a namespace.
//
//     class my_store final : public nvme::block_store {
//         nvme::store_geometry geometry() const override { return {.size_bytes = 1 << 30}; }
//         void start(nvme::store_request& r) override { r.complete({}); }
//     };
//
// The target checks every request before it starts it: the range is inside the store and in whole
// blocks. Requests may complete in any order. Threads: a target starts requests on its executor, or
// on those of target_options::io_pollers; with several of these, and if several targets share a store,
// start() must expect several threads at a time. complete() may be called on any thread, also inside
// start().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <rcverbs/error.hpp>

namespace rcverbs::nvme {

/// The operations of a store.
enum class store_operation {
    /// Fill `data` with the bytes of the range.
    read,
    /// Replace the bytes of the range with `data`.
    write,
    /// Make everything that was written before durable. Has no range.
    flush,
    /// Replace the bytes of the range with zeros.
    write_zeroes,
    /// The contents of the range are no longer needed, and read as zeros from now on.
    discard,
    /// Compare the bytes of the range with `data`.
    compare,
};

/// One request of a host. It belongs to the target: do not use it after complete().
class store_request {
public:
    store_request(store_request const&) = delete;
    store_request& operator=(store_request const&) = delete;

    /// The operation.
    store_operation operation() const noexcept { return operation_; }
    /// The first byte of the range: a multiple of store_geometry::block_bytes.
    std::uint64_t offset_bytes() const noexcept { return offset_bytes_; }
    /// The size of the range: a multiple of block_bytes; 0 for flush.
    std::uint64_t size_bytes() const noexcept { return size_bytes_; }
    /// Memory of size_bytes() bytes for read, write and compare; empty for others.
    std::span<std::byte> data() const noexcept { return data_; }
    /// True if a write or write_zeroes must be durable when it completes (FUA).
    bool is_durable() const noexcept { return is_durable_; }
    /// True once nobody waits for the result any more: the host's queue has ended. Do not begin such a
    /// request, and do not go on with one that takes long: the host may send it again, and then others for
    /// the same range. Complete it with asio::error::operation_aborted, which is not reported as a
    /// failure of the store. Any thread.
    bool is_abandoned() const noexcept {
        // Relaxed: seen late, the store goes on a little longer.
        return is_abandoned_ != nullptr && is_abandoned_->load(std::memory_order_relaxed);
    }

    /// The host: the same number for all requests of one host, on all its queues, and of no other host
    /// at that time. A store with a queue of its own should serve the hosts in turn: otherwise one that
    /// sends much makes the others wait. 0 for a request that is no host's.
    std::uint64_t host_number() const noexcept { return host_number_; }

    /// Ends the request; call it exactly once, from any thread.
    ///
    /// @param ec  Empty for success. The host gets a status that fits: no space, read-only; for
    ///            EAGAIN, EBUSY, EINTR, ENOMEM and ENOBUFS that of complete_retry(); otherwise a
    ///            media error of the operation's kind, after which it does not try again.
    void complete(error_code const& ec) noexcept { on_end({ec, end::done}); }
    /// Ends a compare whose bytes differ.
    void complete_mismatch() noexcept { on_end({{}, end::differs}); }
    /// Ends a request that may succeed if the host sends it again, which Linux does some times.
    void complete_retry() noexcept { on_end({{}, end::retry}); }
    /// Ends a request that may succeed on another path: the store cannot be reached from here. A
    /// host with several paths takes another one.
    void complete_path_error() noexcept { on_end({{}, end::path_error}); }

protected:
    enum class end : std::uint8_t { done, differs, retry, path_error };
    /// How a request ended.
    struct outcome {
        error_code failure;
        end how = end::done;
    };

    store_request() = default;
    ~store_request() = default;
    /// Of a request in place of another one: it has that one's host, and is abandoned with it.
    void come_from_host_of(store_request const& other) noexcept {
        host_number_ = other.host_number_;
        is_abandoned_ = other.is_abandoned_;
    }
    virtual void on_end(outcome how) noexcept = 0;

    store_operation operation_ = store_operation::read;
    std::uint64_t offset_bytes_ = 0;
    std::uint64_t size_bytes_ = 0;
    std::span<std::byte> data_;
    bool is_durable_ = false;
    std::uint64_t host_number_ = 0;
    std::atomic<bool> const* is_abandoned_ = nullptr;
};

/// The shape of a store.
struct store_geometry {
    /// The capacity: a multiple of block_bytes, above 0.
    std::uint64_t size_bytes = 0;
    /// The size of a logical block: 512, 1024, 2048 or 4096.
    std::uint32_t block_bytes = 4096;
    /// True if completed writes are durable only after a flush.
    bool has_volatile_cache = false;
    /// True if writes fail.
    bool is_read_only = false;
    /// Requests are fastest in multiples of this size, from multiples of it on: a multiple of block_bytes, and at most 65536
    /// blocks. 0 if there is no such size.
    std::uint32_t optimal_io_bytes = 0;

    friend bool operator==(store_geometry const&, store_geometry const&) = default;
};

/// A store of blocks.
class block_store {
public:
    virtual ~block_store() = default;

    /// The shape at this moment. After it has changed, call target::namespace_changed().
    virtual store_geometry geometry() const = 0;

    /// Identifies the bytes (RFC 4122). A host takes two disks of one subsystem with the same
    /// identifier for one disk, and uses either: every other store must have another one, on every
    /// machine. It must survive restarts if the bytes do. Empty for one that is derived from
    /// /etc/machine-id, the subsystem's NQN and the namespace's number.
    virtual std::optional<std::array<std::byte, 16>> uuid() const { return std::nullopt; }

    /// Starts a request, and returns soon. Must not throw. If data that was written before cannot be
    /// made durable any more, fail every later flush and durable write, too: hosts forget an error
    /// after which the next flush succeeds.
    virtual void start(store_request& request) = 0;

    /// False while the bytes cannot be reached from here, as those of a server that is away: requests end with path
    /// errors. Any thread.
    virtual bool is_reached() const { return true; }

    /// The memory of a store whose bytes are all in memory, in order; the same for as long as the
    /// store is used. The target registers it and transfers data without a copy: start() then gets
    /// flush requests only. If a host fails in the middle of a write, only a part of it may be
    /// carried out, also within a block. Empty for other stores.
    virtual std::span<std::byte> memory() noexcept { return {}; }
};

}  // namespace rcverbs::nvme
