// bytes_view.hpp — bytes that an operation copies from, whatever container they are in.
//
//     std::string const text = "hello";
//     co_await channel.async_send(text, 0, use_awaitable);
//     std::vector<int> const numbers{1, 2, 3};
//     reply const r = co_await requests.async_request(1, numbers, use_awaitable);
//
// Threads: any.
#pragma once

#include <concepts>
#include <cstddef>
#include <ranges>
#include <span>
#include <type_traits>

#include <rcverbs/slice.hpp>

namespace rcverbs {

namespace detail {

/// Elements that may be sent as the bytes that they consist of. A pointer means nothing to a peer, and a
/// buffer stands for other bytes.
template <class T>
concept plain_element = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
                        !std::convertible_to<T const&, boost::asio::const_buffer>;

template <class T>
inline constexpr bool is_text_literal = false;
template <std::size_t N>
inline constexpr bool is_text_literal<char[N]> = true;

template <class T>
concept plain_range = std::ranges::contiguous_range<T const> && std::ranges::sized_range<T const> &&
    plain_element<std::ranges::range_value_t<T const>> && !is_text_literal<T>;

/// What is sent from registered memory. What converts to bytes as well is bytes.
template <class T>
concept slices_only = std::convertible_to<T const&, const_slices> &&
    !std::convertible_to<T const&, std::span<std::byte const>>;

}  // namespace detail

/// A range of bytes that is read, with the ranges that convert to it: those of bytes, and contiguous ones of
/// elements that are trivially copyable and no pointers, such as std::string, std::string_view and
/// std::vector<int>. A string literal does not: it would be sent with its last zero. Of a single value:
/// `std::span{&value, 1}`.
class bytes_view : public std::span<std::byte const> {
public:
    /// No bytes.
    constexpr bytes_view() noexcept = default;
    /// The bytes of what converts to a span of them.
    template <class T>
    requires std::convertible_to<T const&, std::span<std::byte const>>
    constexpr bytes_view(T const& bytes) noexcept
        : span{static_cast<std::span<std::byte const>>(bytes)} {}
    /// The bytes of the elements of a range.
    template <detail::plain_range Range>
    requires(!std::convertible_to<Range const&, std::span<std::byte const>> && !detail::slices_only<Range>)
        bytes_view(Range const& range)
    noexcept : span{std::as_bytes(std::span{std::ranges::data(range), std::ranges::size(range)})} {}
};

namespace detail {

/// A body as the compiled library takes it: bytes, or slices of registered memory. Borrows the memory.
class body_source {
public:
    /// No bytes.
    body_source() noexcept = default;
    explicit body_source(bytes_view bytes) noexcept
        : list_{access::plain_of(const_slice{bytes, local_key{}})} {}
    explicit body_source(const_slices const& slices) noexcept
        : list_{access::list_of(slices)},
          is_registered_{true} {}

    std::size_t size() const noexcept { return list_.size(); }
    bool is_registered() const noexcept { return is_registered_; }
    /// What is_registered(), or one slice without a region.
    slice_list const& list() const noexcept { return list_; }
    /// REQUIRES: !is_registered().
    std::span<std::byte const> bytes() const noexcept {
        return {list_.front().data, list_.front().size};
    }

private:
    slice_list list_;
    bool is_registered_ = false;
};

template <class T>
body_source body_of(T const& body) {
    if constexpr (slices_only<T>) {
        return body_source{const_slices{body}};
    } else {
        static_assert(
            std::convertible_to<T const&, bytes_view>,
            "rcverbs: a body is a contiguous range of bytes or of trivially copyable elements "
            "(std::string, std::vector<int>; of one value: std::span{&value, 1}; of a literal: "
            "std::string_view), or registered memory: a slice, or a range of slices"
        );
        if constexpr (std::convertible_to<T const&, bytes_view>) {
            return body_source{bytes_view{body}};
        } else {
            return body_source{};  // no second error
        }
    }
}

}  // namespace detail

}  // namespace rcverbs
