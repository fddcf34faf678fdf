// resource_limits.hpp — how many connections the limits of this process allow.
#pragma once

#include <cstddef>

#include <rcverbs/acceptor.hpp>

namespace rcverbs::detail {

/// Descriptors that opening an RDMA device takes.
inline constexpr unsigned descriptors_per_device = 3;

/// The number of connections, 1 to 4096, for which this process has descriptors and lockable memory
/// if an acceptor with these options accepts them.
std::size_t affordable_connections(acceptor_options const& options);

}  // namespace rcverbs::detail
