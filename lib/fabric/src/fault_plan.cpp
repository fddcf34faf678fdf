#include "fault_plan.hpp"

#include <string_view>
#include <utility>

namespace rcverbs::fabric::detail {

void fault_plan::order_failure(std::string function, std::size_t nth, int error) {
    ordered_.push_back({std::move(function), nth, error});
    expects_failures = true;
}

int fault_plan::failure_of(char const* function) {
    if (!is_recording) return 0;
    // Polls are too frequent to be recorded; they are only counted.
    if (std::string_view{function} != "ibv_poll_cq") called.push_back(function);
    ++call_counts[function];
    int error = 0;
    std::erase_if(ordered_, [&](ordered_failure& f) {
        if (f.function != function || --f.nth > 0) return false;
        error = f.error;
        return true;
    });
    has_failed = has_failed || error != 0;
    if (ordered_.empty()) expects_failures = false;
    return error;
}

}  // namespace rcverbs::fabric::detail
