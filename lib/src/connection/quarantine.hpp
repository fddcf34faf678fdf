// quarantine.hpp — what must not be given back, because a device never let go of it.
//
// A queue pair that cannot be destroyed may still be written to by its device. Its completion queue, protection domain and
// the memory for what atomics bring back are kept to the end of the process, and counted. Safe from any thread.
#pragma once

#include <cstddef>
#include <memory>

#include <rcverbs/buffer.hpp>

#include "progress/completion_source.hpp"
#include "verbs/domain.hpp"

namespace rcverbs::detail {

/// What belongs to one such queue pair.
struct quarantined {
    std::shared_ptr<progress::completion_source> completions;
    std::shared_ptr<verbs::domain> domain;
    std::shared_ptr<buffer> atomic_results;
};

void keep_for_ever(quarantined what);
std::size_t quarantined_count() noexcept;

}  // namespace rcverbs::detail
