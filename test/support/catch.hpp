// catch.hpp — Catch2, version 2 or 3, whichever the system has.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
namespace test {
using Catch::Matchers::ContainsSubstring;
}
#else
#include <catch2/catch.hpp>
namespace test {
inline auto ContainsSubstring(std::string const& text) { return Catch::Contains(text); }
}
#endif
