// work_window.hpp — the slots of one work queue: which are taken, by which work, and when they are
// freed.
//
//              post                        retire(its own sequence, or any later one)
//        free ───────▶ posted ─────────────────────────────────────────────────────▶ free
//
//   Full when as many slots are posted as the queue has. A slot is freed only when a polled
//   completion covers it: its own or, for unsignaled work, that of any later work of the same
//   queue, because a reliable connection completes in order. The peer's acknowledgement alone frees
//   no slot. Reads and atomics are also counted separately: no more are outstanding than
//   negotiated. Signaled work is counted separately, too: without it, no completion can be
//   expected.
//
// A connection has one for its send queue and one for its receive queue. Pure logic: no I/O, no
// threads. The size is fixed at construction.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rcverbs::machines {

/// `Entry` is the owner's data for a slot, handed back when the slot is freed: small and trivially
/// copyable.
template <class Entry>
class work_window {
public:
    work_window() = default;
    /// `slot_count` slots; `read_depth_max` reads and atomics at a time.
    explicit work_window(std::size_t slot_count, std::size_t read_depth_max = 0)
        : slots_(std::bit_ceil(slot_count)),
          mask_{slots_.size() - 1},
          size_{slot_count},
          read_depth_max_{read_depth_max} {}

    /// The negotiated depth of reads and atomics, known once connected.
    void set_read_depth(std::size_t depth) noexcept { read_depth_max_ = depth; }
    std::size_t read_depth_max() const noexcept { return read_depth_max_; }

    /// True if one more may be posted; `is_read` is true for a read or an atomic.
    bool can_post(bool is_read) const noexcept {
        return posted_ < size_ && (!is_read || reads_ < read_depth_max_);
    }

    /// Takes a slot; returns its sequence number, which counts posted work from 0. REQUIRES:
    /// can_post(is_read).
    std::uint64_t post(Entry entry, bool is_read, bool is_signalled = true) {
        assert(can_post(is_read));
        std::uint64_t const sequence = oldest_ + posted_;
        at(sequence) = {entry, is_read, is_signalled};
        ++posted_;
        if (is_read) ++reads_;
        if (is_signalled) ++signalled_;
        return sequence;
    }

    /// Frees the newest `count` slots, whose work could not be posted.
    void unpost(std::size_t count) {
        assert(count <= posted_);
        for (; count > 0; --count) {
            --posted_;
            forget(at(oldest_ + posted_));
        }
    }

    /// True if `sequence` is posted; a completion with another number does not belong to this
    /// queue.
    bool is_posted(std::uint64_t sequence) const noexcept { return sequence - oldest_ < posted_; }

    /// The entry that was posted under this number. REQUIRES: is_posted(sequence).
    Entry const& entry_of(std::uint64_t sequence) const noexcept {
        assert(is_posted(sequence));
        return slots_[sequence & mask_].entry;
    }

    /// True if it is a read or an atomic. REQUIRES: is_posted(sequence).
    bool is_read(std::uint64_t sequence) const noexcept {
        assert(is_posted(sequence));
        return slots_[sequence & mask_].is_read;
    }

    /// Frees the slots up to and including `sequence`, oldest first, and hands each entry with its
    /// own sequence number to `visit(entry, number)`. REQUIRES: is_posted(sequence).
    template <class Visit>
    void retire(std::uint64_t sequence, Visit&& visit) {
        assert(is_posted(sequence));
        for (bool last = false; !last;) {
            std::uint64_t const number = oldest_;
            last = number == sequence;
            slot const& done = at(number);
            forget(done);
            ++oldest_;
            --posted_;
            visit(done.entry, number);
        }
    }

    /// Frees the oldest slot and returns its entry. REQUIRES: posted() > 0.
    Entry retire_oldest() noexcept {
        slot const& done = at(oldest_);
        forget(done);
        ++oldest_;
        --posted_;
        return done.entry;
    }

    /// Frees all slots, as if the newest one had completed.
    template <class Visit>
    void retire_all(Visit&& visit) {
        if (posted_ > 0) retire(oldest_ + posted_ - 1, visit);
    }

    std::size_t posted() const noexcept { return posted_; }
    std::size_t reads() const noexcept { return reads_; }
    std::size_t signalled() const noexcept { return signalled_; }
    /// The number of free slots.
    std::size_t room() const noexcept { return size_ - posted_; }
    /// The number of further reads and atomics that may be posted.
    std::size_t read_room() const noexcept {
        return read_depth_max_ - std::min(reads_, read_depth_max_);
    }
    /// The sequence number that the next work to be posted will have.
    std::uint64_t next() const noexcept { return oldest_ + posted_; }
    /// The sequence number of the oldest posted work, or of the next to be posted.
    std::uint64_t oldest() const noexcept { return oldest_; }
    std::size_t size() const noexcept { return size_; }

private:
    struct slot {
        Entry entry{};
        bool is_read = false;
        bool is_signalled = true;
    };

    void forget(slot const& s) noexcept {
        reads_ -= s.is_read ? 1 : 0;
        signalled_ -= s.is_signalled ? 1 : 0;
    }

    // A ring whose length is a power of two, so that finding a slot takes no division.
    slot& at(std::uint64_t sequence) noexcept { return slots_[sequence & mask_]; }

    std::vector<slot> slots_;
    std::uint64_t mask_ = 0;
    std::size_t size_ = 0;
    std::size_t read_depth_max_ = 0;
    std::uint64_t oldest_ = 0;
    std::size_t posted_ = 0;
    std::size_t reads_ = 0;
    std::size_t signalled_ = 0;
};

}  // namespace rcverbs::machines
