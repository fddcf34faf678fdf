// admission.hpp — which queue makes room when a target, or an address, has as many as it may.
//
// A host proves itself by its secret, or by connecting to a subsystem that needs none. Everybody can
// have queues that prove nothing: before authentication, and of discovery. They may use what is
// free, and the oldest of them gives way. So whoever has no secret cannot keep out those who have.
#pragma once

#include <boost/asio/ip/address.hpp>

#include <cstddef>
#include <vector>

namespace rcverbs::nvme::detail {

/// A queue that is there.
struct present_queue {
    boost::asio::ip::address address;
    bool is_proven = false;
};

struct queue_limits {
    std::size_t in_all;
    std::size_t per_address;
};

struct admission {
    enum class verdict {
        admitted,
        /// If the queue number `replaced` ends.
        in_exchange,
        too_many,
        too_many_of_address,
    };
    verdict is = verdict::admitted;
    std::size_t replaced = 0;
};

/// Decides about one more queue, of the address `next`.
///
/// @param present  The queues that are there, the oldest first.
/// @return If the address has as many as it may: its own oldest one without a proof is replaced. If
///         there are as many as there may be: the oldest one without a proof of the address that has
///         most of them.
admission admit(
    std::vector<present_queue> const& present,
    boost::asio::ip::address const& next,
    queue_limits limits
);

}  // namespace rcverbs::nvme::detail
