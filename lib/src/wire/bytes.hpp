// bytes.hpp — numbers in network byte order, read and written with bounds checked.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace rcverbs::wire {

/// Writes numbers one after another; too_short() is true if they did not fit.
class writer {
public:
    explicit writer(std::span<std::byte> out) noexcept : out_{out} {}

    template <std::unsigned_integral T>
    void put(T value) noexcept {
        if (out_.size() - size_ < sizeof(T)) {
            too_short_ = true;
            return;
        }
        for (std::size_t i = 0; i < sizeof(T); ++i) {
            out_[size_ + i] = static_cast<std::byte>(value >> (8 * (sizeof(T) - 1 - i)));
        }
        size_ += sizeof(T);
    }

    void put(std::span<std::byte const> bytes) noexcept {
        for (std::byte const b : bytes) put(std::to_integer<std::uint8_t>(b));
    }

    std::size_t size() const noexcept { return size_; }
    bool too_short() const noexcept { return too_short_; }

private:
    std::span<std::byte> out_;
    std::size_t size_ = 0;
    bool too_short_ = false;
};

/// Reads numbers one after another; beyond the end they read as 0, and too_short() becomes true.
class reader {
public:
    explicit reader(std::span<std::byte const> in) noexcept : in_{in} {}

    template <std::unsigned_integral T>
    T get() noexcept {
        if (in_.size() - position_ < sizeof(T)) {
            too_short_ = true;
            return 0;
        }
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < sizeof(T); ++i) {
            value = value << 8 | std::to_integer<std::uint64_t>(in_[position_ + i]);
        }
        position_ += sizeof(T);
        return static_cast<T>(value);
    }

    /// The next `count` bytes as they are; empty, with too_short(), if fewer are left.
    std::span<std::byte const> take(std::size_t count) noexcept {
        if (left() < count) {
            too_short_ = true;
            return {};
        }
        position_ += count;
        return in_.subspan(position_ - count, count);
    }

    std::size_t left() const noexcept { return in_.size() - position_; }
    bool too_short() const noexcept { return too_short_; }

private:
    std::span<std::byte const> in_;
    std::size_t position_ = 0;
    bool too_short_ = false;
};

}  // namespace rcverbs::wire
