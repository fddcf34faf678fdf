// descriptions.hpp — the text of each error: what happened, and what to do.
//
// The messages and the tables of docs/reference/errors.md are made from it.
#pragma once

#include <string>

#include <rcverbs/error.hpp>

namespace rcverbs::detail {

/// Two sentences without their full stops. `what` begins with a small letter, because it follows a
/// step and an address.
struct description {
    char const* what = nullptr;
    char const* remedy = nullptr;

    /// Both sentences.
    std::string text() const;
};

/// Empty for a number outside the enumeration, and for errc::not_connected, which has the text of
/// the system.
description describe(errc e) noexcept;
description describe(wc_errc e) noexcept;
/// A rejection by the connection manager has the code 1000 + reason. Source: InfiniBand
/// specification, table of rejection reasons.
description describe(cm_errc e) noexcept;

}  // namespace rcverbs::detail
