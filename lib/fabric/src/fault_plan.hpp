// fault_plan.hpp — the faults that a test has ordered, and the calls so far.
//
// The network's lock guards it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <rcverbs/fabric.hpp>

namespace rcverbs::fabric::detail {

struct fault_plan {
    /// Makes the nth call of a function from now on fail.
    void order_failure(std::string function, std::size_t nth, int error);
    /// Counts a call, and returns the errno with which it has to fail, or 0.
    int failure_of(char const* function);

    std::vector<char const*> called;
    std::unordered_map<std::string, std::size_t> call_counts;
    /// Empty polls that took no lock. While a failure is ordered, all polls take the lock.
    std::atomic<std::size_t> empty_polls{0};
    std::atomic<bool> expects_failures{false};
    bool has_failed = false;
    /// False in programs that order no faults and may run for ever.
    bool is_recording = true;

    /// Called without the lock, and changed while no other thread calls.
    std::function<void(std::string_view)> call_watcher;
    std::function<packet_fate(packet_info const&)> packet_decision;
    std::function<cm_event_fate(cm_event_info const&)> cm_decision;
    std::function<completion_fate(completion_info const&)> completion_decision;
    flush_policy flush;
    destroy_policy destroy;
    std::size_t work_to_fail = 0;
    int work_status = 0;
    std::size_t modify_to_break = 0;
    std::optional<int> reject_with;

private:
    struct ordered_failure {
        std::string function;
        std::size_t nth;
        int error;
    };
    std::vector<ordered_failure> ordered_;
};

}  // namespace rcverbs::fabric::detail
