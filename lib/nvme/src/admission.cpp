#include "admission.hpp"

#include <algorithm>
#include <map>

namespace rcverbs::nvme::detail {

namespace {

using boost::asio::ip::address;

admission in_exchange_for_oldest(
    std::vector<present_queue> const& present, address const& of, admission::verdict otherwise
) {
    auto const oldest = std::ranges::find_if(present, [&](present_queue const& q) {
        return !q.is_proven && q.address == of;
    });
    if (oldest == present.end()) return {otherwise};
    return {admission::verdict::in_exchange, static_cast<std::size_t>(oldest - present.begin())};
}

// The address that has most queues without a proof; of several, the one whose oldest is older.
address most_crowded(std::vector<present_queue> const& present) {
    std::map<address, std::size_t> counts;
    for (present_queue const& q : present) counts[q.address] += q.is_proven ? 0 : 1;
    auto const most = std::ranges::max_element(present, {}, [&](present_queue const& q) {
        return counts[q.address];
    });
    return most == present.end() ? address{} : most->address;
}

}  // namespace

admission admit(
    std::vector<present_queue> const& present, address const& next, queue_limits limits
) {
    using verdict = admission::verdict;
    auto const of_address = std::ranges::count(present, next, &present_queue::address);
    if (static_cast<std::size_t>(of_address) >= limits.per_address)
        return in_exchange_for_oldest(present, next, verdict::too_many_of_address);
    if (present.size() < limits.in_all) return {};
    return in_exchange_for_oldest(present, most_crowded(present), verdict::too_many);
}

}  // namespace rcverbs::nvme::detail
