// boost_version.hpp — lets a program that is compiled with another Boost than the library fail to
// link. Executors and handlers of Asio cross the border of the library, and their layout differs
// between versions. Internal.
#pragma once

#include <boost/version.hpp>

#include <rcverbs/export.hpp>

#define RCVERBS_BOOST_NAME(version_) rcverbs_boost_##version_
#define RCVERBS_BOOST_SYMBOL(version_) RCVERBS_BOOST_NAME(version_)

// Such as rcverbs_boost_108100. The library has the one of its own Boost.
extern "C" RCVERBS_EXPORT void RCVERBS_BOOST_SYMBOL(BOOST_VERSION)() noexcept;

namespace rcverbs::detail {

[[gnu::used]] inline void (*const boost_of_this_program
)() noexcept = &RCVERBS_BOOST_SYMBOL(BOOST_VERSION);

}  // namespace rcverbs::detail
