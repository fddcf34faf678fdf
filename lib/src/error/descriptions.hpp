// descriptions.hpp — the text of each error: what happened, and what to do.
//
// The messages and the tables of docs/reference/errors.md are made from it.
#pragma once

#include <boost/system/errc.hpp>

#include <string>

#include <rcverbs/channel_error.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/session_error.hpp>

namespace rcverbs::detail {

/// A set of conditions.
namespace conditions {
constexpr unsigned bit(condition c) noexcept { return 1U << static_cast<unsigned>(c); }
inline constexpr unsigned timed_out = bit(condition::timed_out);
inline constexpr unsigned protocol_violation = bit(condition::protocol_violation);
inline constexpr unsigned ended_by_peer = bit(condition::ended_by_peer);
inline constexpr unsigned refused = bit(condition::refused);
inline constexpr unsigned transient = bit(condition::transient);
inline constexpr unsigned operation_only = bit(condition::operation_only);
}  // namespace conditions

/// Two sentences without their full stops. `what` begins with a small letter, because it follows a
/// step and an address.
struct description {
    char const* what = nullptr;
    char const* remedy = nullptr;
    /// The condition of boost::system::errc with the same meaning.
    boost::system::errc::errc_t like = boost::system::errc::io_error;
    /// The conditions of this library that the code equals.
    unsigned conditions = 0;
    /// The name of the enumerator; null for those that C headers name.
    char const* symbol = nullptr;

    /// Both sentences.
    std::string text() const;
};

/// Empty for a number outside the enumeration.
description describe(errc e) noexcept;
description describe(wc_errc e) noexcept;
/// A rejection by the connection manager has the code 1000 + reason. Source: InfiniBand
/// specification, table of rejection reasons.
description describe(cm_errc e) noexcept;
description describe(session_errc e) noexcept;
description describe(channel_errc e) noexcept;

/// A category whose codes have descriptions.
class described_category : public boost::system::error_category {
public:
    virtual description describe(int value) const noexcept = 0;

    std::string message(int value) const override;
    boost::system::error_condition default_error_condition(int value) const noexcept override;
    bool equivalent(int value, boost::system::error_condition const& c) const noexcept override;
    using boost::system::error_category::equivalent;

protected:
    /// The text for a number outside the enumeration.
    virtual std::string unknown(int value) const {
        return "unknown error " + std::to_string(value);
    }
};

/// The category of an enumeration.
template <class Code>
class category_of : public described_category {
public:
    explicit constexpr category_of(char const* name) noexcept : name_{name} {}
    char const* name() const noexcept override { return name_; }
    description describe(int value) const noexcept override {
        return detail::describe(static_cast<Code>(value));
    }

private:
    char const* const name_;
};

}  // namespace rcverbs::detail
