// recycled_map.hpp — what comes and goes with each allocation takes no memory from the heap.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include <rcverbs/experimental/protocol.hpp>

namespace rcverbs::detail {

/// By number.
template <class Value>
using recycled_map = std::map<
    std::uint64_t,
    Value,
    std::less<>,
    recycling_allocator<std::pair<std::uint64_t const, Value>>>;

template <class T, class... Arguments>
std::shared_ptr<T> make_recycled(Arguments&&... arguments) {
    return std::allocate_shared<T>(
        recycling_allocator<std::remove_const_t<T>>{}, std::forward<Arguments>(arguments)...
    );
}

}  // namespace rcverbs::detail
