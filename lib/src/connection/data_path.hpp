// data_path.hpp — the operations of one connection: which wait, which are posted, which are done.
//
//        free ──start──▶ waiting ──pump──▶ posted ──completion──▶ done ──release──▶ free
//                           └───────────take_back / fail──────────▲
//
// Waiting operations are posted strictly in order, as far as the queue and the negotiated depth of reads allow. The
// connection's lock guards everything here; handlers are called by the connection, outside of the lock, for the
// operations on the lists that these functions return. All operations are made in advance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <rcverbs/detail/operation.hpp>
#include <rcverbs/error.hpp>

#include "machines/work_window.hpp"
#include "verbs/queue_pair.hpp"
#include "verbs/work_request.hpp"

namespace rcverbs::detail {

/// A first-in-first-out list of operations, linked through them.
class operation_list {
public:
    bool empty() const noexcept { return first_ == nullptr; }
    operation* front() const noexcept { return first_; }
    void push_back(operation& op) noexcept;
    void push_front(operation& op) noexcept;
    operation* pop_front() noexcept;
    /// Takes one out of the middle; false if it is not on the list.
    bool remove(operation& op) noexcept;
    /// Appends another list's operations and leaves it empty.
    void append(operation_list& other) noexcept;

private:
    operation* first_ = nullptr;
    operation* last_ = nullptr;
};

/// What one round of completions came to.
struct completion_report {
    /// In the order of their completion.
    operation_list done;
    /// The first failure that is not a mere flush, or else the first flush.
    error_code failed;
    /// With it: the device's vendor error.
    int vendor_error = 0;
};

class data_path {
public:
    data_path() = default;
    /// Room for as many operations as can be posted and wait.
    data_path(verbs::queue_sizes const& sizes, std::size_t waiting_max, std::uint64_t message_bytes_max);

    /// A free operation to start with; null if as many are posted and waiting as there may be.
    operation* take_free() noexcept;
    /// Puts operations back whose handlers have been called.
    void release(operation_list& used) noexcept;

    /// Queues an operation that has been filled in; pump() posts it.
    void start(operation& op) noexcept;
    /// Posts what waits, as far as there is room; sends only if `may_send`. What could not be posted at all is put on `refused`, with its error;
    /// the return value is an error after which the queue pair is of no use.
    error_code pump(verbs::queue_pair& qp, operation_list& refused, bool may_send);
    /// Takes an operation back that still waits; false if it is posted.
    bool take_back(operation& op) noexcept;

    /// Takes in a batch of completions. `flush_error` says what becomes of operations that were merely flushed.
    completion_report retire(std::span<ibv_wc const> batch, error_code flush_error);
    /// Everything that waits, and everything posted, with `waiting_error` or `posted_error`, unless it has failed before.
    operation_list fail_all(error_code posted_error, error_code waiting_error);

    void set_read_depth(std::size_t depth) noexcept { sends_.window.set_read_depth(depth); }
    std::size_t read_depth() const noexcept { return sends_.window.read_depth_max(); }
    bool is_drained() const noexcept { return sends_.window.posted() == 0 && receives_.window.posted() == 0; }
    /// Every operation there is, for shutdown.
    void for_each(std::function<void(operation&)> const& visit);

private:
    struct entry {
        operation* op = nullptr;
        bool is_last_piece = true;
    };
    struct queue {
        machines::work_window<entry> window;
        operation_list waiting;
    };

    // One doorbell posts at most so many work requests; more need another round of the loop.
    static constexpr std::size_t list_length_max = 16;
    struct send_list;

    queue& queue_of(operation const& op) noexcept {
        return op.what.kind == operation_kind::receive ? receives_ : sends_;
    }
    error_code pump_sends(verbs::queue_pair& qp, operation_list& refused);
    void pump_receives(verbs::queue_pair& qp, operation_list& refused);
    void gather(send_list& list);
    void refuse_reads(operation_list& refused);
    void refuse(operation& op, error_code ec, operation_list& refused);
    error_code take_back_unposted(send_list& list, ibv_send_wr const* bad, error_code ec, operation_list& refused);
    void finish(entry const& e, error_code ec, ibv_wc const* completion, operation_list& done);

    std::unique_ptr<operation[]> operations_;
    std::size_t operation_count_ = 0;
    operation_list free_;
    std::size_t in_use_ = 0;
    std::size_t in_use_max_ = 0;
    std::uint64_t piece_bytes_max_ = 0;
    std::uint32_t inline_bytes_max_ = 0;
    queue sends_;
    queue receives_;
};

}  // namespace rcverbs::detail
