#include "subsystem.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <rcverbs/detail/option_check.hpp>

#include "error/detailed_error.hpp"
#include "identity.hpp"

namespace rcverbs::nvme::detail {

namespace {

using rcverbs::detail::option_check;
using rcverbs::detail::throw_if_refused;

constexpr std::size_t nqn_bytes_max = 223;

// Without a machine-id it changes from start to start: better than two machines with the same.
std::string machine_or_random() {
    static std::string const name =
        machine_name().empty() ? hexadecimal(random_uuid()) : machine_name();
    return name;
}

bool is_ana_group(std::uint32_t number) {
    return number >= 1 && number <= subsystem::ana_groups_max;
}

bool is_printable(std::string const& text) {
    return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

uuid_bytes uuid_of(namespace_options const& n, std::string const& nqn) {
    if (n.uuid) return *n.uuid;
    if (auto const id = n.store->uuid()) return *id;
    return derived_uuid("namespace " + machine_or_random() + nqn + '/' + std::to_string(n.id));
}

bool is_reachable(endpoint const& e) {
    return !e.is_infiniband() && !e.address().is_unspecified() && e.port() != 0;
}

std::string place_of(std::string const& nqn, std::uint32_t id) {
    return "subsystem " + nqn + ", namespace " + std::to_string(id);
}

void check(store_geometry const& g, std::string const& place) {
    option_check is{"store_geometry"};
    is.within("block_bytes", g.block_bytes, 512, 4096)
        .that(std::has_single_bit(g.block_bytes), "block_bytes", "is no power of two")
        .that(
            g.size_bytes > 0 && g.size_bytes % g.block_bytes == 0,
            "size_bytes",
            "is not a multiple of block_bytes above 0"
        )
        .that(
            g.optimal_io_bytes % g.block_bytes == 0 && g.optimal_io_bytes / g.block_bytes <= 65536,
            "optimal_io_bytes",
            "is not a multiple of block_bytes, and at most 65536 of them"
        );
    throw_if_refused(problem_in(place, is.problem()));
}

}  // namespace

subsystem::subsystem(subsystem_options options) : nqn_{options.nqn}, options_{std::move(options)} {
    std::string& serial = options_.serial_number;
    if (serial.empty())
        serial =
            hexadecimal(derived_uuid("serial " + machine_or_random() + options_.nqn)).substr(0, 16);
    option_check is{"subsystem_options"};
    is.that(
          options_.nqn.starts_with("nqn.") && options_.nqn.size() <= nqn_bytes_max &&
              is_printable(options_.nqn),
          "nqn",
          "is not \"nqn.\" and at most 223 printable characters in all"
    )
        .that(
            serial.size() <= 20 && is_printable(serial),
            "serial_number",
            "is not at most 20 printable characters"
        )
        .that(
            options_.model.size() <= 40 && is_printable(options_.model),
            "model",
            "is not at most 40 printable characters"
        )
        .that(
            std::ranges::all_of(
                options_.ana_states, [](auto const& each) { return is_ana_group(each.first); }
            ),
            "ana_states",
            "has a group that is not from 1 to 32"
        )
        .that(
            options_.other_addresses.size() <= 64 &&
                std::ranges::all_of(options_.other_addresses, is_reachable),
            "other_addresses",
            "is not at most 64 IP addresses with ports"
        );
    throw_if_refused(problem_in("subsystem " + nqn_, is.problem()));
    for (auto const& [group, state] : options_.ana_states) group_at(group)->state = state;
    for (namespace_options& n : std::exchange(options_.namespaces, {})) add(make(std::move(n)));
}

std::shared_ptr<subsystem> subsystem::discovery() {
    subsystem_options options;
    options.nqn = discovery_nqn;
    return std::make_shared<subsystem>(std::move(options));
}

std::string subsystem::serial_number() const {
    std::lock_guard const lock{mutex_};
    return options_.serial_number;
}

std::string subsystem::model() const {
    std::lock_guard const lock{mutex_};
    return options_.model;
}

std::vector<endpoint> subsystem::other_addresses() const {
    std::lock_guard const lock{mutex_};
    return options_.other_addresses;
}

subsystem::admission subsystem::admit(std::string const& host) const {
    using enum admission::verdict;
    std::lock_guard const lock{mutex_};
    auto const& list = options_.allowed_hosts;
    if (!list.empty() && std::ranges::find(list, host) == list.end()) return {not_allowed, {}};
    if (options_.secrets.empty()) return {};
    auto const found = std::ranges::find(options_.secrets, host, &host_secrets::host);
    if (found == options_.secrets.end()) return {has_no_secret, {}};
    return {allowed, *found};
}

subsystem::disk_map subsystem::disks() const {
    std::lock_guard const lock{mutex_};
    return disks_;
}

std::shared_ptr<disk> subsystem::find(std::uint32_t id) const {
    std::lock_guard const lock{mutex_};
    auto const found = disks_.find(id);
    return found == disks_.end() ? nullptr : found->second;
}

std::shared_ptr<disk> subsystem::make(namespace_options what) const {
    option_check is{"namespace_options"};
    is.within("id", what.id, 1, namespace_id_max)
        .within("ana_group", what.ana_group, 1, ana_groups_max)
        .that(find(what.id) == nullptr, "id", "is in use")
        .that(what.store != nullptr, "store", "is missing");
    std::string const place = place_of(nqn_, what.id);
    throw_if_refused(problem_in(place, is.problem()));
    auto made = std::make_shared<disk>();
    made->geometry = what.store->geometry();
    check(made->geometry, place);
    made->uuid = uuid_of(what, nqn_);
    if (!what.reservation_file.empty()) {
        try {
            made->reservations = reservation_keeper::open(what.reservation_file, made->uuid);
        } catch (boost::system::system_error const& e) {
            throw rcverbs::detail::detailed_error{
                e.code(), place + ": reservations in " + e.what()};
        }
    }
    {
        std::lock_guard const lock{mutex_};
        made->group = group_at(what.ana_group);
    }
    made->options = std::move(what);
    return made;
}

void subsystem::add(std::shared_ptr<disk> const& made) {
    std::uint32_t const id = made->options.id;
    std::lock_guard const lock{mutex_};
    bool const is_new = disks_.emplace(id, made).second;
    throw_if_refused(
        is_new ? "" : problem_in(place_of(nqn_, id), "namespace_options::id is in use")
    );
}

void subsystem::remove(std::uint32_t id) {
    // Destroyed without the lock: a store may wait for its threads.
    disk_map::node_type removed;
    {
        std::lock_guard const lock{mutex_};
        removed = disks_.extract(id);
    }
    throw_if_refused(!removed.empty() ? "" : "namespace_options::id is unknown");
}

void subsystem::refresh(std::uint32_t id) {
    std::shared_ptr<disk> const before = find(id);
    throw_if_refused(before != nullptr ? "" : "namespace_options::id is unknown");
    store_geometry const now = before->options.store->geometry();
    check(now, place_of(nqn_, id));
    // Commands under way have been checked against the geometry of before.
    auto made = std::make_shared<disk>();
    made->options = before->options;
    made->geometry = now;
    made->uuid = before->uuid;
    made->state = before->state;
    made->group = before->group;
    made->reservations = before->reservations;
    std::lock_guard const lock{mutex_};
    auto const still = disks_.find(id);
    throw_if_refused(
        still != disks_.end() && still->second == before ? "" : "namespace_options::id is unknown"
    );
    still->second = std::move(made);
}

void check_uuids(std::vector<served_disk> const& all) {
    std::map<uuid_bytes, served_disk const*> seen;
    for (served_disk const& each : all) {
        auto const [found, is_first] = seen.try_emplace(each.of->uuid, &each);
        served_disk const& other = *found->second;
        bool const is_elsewhere = each.nqn != other.nqn;
        bool const is_wanted = is_elsewhere && each.of->options.uuid && other.of->options.uuid;
        if (is_first || is_wanted) continue;
        throw_if_refused(problem_in(
            place_of(each.nqn, each.of->options.id),
            "namespace_options::uuid, or that of the store, is also that of " +
                place_of(other.nqn, other.of->options.id) +
                ": hosts would take both for one disk. Give one another UUID" +
                (is_elsewhere ? ", or both this one" : "")
        ));
    }
}

subsystem::changes subsystem::exchange(subsystem& other) {
    changes all;
    std::vector<std::uint32_t>& changed = all.namespaces;
    std::lock_guard const lock{mutex_};
    for (auto& [id, now] : other.disks_) {
        auto const old = disks_.find(id);
        bool const was_there = old != disks_.end();
        bool const is_same_disk = was_there && old->second->uuid == now->uuid;
        bool const has_same_store =
            is_same_disk && old->second->options.store == now->options.store;
        if (has_same_store) now->state = old->second->state;
        else if (is_same_disk) now->state->failures = old->second->state->failures;
        bool const is_same = has_same_store && old->second->geometry == now->geometry &&
                             old->second->is_read_only() == now->is_read_only() &&
                             old->second->options.ana_group == now->options.ana_group &&
                             old->second->reservations == now->reservations;
        now->group = group_at(now->options.ana_group);
        if (!is_same) changed.push_back(id);
    }
    for (auto const& [id, each] : disks_) {
        if (!other.disks_.contains(id)) changed.push_back(id);
    }
    // Before a new disk is served in its group.
    auto const& states = other.options_.ana_states;
    for (std::uint32_t group = 1; group <= ana_groups_max; ++group) {
        auto const found = states.find(group);
        all.has_ana |=
            store_ana_state(group, found == states.end() ? ana_state::optimized : found->second);
    }
    disks_.swap(other.disks_);
    std::swap(options_, other.options_);
    return all;
}

// --- asymmetric access ---------------------------------------------------------------------------

std::shared_ptr<ana_group> const& subsystem::group_at(std::uint32_t number) const {
    auto& found = groups_[number];
    if (found == nullptr) found = std::make_shared<ana_group>();
    return found;
}

bool subsystem::store_ana_state(std::uint32_t group, ana_state now) {
    // One that no disk has.
    if (!groups_.contains(group) && now == ana_state::optimized) return false;
    ana_group& g = *group_at(group);
    if (g.state.exchange(now) == now) return false;
    g.changes = ++ana_changes_;
    return true;
}

bool subsystem::set_ana_state(std::uint32_t group, ana_state now) {
    throw_if_refused(is_ana_group(group) ? "" : "namespace_options::ana_group is not from 1 to 32");
    std::lock_guard const lock{mutex_};
    options_.ana_states[group] = now;
    return store_ana_state(group, now);
}

subsystem::ana_rows subsystem::ana() const {
    std::lock_guard const lock{mutex_};
    std::map<std::uint32_t, ana_row> rows;
    for (auto const& [id, each] : disks_) {
        ana_row& row = rows[each->options.ana_group];
        row.namespaces.push_back(id);
        row.state = each->group->state;
        row.changes = each->group->changes;
    }
    ana_rows all{ana_changes_, {}};
    for (auto& [number, row] : rows) {
        row.group = number;
        all.groups.push_back(std::move(row));
    }
    return all;
}

}  // namespace rcverbs::nvme::detail

namespace rcverbs::nvme {

std::string machine_nqn() {
    std::string const machine = detail::machine_name();
    return machine.empty() ? machine : "nqn.2026-01.io.rcverbs:" + machine;
}

}  // namespace rcverbs::nvme
