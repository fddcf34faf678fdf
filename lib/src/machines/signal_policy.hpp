// signal_policy.hpp — which work requests ask for a completion.
//
// A completion costs the device a write and the program a look, so work asks for one only where somebody waits for it: an
// operation's handler, by its last piece. But slots come back with completions only: work that nobody waits for asks
// for one whenever half of the queue has gone without, and a read whenever half of the negotiated depth has. So a full
// queue, or a full depth, always has a completion to come. Decides only; a value.
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

    /// True if the next work request is to ask for a completion; `is_awaited` if a handler waits for this very one.
    bool decide(bool is_read, bool is_awaited) noexcept {
        if (!is_awaited) {
            ++run_;
            if (is_read) ++read_run_;
            if (run_ < run_max_ && read_run_ < read_run_max_) return false;
        }
        run_ = read_run_ = 0;
        return true;
    }

    /// Forgets what was decided: the next one asks. For when decided work could not be posted.
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
