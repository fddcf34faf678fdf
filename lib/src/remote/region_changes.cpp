#include "remote/region_changes.hpp"

#include <span>
#include <utility>

#include "remote/region_core.hpp"

namespace rcverbs::detail {

region_changes::region_changes(region_core& channel, std::uint32_t most)
    : channel_{channel},
      most_{most},
      waits_{channel, [this](std::uint64_t number, error_code const&, region_change change) {
                 all_.put_back(number, std::move(change));
                 give();
             }} {}

void region_changes::add(region_change::kind what, std::string name) {
    if (all_.size() < most_ && !has_missed_) all_.push({what, std::move(name)});
    else has_missed_ = true;
    give();
}

void region_changes::next(protocol::waiter<error_code, region_change> who) {
    if (waits_.empty() && (!all_.empty() || has_missed_)) {
        note_missed();
        auto first = all_.take_first();
        return waits_.hand_over(std::move(who), first.number, {}, std::move(first.value));
    }
    if (error_code const end = channel_.end_of_requests())
        return channel_.deliver(std::move(who), end, {});
    waits_.add(std::move(who));
}

void region_changes::end() { give(); }

// Those that were missed come behind those that were kept.
void region_changes::note_missed() {
    if (all_.empty() && std::exchange(has_missed_, false))
        all_.push({region_change::kind::missed, {}});
}

void region_changes::give() {
    while (!waits_.empty()) {
        note_missed();
        if (all_.empty()) break;
        auto first = all_.take_first();
        waits_.hand_over_first(first.number, {}, std::move(first.value));
    }
    if (error_code const end = channel_.end_of_requests()) waits_.fail_all(end);
}

void region_changes::offered(std::string const& name) {
    if (channel_.usable()) return;
    unsent_.offered(name);
    notify();
}

void region_changes::withdrawn(std::string const& name) {
    unsent_.withdrawn(name);
    notify();
}

void region_changes::notify() {
    if (channel_.usable()) return;
    while (!unsent_.empty() && under_way_ < under_way_max) {
        auto const next = unsent_.take();
        ++under_way_;
        channel_.notify(
            next.is_offered ? wire::region_operation::offered : wire::region_operation::withdrawn,
            std::as_bytes(std::span{next.name}),
            [this] {
                --under_way_;
                notify();
            }
        );
    }
}

}  // namespace rcverbs::detail
