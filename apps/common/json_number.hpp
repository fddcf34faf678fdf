// json_number.hpp — numbers in JSON texts of a peer or a file: checked before they are converted.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace demo {

/// The value as an integer. Throws std::invalid_argument, with `name`, unless it is an integer from
/// `least` to `most`: JSON's numbers may be fractions, and of any size.
template <class Integer>
Integer integer(
    nlohmann::json const& value,
    char const* name,
    Integer least = std::numeric_limits<Integer>::min(),
    Integer most = std::numeric_limits<Integer>::max()
) {
    auto const checked = [&](auto read) {
        if (std::cmp_less(read, least) || std::cmp_greater(read, most))
            throw std::invalid_argument{std::string{name} + " is out of range"};
        return static_cast<Integer>(read);
    };
    if (value.is_number_unsigned()) return checked(value.get<std::uint64_t>());
    if (value.is_number_integer()) return checked(value.get<std::int64_t>());
    throw std::invalid_argument{std::string{name} + " is no integer"};
}

/// The same for an object's member. Throws nlohmann::json::out_of_range if it has none.
template <class Integer>
Integer member(
    nlohmann::json const& in,
    char const* name,
    Integer least = std::numeric_limits<Integer>::min(),
    Integer most = std::numeric_limits<Integer>::max()
) {
    return integer(in.at(name), name, least, most);
}

}  // namespace demo
