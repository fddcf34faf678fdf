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

// Never destroyed: slices may be checked at any time, even by destructors of static objects.
record_store& store() {
    static auto* const made = new record_store;
    return *made;
}

}  // namespace

region_mark open_record(verbs::domain const* domain, access_flags rights, ibv_mr* handle) {
    record_store& s = store();
    std::lock_guard const lock{s.mutex};
    if (s.free.empty()) {
        // Reserve room for every record, so that close_record() cannot fail.
        s.free.reserve(s.all.size() + 1);
        s.free.push_back(&s.all.emplace_back());
    }
    region_record* const record = s.free.back();
    s.free.pop_back();
    record->domain.store(domain, std::memory_order_relaxed);
    record->rights.store(rights, std::memory_order_relaxed);
    record->handle.store(handle, std::memory_order_relaxed);
    // The release store publishes the fields to threads that read the new generation.
    std::uint32_t const generation = record->generation.load(std::memory_order_relaxed) + 1;
    record->generation.store(generation, std::memory_order_release);
    return {record, generation};
}

void close_record(region_mark const& mark) noexcept {
    if (mark.record == nullptr) return;
    record_store& s = store();
    std::lock_guard const lock{s.mutex};
    // The store owns the record; slices only hold it as const.
    auto* const record = const_cast<region_record*>(mark.record);
    record->generation.store(mark.generation + 1, std::memory_order_release);
    s.free.push_back(record);
}

}  // namespace rcverbs::detail
