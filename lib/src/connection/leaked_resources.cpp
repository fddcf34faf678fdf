#include "connection/leaked_resources.hpp"

#include <mutex>
#include <vector>

namespace rcverbs::detail {

namespace {

struct leaks {
    std::mutex mutex;
    std::vector<leaked_resources> all;
    std::vector<std::shared_ptr<void>> memory;
};

// Never destroyed, because its contents must not be, not even at the end of the process.
leaks& the_leaks() noexcept {
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): an allocation failure is fatal here.
    static leaks* const instance = new leaks;
    return *instance;
}

}  // namespace

void leak(leaked_resources what) {
    leaks& l = the_leaks();
    std::lock_guard const lock{l.mutex};
    l.all.push_back(std::move(what));
}

void leak_memory(std::shared_ptr<void> owner) {
    leaks& l = the_leaks();
    std::lock_guard const lock{l.mutex};
    l.memory.push_back(std::move(owner));
}

std::size_t leaked_count() noexcept {
    leaks& l = the_leaks();
    std::lock_guard const lock{l.mutex};
    return l.all.size();
}

}  // namespace rcverbs::detail
