// leaked_resources.hpp — resources that are leaked on purpose, because their queue pair could not
// be destroyed.
//
// If a queue pair cannot be destroyed, its device may still write to its memory. So its protection
// domain and the memory for the results of atomics are kept until the process ends, and counted; its
// completion queue is kept by the poller. Safe from any thread.
#pragma once

#include <cstddef>
#include <memory>

#include "verbs/domain.hpp"

namespace rcverbs::detail {

/// The resources of one such queue pair.
struct leaked_resources {
    std::shared_ptr<verbs::domain> domain;
    std::shared_ptr<verbs::atomic_results::place> atomic_results;
};

void leak(leaked_resources what);
/// The owner of memory that the device may still use. Not counted.
void leak_memory(std::shared_ptr<void> owner);
std::size_t leaked_count() noexcept;

}  // namespace rcverbs::detail
