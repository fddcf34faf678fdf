// ring_machine.hpp — the decisions of both sides of a ring: where a record goes, when there is room,
// what of the other side's is against the rules, and when room is given back.
//
// Records lie in the reader's memory one behind the other, padded to 8 bytes, never across the end: one
// that does not fit behind the last one begins at 0, and the reader knows that from its size. Each
// takes one of the reader's receives, by its immediate data. Bytes and receives are counted from the
// beginning, and never start again, so that a count that is late or comes twice does no harm.
//
// No I/O, no clock, no bytes of records, one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace rcverbs::machines {

/// What the immediate data of a write says.
struct ring_notice {
    enum class kind : std::uint8_t { record, wait, end };

    static constexpr std::uint32_t control = 0x80000000;
    static constexpr std::uint64_t unit_bytes = 8;

    kind what = kind::end;
    /// Of a record with its padding, or the bytes that the writer waits for.
    std::uint64_t bytes = 0;

    static constexpr ring_notice of(std::uint32_t immediate) noexcept {
        std::uint32_t const units = immediate & ~control;
        if ((immediate & control) == 0) return {kind::record, std::uint64_t{units} * unit_bytes};
        return units == 0 ? ring_notice{}
                          : ring_notice{kind::wait, std::uint64_t{units} * unit_bytes};
    }
    constexpr std::uint32_t immediate() const noexcept {
        auto const units = static_cast<std::uint32_t>(bytes / unit_bytes);
        return what == kind::record ? units : control | units;
    }
};

/// What the reader has given back since the beginning.
struct ring_counts {
    /// Bytes of records that were released, with those that were left out at the end of the memory.
    std::uint64_t consumed = 0;
    /// Receives that were posted.
    std::uint64_t posted = 0;
    /// Requests for room that this is an answer to.
    std::uint32_t waits = 0;
    /// Everything was released, and nothing follows.
    bool is_finished = false;

    friend bool operator==(ring_counts const&, ring_counts const&) = default;
};

struct ring_size {
    static constexpr std::uint32_t header_bytes = 8;
    /// Receives that only a request for room and the end may take.
    static constexpr std::uint32_t reserved_receives = 2;

    /// A power of two, 4096 to 2^30.
    std::uint32_t bytes = 0;
    /// 16 to 65536.
    std::uint32_t receives = 0;

    constexpr bool is_valid() const noexcept {
        return bytes >= 4096 && bytes <= std::uint32_t{1} << 30 && (bytes & (bytes - 1)) == 0 &&
               receives >= 16 && receives <= 65536;
    }
    /// The longest record, without its header: with the bytes that may have to be left out at the end
    /// it fits into an empty ring.
    constexpr std::uint32_t record_bytes_max() const noexcept { return bytes / 2 - header_bytes; }
    static constexpr std::uint32_t padded(std::uint32_t record_bytes) noexcept {
        return (header_bytes + record_bytes + 7) / 8 * 8;
    }
    /// The bytes that a record takes that comes after `position` bytes.
    constexpr std::uint32_t taken(std::uint64_t position, std::uint32_t padded_bytes)
        const noexcept {
        auto const at = static_cast<std::uint32_t>(position & (bytes - 1));
        return at + padded_bytes > bytes ? bytes - at + padded_bytes : padded_bytes;
    }
    /// Where it begins.
    constexpr std::uint32_t begin(std::uint64_t position, std::uint32_t padded_bytes)
        const noexcept {
        auto const at = static_cast<std::uint32_t>(position & (bytes - 1));
        return at + padded_bytes > bytes ? 0 : at;
    }
};

class ring_writer_machine {
public:
    struct place {
        std::uint32_t offset = 0;
        std::uint32_t sequence = 0;
    };

    ring_writer_machine() = default;
    /// REQUIRES: size.is_valid().
    explicit ring_writer_machine(ring_size size) noexcept : size_{size} {
        heard_.posted = size.receives;
    }

    ring_size size() const noexcept { return size_; }
    /// Takes the place of a record; nothing if there is none now. REQUIRES: it is at most
    /// record_bytes_max().
    std::optional<place> add(std::uint32_t record_bytes) noexcept {
        std::uint32_t const padded = ring_size::padded(record_bytes);
        std::uint32_t const taken = size_.taken(written_, padded);
        if (written_ + taken - heard_.consumed > size_.bytes) return {};
        if (notices_ + ring_size::reserved_receives >= heard_.posted) return {};
        place const p{size_.begin(written_, padded), sequence_++};
        written_ += taken;
        ++notices_;
        return p;
    }
    /// A request for room, for a record that has no place; nothing if one is unanswered.
    std::optional<ring_notice> ask(std::uint32_t record_bytes) noexcept {
        if (waits_ != heard_.waits) return {};
        ++waits_;
        ++notices_;
        std::uint32_t const needed = size_.taken(written_, ring_size::padded(record_bytes));
        return ring_notice{ring_notice::kind::wait, std::max(needed, size_.bytes / 4)};
    }
    /// The last notice.
    ring_notice end() noexcept {
        ++notices_;
        has_ended_ = true;
        return {};
    }
    /// False if they cannot be true.
    bool hear(ring_counts const& c) noexcept {
        bool const is_possible =
            c.consumed >= heard_.consumed && c.consumed <= written_ && c.consumed % 8 == 0 &&
            c.posted >= heard_.posted && c.posted <= notices_ + size_.receives &&
            (c.waits == heard_.waits || c.waits == waits_) && !heard_.is_finished &&
            (!c.is_finished || (has_ended_ && c.consumed == written_));
        if (is_possible) heard_ = c;
        return is_possible;
    }
    bool is_finished() const noexcept { return heard_.is_finished; }
    std::uint64_t used_bytes() const noexcept { return written_ - heard_.consumed; }
    std::uint32_t records() const noexcept { return sequence_; }
    std::uint32_t waits() const noexcept { return waits_; }

private:
    ring_size size_;
    ring_counts heard_;
    std::uint64_t written_ = 0;
    std::uint64_t notices_ = 0;
    std::uint32_t sequence_ = 0;
    std::uint32_t waits_ = 0;
    bool has_ended_ = false;
};

class ring_reader_machine {
public:
    enum class event : std::uint8_t { record, wait, end, violation };
    struct arrival {
        event what = event::violation;
        /// Of a record: where its header is, and the bytes behind the header.
        std::uint32_t offset = 0;
        std::uint32_t record_bytes = 0;
        std::uint32_t sequence = 0;
        /// What release() takes.
        std::uint64_t end = 0;
    };

    ring_reader_machine() = default;
    /// REQUIRES: size.is_valid().
    explicit ring_reader_machine(ring_size size) noexcept : size_{size} {
        now_.posted = told_.posted = size.receives;
    }

    ring_size size() const noexcept { return size_; }
    /// A notice has arrived, with so many bytes in front of it. After a request for room the receive
    /// must be posted again.
    arrival on_notice(std::uint32_t immediate, std::size_t bytes_written) noexcept {
        ++seen_;
        ring_notice const n = ring_notice::of(immediate);
        if (has_ended_) return {};
        switch (n.what) {
        case ring_notice::kind::record: return on_record(n.bytes, bytes_written);
        case ring_notice::kind::wait:
            if (bytes_written > 0 || needed_ > 0 || n.bytes > size_.bytes) return {};
            needed_ = static_cast<std::uint32_t>(n.bytes);
            ++waits_;
            ++now_.posted;
            return {event::wait, 0, 0, 0, 0};
        case ring_notice::kind::end: break;
        }
        if (bytes_written > 0) return {};
        has_ended_ = true;
        return {event::end, 0, 0, 0, 0};
    }
    /// The oldest record is released: its bytes are free, and its receive was posted again.
    void release(std::uint64_t end) noexcept {
        now_.consumed = end;
        ++now_.posted;
    }
    /// What the writer must hear now; nothing if it can wait.
    std::optional<ring_counts> due() noexcept {
        bool const is_finished = has_ended_ && now_.consumed == received_ && !told_.is_finished;
        bool const is_asked = needed_ > 0 && size_.bytes - (received_ - now_.consumed) >= needed_ &&
                              now_.posted - seen_ > ring_size::reserved_receives;
        bool const is_much = now_.consumed - told_.consumed >= size_.bytes / 4 ||
                             now_.posted - told_.posted >= size_.receives / 4;
        if (told_.is_finished || (!is_finished && !is_asked && !is_much)) return {};
        if (is_asked) {
            needed_ = 0;
            now_.waits = waits_;
        }
        now_.is_finished = is_finished;
        told_ = now_;
        return told_;
    }
    bool has_ended() const noexcept { return has_ended_; }
    std::uint64_t used_bytes() const noexcept { return received_ - now_.consumed; }
    std::uint32_t records() const noexcept { return sequence_; }

private:
    arrival on_record(std::uint64_t padded_bytes, std::size_t bytes_written) noexcept {
        if (bytes_written < ring_size::header_bytes || bytes_written > size_.bytes) return {};
        auto const bytes = static_cast<std::uint32_t>(bytes_written) - ring_size::header_bytes;
        if (bytes > size_.record_bytes_max() || ring_size::padded(bytes) != padded_bytes) return {};
        std::uint32_t const padded = ring_size::padded(bytes);
        std::uint32_t const taken = size_.taken(received_, padded);
        if (received_ + taken - now_.consumed > size_.bytes) return {};
        arrival const a{
            event::record, size_.begin(received_, padded), bytes, sequence_++, received_ + taken};
        received_ += taken;
        return a;
    }

    ring_size size_;
    ring_counts now_;
    ring_counts told_;
    std::uint64_t received_ = 0;
    std::uint64_t seen_ = 0;
    std::uint32_t sequence_ = 0;
    std::uint32_t waits_ = 0;
    std::uint32_t needed_ = 0;
    bool has_ended_ = false;
};

}  // namespace rcverbs::machines
