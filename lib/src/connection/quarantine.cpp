#include "connection/quarantine.hpp"

#include <mutex>
#include <vector>

namespace rcverbs::detail {

namespace {

struct ward {
    std::mutex mutex;
    std::vector<quarantined> patients;
};

// Never destroyed: what is in it must not be, not even at the process's end.
ward& the_ward() noexcept {
    static ward* const instance = new ward;
    return *instance;
}

}  // namespace

void keep_for_ever(quarantined what) {
    ward& w = the_ward();
    std::lock_guard const lock{w.mutex};
    w.patients.push_back(std::move(what));
}

std::size_t quarantined_count() noexcept {
    ward& w = the_ward();
    std::lock_guard const lock{w.mutex};
    return w.patients.size();
}

}  // namespace rcverbs::detail
