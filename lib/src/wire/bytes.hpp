// bytes.hpp — numbers in network byte order, read and written with bounds checked.
#pragma once

#include <boost/endian/conversion.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
        boost::endian::native_to_big_inplace(value);
        std::memcpy(out_.data() + size_, &value, sizeof(T));
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

/// REQUIRES: the bytes of a T from there on.
template <std::unsigned_integral T>
T number_at(std::byte const* from) noexcept {
    T value = 0;
    std::memcpy(&value, from, sizeof(T));
    return boost::endian::big_to_native(value);
}

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
        T const value = number_at<T>(in_.data() + position_);
        position_ += sizeof(T);
        return value;
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
