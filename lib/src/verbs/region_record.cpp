#include "verbs/region_record.hpp"

#include <deque>
#include <mutex>
#include <vector>

namespace rcverbs::detail {

namespace {

struct record_store {
    std::mutex mutex;
    std::deque<region_record> all;
    std::vector<region_record*> free;
};

// Never destroyed: a slice may be asked about at any time, destructors of statics included.
record_store& store() {
    static auto* const made = new record_store;
    return *made;
}

}  // namespace

region_mark open_record(verbs::domain const* domain, access_flags rights) {
    record_store& s = store();
    std::lock_guard const lock{s.mutex};
    if (s.free.empty()) {
        // Room to give every record back is made beforehand, so that closing cannot fail.
        s.free.reserve(s.all.size() + 1);
        s.free.push_back(&s.all.emplace_back());
    }
    region_record* const record = s.free.back();
    s.free.pop_back();
    record->domain.store(domain, std::memory_order_relaxed);
    record->rights.store(rights, std::memory_order_relaxed);
    // Publishes the two to whoever sees the new generation.
    std::uint32_t const generation = record->generation.load(std::memory_order_relaxed) + 1;
    record->generation.store(generation, std::memory_order_release);
    return {record, generation};
}

void close_record(region_mark const& mark) noexcept {
    if (mark.record == nullptr) return;
    record_store& s = store();
    std::lock_guard const lock{s.mutex};
    // The store made it; slices only have it as const.
    auto* const record = const_cast<region_record*>(mark.record);
    record->generation.store(mark.generation + 1, std::memory_order_release);
    s.free.push_back(record);
}

}  // namespace rcverbs::detail
