// signal_policy.hpp — which work requests are signaled.
//
// A completion costs the device a write and the program a poll, so a work request is signaled only
// if a handler waits for it: the last piece of an operation with a handler. But slots are freed by
// completions only. So other work is signaled, too, whenever half of the queue has been posted
// unsignaled; and a read whenever half of the negotiated read depth has. A full queue, or a full
// read depth, therefore always has a completion outstanding. Pure logic; a value.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rcverbs::machines {

class signal_policy {
public:
    signal_policy() = default;
    explicit signal_policy(std::size_t slot_count) noexcept : run_max_{half(slot_count)} {}

    /// The negotiated depth of reads and atomics, known once connected.
    void set_read_depth(std::size_t depth) noexcept { read_run_max_ = half(depth); }

    /// True if the next work request is to be signaled; `is_awaited` if a handler waits for this
    /// work request.
    bool decide(bool is_read, bool is_awaited) noexcept {
        if (!is_awaited) {
            ++run_;
            if (is_read) ++read_run_;
            if (run_ < run_max_ && read_run_ < read_run_max_) return false;
        }
        run_ = read_run_ = 0;
        return true;
    }

    /// Drops earlier decisions: the next work request is signaled. For use after a failed post.
    void start_over() noexcept { run_ = run_max_; }

private:
    static std::uint32_t half(std::size_t count) noexcept {
        return static_cast<std::uint32_t>(std::max<std::size_t>(count / 2, 1));
    }

    std::uint32_t run_max_ = 1;
    std::uint32_t read_run_max_ = 1;
    std::uint32_t run_ = 0;
    std::uint32_t read_run_ = 0;
};

}  // namespace rcverbs::machines
