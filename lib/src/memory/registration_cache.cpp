#include <rcverbs/experimental/registration_cache.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include <rcverbs/memory_region.hpp>

#include "error/detailed_error.hpp"

namespace rcverbs {

namespace detail {

struct cached_region {
    memory_region region;
};

namespace {

using address = std::uintptr_t;

address number(void const* p) noexcept {
    return reinterpret_cast<address>(p);  // to round it to pages
}

}  // namespace

class registration_cache_core {
public:
    registration_cache_core(
        protection_domain const& domain, registration_cache_options const& options
    )
        : domain_{domain},
          options_{options},
          page_bytes_{static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))} {}

    protection_domain const& domain() const noexcept { return domain_; }

    region_lease get(std::span<std::byte> bytes, error_code& ec) {
        ec.clear();
        if (bytes.empty()) {
            ec = make_error_code(boost::system::errc::invalid_argument);
            return {};
        }
        address const own_begin = number(bytes.data()) / page_bytes_ * page_bytes_;
        address const own_end =
            (number(bytes.data()) + bytes.size() + page_bytes_ - 1) / page_bytes_ * page_bytes_;
        address begin = own_begin;
        address end = own_end;
        std::uint64_t forgets = 0;
        {
            std::lock_guard const lock{mutex_};
            if (auto const found = find(begin, end); found != entries_.end()) {
                ++statistics_.hits;
                used_.splice(used_.begin(), used_, found->second.place);
                return lease(found->second.region, bytes);
            }
            ++statistics_.misses;
            forgets = forgets_;
            // With what it overlaps it is one range, all of which is mapped.
            for (auto i = first_overlap(begin); i != entries_.end() && i->first < end; ++i) {
                begin = std::min(begin, i->first);
                end = std::max(end, i->second.end);
            }
        }
        auto made = std::make_shared<cached_region>();
        made->region = register_range(begin, end, ec);
        // Together they may be more than the limit of locked memory: the range alone.
        if (ec && (begin != own_begin || end != own_end)) {
            begin = own_begin;
            end = own_end;
            made->region = register_range(begin, end, ec);
        }
        if (ec) return {};
        keep(begin, end, made, forgets);
        return lease(made, bytes);
    }

    void forget(std::span<std::byte const> bytes) noexcept {
        entry_map gone;
        std::lock_guard const lock{mutex_};
        ++forgets_;
        address const begin = number(bytes.data());
        for (auto i = first_overlap(begin); i != entries_.end() && i->first < begin + bytes.size();)
            i = remove(i, gone);
    }

    registration_cache_statistics statistics() const {
        std::lock_guard const lock{mutex_};
        registration_cache_statistics s = statistics_;
        s.regions = entries_.size();
        return s;
    }

private:
    struct entry {
        address end = 0;
        std::shared_ptr<cached_region> region;
        std::list<address>::iterator place;
    };
    // They do not overlap. Those that are removed are deregistered after the lock has been released.
    using entry_map = std::map<address, entry>;

    static region_lease lease(
        std::shared_ptr<cached_region> const& region, std::span<std::byte> bytes
    ) {
        return {region, region->region.slice(bytes)};
    }

    memory_region register_range(address begin, address end, error_code& ec) const {
        ec.clear();
        std::span<std::byte> const range{
            reinterpret_cast<std::byte*>(begin), end - begin};  // as the kernel has pages
        return {domain_, range, options_.rights, ec};
    }

    entry_map::iterator first_overlap(address begin) {
        auto i = entries_.upper_bound(begin);
        if (i != entries_.begin() && std::prev(i)->second.end > begin) --i;
        return i;
    }
    entry_map::iterator find(address begin, address end) {
        auto const i = first_overlap(begin);
        return i != entries_.end() && i->first <= begin && i->second.end >= end ? i
                                                                                : entries_.end();
    }

    entry_map::iterator remove(entry_map::iterator i, entry_map& gone) noexcept {
        statistics_.bytes -= i->second.end - i->first;
        used_.erase(i->second.place);
        auto const next = std::next(i);
        gone.insert(entries_.extract(i));
        return next;
    }

    // `forgets` is the number of calls of forget() before the registration began. If there were more
    // since, a part of the range may have been unmapped and mapped again: not kept.
    void keep(
        address begin,
        address end,
        std::shared_ptr<cached_region> const& region,
        std::uint64_t forgets
    ) {
        entry_map gone;
        std::lock_guard const lock{mutex_};
        if (forgets != forgets_) return;
        // Another thread may have been faster, or have registered a part meanwhile.
        for (auto i = first_overlap(begin); i != entries_.end() && i->first < end;)
            i = remove(i, gone);
        make_room(end - begin, gone);
        if (statistics_.bytes + (end - begin) > options_.bytes_max ||
            entries_.size() + 1 > options_.regions_max)
            return;  // for its lease alone
        std::list<address> place{begin};
        entries_.emplace(begin, entry{end, region, place.begin()});
        used_.splice(used_.begin(), place);
        statistics_.bytes += end - begin;
    }

    // Gives up what was not used for longest; registrations with a lease stay.
    void make_room(std::size_t bytes, entry_map& gone) noexcept {
        for (auto i = used_.end(); i != used_.begin() && !has_room(bytes);) {
            --i;
            auto const found = entries_.find(*i);
            if (found->second.region.use_count() > 1) continue;
            ++i;
            remove(found, gone);
            ++statistics_.evictions;
        }
    }
    bool has_room(std::size_t bytes) const noexcept {
        return statistics_.bytes + bytes <= options_.bytes_max &&
               entries_.size() < options_.regions_max;
    }

    protection_domain const domain_;
    registration_cache_options const options_;
    std::size_t const page_bytes_;

    mutable std::mutex mutex_;
    entry_map entries_;
    std::list<address> used_;  // by begin, the last used first
    std::uint64_t forgets_ = 0;
    registration_cache_statistics statistics_;
};

}  // namespace detail

remote_region region_lease::remote() const {
    memory_region const& all = region_->region;
    auto const offset = static_cast<std::size_t>(slice_.data() - all.bytes().data());
    return all.remote().slice(offset, slice_.size());
}

registration_cache::registration_cache(
    protection_domain const& domain, registration_cache_options const& options
)
    : core_{std::make_unique<detail::registration_cache_core>(domain, options)} {}

registration_cache::~registration_cache() = default;

region_lease registration_cache::get(std::span<std::byte> bytes, error_code& ec) {
    return core_->get(bytes, ec);
}

region_lease registration_cache::get(std::span<std::byte> bytes) {
    error_code ec;
    region_lease made = core_->get(bytes, ec);
    if (ec) detail::throw_registration_failure(core_->domain(), ec, bytes.size());
    return made;
}

void registration_cache::forget(std::span<std::byte const> bytes) noexcept { core_->forget(bytes); }

registration_cache_statistics registration_cache::statistics() const { return core_->statistics(); }

}  // namespace rcverbs
