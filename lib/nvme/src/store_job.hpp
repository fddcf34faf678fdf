// store_job.hpp — what a store on a server knows of a request.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <new>
#include <vector>

#include <rcverbs/nvme/block_store.hpp>

namespace rcverbs::nvme::detail {

constexpr bool writes(store_operation o) noexcept {
    return o == store_operation::write || o == store_operation::write_zeroes ||
           o == store_operation::discard;
}

struct store_job {
    explicit store_job(store_request& r)
        : request{&r},
          since{std::chrono::steady_clock::now()},
          left{r.size_bytes()},
          there(r.operation() == store_operation::compare ? r.data().size() : 0) {}

    bool differs() const noexcept {
        return !there.empty() &&
               std::memcmp(there.data(), request->data().data(), there.size()) != 0;
    }

    store_request* request;
    std::chrono::steady_clock::time_point since;  // of this piece
    std::uint64_t left;  // with this piece
    std::vector<std::byte> there;  // of a compare
};

/// A list of one job; empty if there is no memory, and then the request has been completed.
template <class Job>
std::list<Job> new_job(store_request& r) noexcept {
    std::list<Job> made;
    try {
        made.emplace_back(r);
    } catch (std::bad_alloc const&) {
        r.complete_retry();
    }
    return made;
}

}  // namespace rcverbs::nvme::detail
