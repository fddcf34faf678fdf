#include "machines/pool_books.hpp"

namespace rcverbs::machines {

std::uint64_t pool_books::open() {
    leases_.try_emplace(last_lease_ + 1);
    return ++last_lease_;
}

pool_books::outcome pool_books::allocate(
    std::uint64_t lease,
    std::uint64_t number,
    std::uint32_t units,
    std::optional<token> const& keep,
    block& where
) {
    account& a = leases_.at(lease);
    if (a.count >= limits_.lease_blocks || units > units_left(lease)) return outcome::over_quota;
    // What may throw comes first.
    auto const entry = blocks_.try_emplace(number).first;
    auto undo = [&]() noexcept {
        blocks_.erase(number);
        a.held.erase(number);
        if (keep) tokens_.erase(*keep);
    };
    try {
        a.held.insert(number);
        if (keep) tokens_.emplace(*keep, number);
    } catch (...) {
        undo();
        throw;
    }
    auto const unit = memory_.allocate(units);
    if (!unit) {
        undo();
        return outcome::exhausted;
    }
    where = {*unit, units};
    entry->second = {where, state::held, lease, keep, {}};
    a.units += units;
    ++a.count;
    return outcome::done;
}

bool pool_books::holds(std::uint64_t lease, std::uint64_t number) const noexcept {
    auto const found = blocks_.find(number);
    return found != blocks_.end() && found->second.is == state::held &&
           found->second.lease == lease;
}

bool pool_books::free(std::uint64_t lease, std::uint64_t number) noexcept {
    if (!holds(lease, number)) return false;
    leave(number, blocks_.find(number)->second);
    return true;
}

void pool_books::take_kept(record const& r) noexcept {
    kept_units_ -= r.where.units;
    kept_.erase(r.kept_as);
}

void pool_books::leave(std::uint64_t number, record& r) noexcept {
    if (r.is == state::kept) {
        take_kept(r);
    } else if (auto const holder = leases_.find(r.lease); holder != leases_.end()) {
        holder->second.held.erase(number);
    }
    if (r.keep) tokens_.erase(*r.keep);
    r.keep.reset();
    r.is = state::leaving;
}

pool_books::resumed pool_books::resume(std::uint64_t lease, token const& key) {
    auto const known = tokens_.find(key);
    if (known == tokens_.end()) return {};
    std::uint64_t const number = known->second;
    record& r = blocks_.find(number)->second;
    if (r.is == state::held && r.lease == lease) return {outcome::done, number, 0};
    account& a = leases_.at(lease);
    if (a.count >= limits_.lease_blocks || r.where.units > units_left(lease))
        return {outcome::over_quota, number, 0};
    a.held.insert(number);
    std::uint64_t const taken_from = r.is == state::held ? r.lease : 0;
    if (taken_from != 0) {
        account& before = leases_.at(r.lease);
        before.held.erase(number);
        before.units -= r.where.units;
        --before.count;
    } else {
        take_kept(r);
    }
    r.is = state::held;
    r.lease = lease;
    a.units += r.where.units;
    ++a.count;
    return {outcome::done, number, taken_from};
}

bool pool_books::keep(std::uint64_t number, record& r, time_point now) noexcept {
    bool const may_be_kept = r.keep && limits_.keep_time.count() > 0 &&
                             r.where.units <= limits_.kept_units - kept_units_;
    if (!may_be_kept) return false;
    try {
        kept_.emplace(last_kept_ + 1, number);
    } catch (...) {
        return false;  // no memory
    }
    r.kept_as = ++last_kept_;
    r.is = state::kept;
    r.until = now + limits_.keep_time;
    kept_units_ += r.where.units;
    return true;
}

std::optional<std::uint64_t> pool_books::end_lease(std::uint64_t lease, time_point now) noexcept {
    auto const found = leases_.find(lease);
    if (found == leases_.end()) return {};
    auto& held = found->second.held;
    while (!held.empty()) {
        std::uint64_t const number = *held.begin();
        record& r = blocks_.find(number)->second;
        if (!keep(number, r, now)) {
            leave(number, r);
            return number;
        }
        held.erase(held.begin());
    }
    leases_.erase(found);
    return {};
}

std::optional<std::uint64_t> pool_books::expire(time_point now) noexcept {
    if (kept_.empty()) return {};
    std::uint64_t const number = kept_.begin()->second;
    record& r = blocks_.find(number)->second;
    if (r.until > now) return {};
    leave(number, r);
    return number;
}

std::optional<pool_books::time_point> pool_books::next_expiry() const noexcept {
    if (kept_.empty()) return {};
    return blocks_.find(kept_.begin()->second)->second.until;
}

std::optional<std::uint64_t> pool_books::revoke_one() noexcept {
    if (!kept_.empty()) return expire(time_point::max());
    for (auto const& [lease, a] : leases_) {
        if (a.held.empty()) continue;
        std::uint64_t const number = *a.held.begin();
        leave(number, blocks_.find(number)->second);
        return number;
    }
    return {};
}

pool_books::block pool_books::released(std::uint64_t number) noexcept {
    record& r = blocks_.find(number)->second;
    r.is = state::cleaning;
    return r.where;
}

void pool_books::cleaned(std::uint64_t number) noexcept {
    auto const found = blocks_.find(number);
    record const& r = found->second;
    memory_.free(r.where.first_unit);
    if (auto const holder = leases_.find(r.lease); holder != leases_.end()) {
        holder->second.units -= r.where.units;
        --holder->second.count;
    }
    blocks_.erase(found);
}

std::uint32_t pool_books::units_left(std::uint64_t lease) const noexcept {
    auto const found = leases_.find(lease);
    return found == leases_.end() ? 0 : limits_.lease_units - found->second.units;
}

}  // namespace rcverbs::machines
