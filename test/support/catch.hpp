// catch.hpp — Catch2 version 2 or 3, as installed; string matchers have their names of version 3.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // as in version 2
namespace test {
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
}  // namespace test
#else
#include <catch2/catch.hpp>
namespace test {
inline auto ContainsSubstring(std::string const& text) { return Catch::Contains(text); }
using Catch::EndsWith;
using Catch::StartsWith;
}  // namespace test
#endif
