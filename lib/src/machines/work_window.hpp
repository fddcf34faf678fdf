// work_window.hpp — the account of one work queue: which slots are taken, by what, and when they come back.
//
//              post                        retire(its own sequence, or any later one)
//        free ───────▶ posted ─────────────────────────────────────────────────────▶ free
//
//   Full when as many slots are posted as the queue has. A slot comes back only when a polled completion covers it: its
//   own, or, for work that was posted without asking for a completion, that of any later work of the same queue, since a
//   reliable connection completes in order. That the peer has acknowledged the work gives nothing back.
//   Reads and atomics are counted apart, too: no more of them are outstanding than was negotiated.
//
// The send window and the receive window of a connection are one of these each. Decides only; no I/O, no threads. Its
// size is fixed when it is made.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rcverbs::machines {

/// `Entry` is what the owner wants back when the slot does: small and trivially copyable.
template <class Entry>
class work_window {
public:
    work_window() = default;
    /// `slot_count` slots; `read_depth_max` reads and atomics at a time.
    explicit work_window(std::size_t slot_count, std::size_t read_depth_max = 0)
        : slots_(slot_count), read_depth_max_{read_depth_max} {}

    /// The negotiated depth of reads and atomics, known once connected.
    void set_read_depth(std::size_t depth) noexcept { read_depth_max_ = depth; }
    std::size_t read_depth_max() const noexcept { return read_depth_max_; }

    /// True if one more may be posted; `is_read` says whether it is a read or an atomic.
    bool can_post(bool is_read) const noexcept {
        return posted_ < slots_.size() && (!is_read || reads_ < read_depth_max_);
    }

    /// Takes a slot; returns its sequence number, which counts posted work from 0. REQUIRES: can_post(is_read).
    std::uint64_t post(Entry entry, bool is_read) {
        assert(can_post(is_read));
        std::uint64_t const sequence = oldest_ + posted_;
        slots_[sequence % slots_.size()] = {entry, is_read};
        ++posted_;
        if (is_read) ++reads_;
        return sequence;
    }

    /// Takes back the newest slots, `count` of them, whose work could not be posted after all.
    void unpost(std::size_t count) {
        assert(count <= posted_);
        for (; count > 0; --count) {
            --posted_;
            if (slots_[(oldest_ + posted_) % slots_.size()].is_read) --reads_;
        }
    }

    /// True if `sequence` is posted; a completion that names anything else is not ours.
    bool is_posted(std::uint64_t sequence) const noexcept { return sequence - oldest_ < posted_; }

    /// Frees the slots up to and including `sequence`, oldest first, and hands each entry to `visit(entry, is_last)`.
    /// REQUIRES: is_posted(sequence).
    template <class Visit>
    void retire(std::uint64_t sequence, Visit&& visit) {
        assert(is_posted(sequence));
        for (bool last = false; !last;) {
            last = oldest_ == sequence;
            slot const& done = slots_[oldest_ % slots_.size()];
            if (done.is_read) --reads_;
            ++oldest_;
            --posted_;
            visit(done.entry, last);
        }
    }

    /// Frees all slots, as if the newest one had completed.
    template <class Visit>
    void retire_all(Visit&& visit) {
        if (posted_ > 0) retire(oldest_ + posted_ - 1, visit);
    }

    std::size_t posted() const noexcept { return posted_; }
    std::size_t reads() const noexcept { return reads_; }
    std::size_t size() const noexcept { return slots_.size(); }

private:
    struct slot {
        Entry entry{};
        bool is_read = false;
    };

    std::vector<slot> slots_;
    std::size_t read_depth_max_ = 0;
    std::uint64_t oldest_ = 0;
    std::size_t posted_ = 0;
    std::size_t reads_ = 0;
};

}  // namespace rcverbs::machines
