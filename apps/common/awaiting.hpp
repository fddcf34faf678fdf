// awaiting.hpp — the completion token of coroutines that check error codes instead of catching
// exceptions.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace demo {

inline constexpr auto awaiting = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace demo
