// registration_cache.hpp — keeps memory of the program's registered, for as long as it is in use. To be copied.
//
// For programs that cannot choose where their memory comes from: the first get() of a range registers it, later ones find the registration.
// Where the program can choose, memory_pool and slot_pool are faster. Ranges are rounded out to pages; ranges that overlap share a
// registration.
//
// The cache keeps the registrations that were used last, within its bounds, and never deregisters one that has a lease. It cannot know when
// the program frees memory and gets other memory at the same address: call forget() before. Any thread may call any function; leases may
// outlive the cache.
#pragma once

#include <rcverbs/memory_region.hpp>
#include <rcverbs/protection_domain.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

namespace example {

/// Bounds and rights of a registration cache.
struct registration_cache_options {
    /// Registered bytes that the cache keeps. A registration beyond this is deregistered with its last lease. 0 keeps nothing.
    std::size_t bytes_max = std::size_t{256} << 20;
    /// Registrations that the cache keeps; as bytes_max.
    std::size_t regions_max = 1024;
    /// With a remote right, a peer that has the key may use the whole pages, also the bytes beside the range.
    rcverbs::access_flags rights = rcverbs::access_flags::local_write;
};

struct registration_cache_statistics {
    /// Calls of get() that found a registration, and that registered memory.
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    /// Registrations that made room for others.
    std::uint64_t evictions = 0;
    /// In the cache at this moment.
    std::size_t regions = 0;
    std::size_t bytes = 0;
};

/// Keeps a range registered.
class region_lease {
public:
    region_lease() noexcept = default;
    region_lease(std::shared_ptr<rcverbs::memory_region> region, std::span<std::byte> bytes)
        : region_{std::move(region)}, slice_{region_->slice(bytes)} {}

    bool is_valid() const noexcept { return region_ != nullptr; }
    rcverbs::mutable_slice const& slice() const noexcept { return slice_; }
    /// The range for a peer. REQUIRES: is_valid().
    rcverbs::remote_region remote() const { return slice_.remote(); }

private:
    std::shared_ptr<rcverbs::memory_region> region_;
    rcverbs::mutable_slice slice_;
};

/// Registrations of the program's memory, by address.
class registration_cache {
public:
    explicit registration_cache(rcverbs::protection_domain const& domain, registration_cache_options const& options = {})
        : domain_{domain}, options_{options} {}

    /// Registers a range of 1 byte or more, or finds its registration. The errors are those of memory_region.
    region_lease get(std::span<std::byte> bytes, rcverbs::error_code& ec) {
        ec.clear();
        if (bytes.empty()) {
            ec = make_error_code(boost::system::errc::invalid_argument);
            return {};
        }
        static auto const page_bytes = static_cast<address>(::sysconf(_SC_PAGESIZE));
        address const own_begin = number(bytes.data()) / page_bytes * page_bytes;
        address const own_end = (number(bytes.data()) + bytes.size() + page_bytes - 1) / page_bytes * page_bytes;
        address begin = own_begin;
        address end = own_end;
        std::uint64_t forgets = 0;
        {
            std::lock_guard const lock{mutex_};
            if (auto const found = find(begin, end); found != entries_.end()) {
                ++statistics_.hits;
                used_.splice(used_.begin(), used_, found->second.place);
                return {found->second.region, bytes};
            }
            ++statistics_.misses;
            forgets = forgets_;
            // With what it overlaps it is one range, all of which is mapped.
            for (auto i = first_overlap(begin); i != entries_.end() && i->first < end; ++i) {
                begin = std::min(begin, i->first);
                end = std::max(end, i->second.end);
            }
        }
        auto made = register_range(begin, end, ec);
        // Together they may be more than the limit of locked memory: the range alone.
        if (ec && (begin != own_begin || end != own_end)) {
            begin = own_begin;
            end = own_end;
            made = register_range(begin, end, ec);
        }
        if (ec) return {};
        keep(begin, end, made, forgets);
        return {made, bytes};
    }
    region_lease get(std::span<std::byte> bytes) {
        rcverbs::error_code ec;
        region_lease made = get(bytes, ec);
        if (ec) throw boost::system::system_error{ec, "registration_cache"};
        return made;
    }

    /// Forgets every registration that overlaps the range; one with a lease is deregistered with its last lease.
    void forget(std::span<std::byte const> bytes) noexcept {
        entry_map gone;
        std::lock_guard const lock{mutex_};
        ++forgets_;
        address const begin = number(bytes.data());
        for (auto i = first_overlap(begin); i != entries_.end() && i->first < begin + bytes.size();) i = remove(i, gone);
    }

    registration_cache_statistics statistics() const {
        std::lock_guard const lock{mutex_};
        registration_cache_statistics s = statistics_;
        s.regions = entries_.size();
        return s;
    }

private:
    using address = std::uintptr_t;
    using region_ptr = std::shared_ptr<rcverbs::memory_region>;
    struct entry {
        address end = 0;
        region_ptr region;
        std::list<address>::iterator place;
    };
    // They do not overlap. Those that are removed are deregistered after the lock has been released.
    using entry_map = std::map<address, entry>;

    static address number(void const* p) noexcept { return reinterpret_cast<address>(p); }

    region_ptr register_range(address begin, address end, rcverbs::error_code& ec) const {
        ec.clear();
        std::span<std::byte> const range{reinterpret_cast<std::byte*>(begin), end - begin};  // the kernel registers pages
        return std::make_shared<rcverbs::memory_region>(domain_, range, options_.rights, ec);
    }

    entry_map::iterator first_overlap(address begin) {
        auto i = entries_.upper_bound(begin);
        if (i != entries_.begin() && std::prev(i)->second.end > begin) --i;
        return i;
    }
    entry_map::iterator find(address begin, address end) {
        auto const i = first_overlap(begin);
        return i != entries_.end() && i->first <= begin && i->second.end >= end ? i : entries_.end();
    }

    entry_map::iterator remove(entry_map::iterator i, entry_map& gone) noexcept {
        statistics_.bytes -= i->second.end - i->first;
        used_.erase(i->second.place);
        auto const next = std::next(i);
        gone.insert(entries_.extract(i));
        return next;
    }

    // `forgets` is the number of calls of forget() before the registration began. If there were more since, a part of the range may have been
    // unmapped and mapped again: not kept.
    void keep(address begin, address end, region_ptr const& region, std::uint64_t forgets) {
        entry_map gone;
        std::lock_guard const lock{mutex_};
        if (forgets != forgets_) return;
        // Another thread may have been faster, or have registered a part meanwhile.
        for (auto i = first_overlap(begin); i != entries_.end() && i->first < end;) i = remove(i, gone);
        make_room(end - begin, gone);
        if (!has_room(end - begin)) return;  // for its lease alone
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
        return statistics_.bytes + bytes <= options_.bytes_max && entries_.size() < options_.regions_max;
    }

    rcverbs::protection_domain const domain_;
    registration_cache_options const options_;
    mutable std::mutex mutex_;
    entry_map entries_;
    std::list<address> used_;  // by begin, the last used first
    std::uint64_t forgets_ = 0;
    registration_cache_statistics statistics_;
};

}  // namespace example
