// file_job.hpp — requests of a file store that wait or are carried out.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <new>
#include <utility>

#include <rcverbs/nvme/block_store.hpp>

#include "file_engine.hpp"
#include "store_schedule.hpp"

namespace rcverbs::nvme::detail {

/// The turn of syncs, which serve all hosts.
inline constexpr std::uint64_t no_host = UINT64_MAX;

struct file_job : scheduled<file_job> {
    store_request* request = nullptr;
    std::uint64_t done_bytes = 0;
    bool is_by_hand = false;  // zeros are written: the file has no fallocate(2)
    aligned_bytes there;  // what a compare has read
    file_job* next = nullptr;

    /// Where it goes on.
    std::uint64_t offset() const noexcept { return request->offset_bytes() + done_bytes; }
    /// Of a long job.
    std::uint64_t next_piece_bytes() const noexcept {
        return piece_bytes(offset(), request->size_bytes() - done_bytes);
    }

    void complete(error_code const& ec) noexcept {
        store_request& r = *std::exchange(request, nullptr);
        bool const is_equal =
            ec || r.operation() != store_operation::compare ||
            std::memcmp(there.all().data(), r.data().data(), r.data().size()) == 0;
        there.clear();
        if (!is_equal) return r.complete_mismatch();
        r.complete(ec);
    }
};

/// The memory of jobs: as many as there ever were at a time. The engine guards it.
class file_jobs {
public:
    /// Null without memory.
    file_job* take(store_request& r) noexcept {
        try {
            file_job& j = idle_.is_empty() ? all_.emplace_back() : idle_.pop();
            j.request = &r;
            j.done_bytes = 0;
            j.is_by_hand = false;
            j.host = r.host_number();
            j.is_long = r.operation() == store_operation::write_zeroes ||
                        r.operation() == store_operation::discard;
            return &j;
        } catch (std::bad_alloc const&) {
            return nullptr;
        }
    }
    void give_back(file_job& j) noexcept { idle_.push(j); }

private:
    std::deque<file_job> all_;
    job_list<file_job> idle_;
};

}  // namespace rcverbs::nvme::detail
