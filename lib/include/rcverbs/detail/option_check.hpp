// option_check.hpp — checks options against ranges; names the first violation, value and range.
// Internal.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <ratio>
#include <string>
#include <type_traits>
#include <utility>

#include <rcverbs/export.hpp>

namespace rcverbs::detail {

class option_check {
public:
    /// Checks fields of the struct named `of`.
    explicit option_check(char const* of) noexcept : of_{of} {}

    /// Requires a value from `least` to `most`.
    template <class T>
    option_check& within(
        char const* field, T value, std::type_identity_t<T> least, std::type_identity_t<T> most
    ) {
        // Written so that a NaN is refused.
        if (!(value >= least && value <= most))
            refuse(field, text(value), "not " + text(least) + " to " + text(most));
        return *this;
    }
    /// The same, unless it is empty.
    template <class T>
    option_check& within(
        char const* field,
        std::optional<T> const& value,
        std::type_identity_t<T> least,
        std::type_identity_t<T> most
    ) {
        return value ? within(field, *value, least, most) : *this;
    }
    /// Requires `least` or more.
    template <class T>
    option_check& from(char const* field, T value, std::type_identity_t<T> least) {
        if (value < least) refuse(field, text(value), "not " + text(least) + " or more");
        return *this;
    }
    /// The same, unless it is empty.
    template <class T>
    option_check& from(
        char const* field, std::optional<T> const& value, std::type_identity_t<T> least
    ) {
        return value ? from(field, *value, least) : *this;
    }
    /// Requires that a choice is compatible with the other options.
    option_check& that(bool holds, char const* field, char const* why_not) {
        if (!holds) refuse(field, "", why_not);
        return *this;
    }
    /// Takes over the problem of a nested options struct; empty if it has none.
    option_check& inside(std::string problem) {
        if (problem_.empty()) problem_ = std::move(problem);
        return *this;
    }

    /// The first violation; empty if there is none.
    std::string const& problem() const noexcept { return problem_; }

private:
    template <std::integral T>
    static std::string text(T value) {
        return std::to_string(value);
    }
    static std::string text(double value) {
        std::string const digits = std::to_string(value);
        std::size_t const point = digits.find('.');
        return point == std::string::npos ? digits : digits.substr(0, point + 3);
    }
    template <class Period>
    static std::string text(std::chrono::duration<std::int64_t, Period> value) {
        if constexpr (std::is_same_v<Period, std::milli>) return text(value.count()) + " ms";
        else return text(std::chrono::nanoseconds{value}.count()) + " ns";
    }

    void refuse(char const* field, std::string const& value, std::string const& range) {
        if (!problem_.empty()) return;
        problem_ =
            std::string{of_} + "::" + field + (value.empty() ? " " : " is " + value + ", ") + range;
    }

    char const* of_;
    std::string problem_;
};

/// Throws errc::invalid_option if there is a problem; the text names it.
RCVERBS_EXPORT void throw_if_refused(std::string const& problem);

}  // namespace rcverbs::detail
