// piece_map.hpp — how a region of any size is divided into pieces, each with a key of its own.
//
// A region is a list of ranges, one behind the other; each range is divided into pieces of
// `piece_bytes`, the last of which may be shorter. Both sides compute the same from the same numbers,
// so that a message needs to have nothing but the keys.
//
// No I/O, no clock, one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace rcverbs::machines {

class piece_map {
public:
    static constexpr std::size_t ranges_max = 16;
    static constexpr std::uint32_t pieces_max = 65536;

    /// A part of one piece.
    struct part {
        std::uint32_t piece = 0;
        std::uint64_t offset = 0;  // in the piece
        std::uint64_t size = 0;

        friend bool operator==(part const&, part const&) = default;
    };

    piece_map() = default;
    /// Of ranges of these sizes; is_valid() is false if there is none or are too many, one is empty,
    /// there are too many pieces, or the sizes exceed 2^63.
    piece_map(std::uint64_t piece_bytes, std::span<std::uint64_t const> range_bytes) noexcept
        : piece_bytes_{piece_bytes} {
        if (range_bytes.empty() || range_bytes.size() > ranges_max || piece_bytes == 0) return;
        std::uint64_t pieces = 0;
        for (std::uint64_t const bytes : range_bytes) {
            if (bytes == 0 || bytes > bytes_max - size_bytes_) return;
            ranges_[count_++] = {size_bytes_, bytes, static_cast<std::uint32_t>(pieces)};
            size_bytes_ += bytes;
            pieces += (bytes - 1) / piece_bytes + 1;
            if (pieces > pieces_max) return;
        }
        pieces_ = static_cast<std::uint32_t>(pieces);
    }

    bool is_valid() const noexcept { return pieces_ > 0; }
    std::uint64_t size() const noexcept { return size_bytes_; }
    std::uint64_t piece_bytes() const noexcept { return piece_bytes_; }
    std::uint32_t pieces() const noexcept { return pieces_; }
    std::size_t ranges() const noexcept { return count_; }
    std::uint64_t range_bytes(std::size_t number) const noexcept { return ranges_[number].size; }

    /// The range of a piece, and the part of it. REQUIRES: piece < pieces().
    part in_range(std::uint32_t piece) const noexcept {
        std::size_t const r = range_of_piece(piece);
        range const& of = ranges_[r];
        std::uint64_t const offset = (piece - of.piece_first) * piece_bytes_;
        return {static_cast<std::uint32_t>(r), offset, std::min(piece_bytes_, of.size - offset)};
    }

    /// True if there are `size` bytes from `offset` on.
    bool contains(std::uint64_t offset, std::uint64_t size) const noexcept {
        return offset <= size_bytes_ && size <= size_bytes_ - offset;
    }
    /// The piece that has this byte, and the rest of it, at most `size` bytes. REQUIRES: the byte is
    /// inside.
    part first_part(std::uint64_t offset, std::uint64_t size) const noexcept {
        std::size_t r = count_ - 1;
        while (ranges_[r].offset > offset) --r;
        range const& of = ranges_[r];
        std::uint64_t const inside = offset - of.offset;
        std::uint64_t const number = inside / piece_bytes_;
        std::uint64_t const begin = number * piece_bytes_;
        std::uint64_t const end = begin + std::min(piece_bytes_, of.size - begin);
        return {
            of.piece_first + static_cast<std::uint32_t>(number),
            inside - begin,
            std::min(size, end - inside)};
    }
    /// Calls `take(part)` for each part of a range, in order. REQUIRES: contains().
    template <class Take>
    void cut(std::uint64_t offset, std::uint64_t size, Take take) const {
        while (size > 0) {
            part const p = first_part(offset, size);
            take(p);
            offset += p.size;
            size -= p.size;
        }
    }

private:
    static constexpr std::uint64_t bytes_max = std::uint64_t{1} << 63;

    struct range {
        std::uint64_t offset = 0;
        std::uint64_t size = 0;
        std::uint32_t piece_first = 0;
    };

    std::size_t range_of_piece(std::uint32_t piece) const noexcept {
        std::size_t r = count_ - 1;
        while (ranges_[r].piece_first > piece) --r;
        return r;
    }

    std::array<range, ranges_max> ranges_{};
    std::size_t count_ = 0;
    std::uint64_t piece_bytes_ = 0;
    std::uint64_t size_bytes_ = 0;
    std::uint32_t pieces_ = 0;
};

}  // namespace rcverbs::machines
