#include "subsystem.hpp"

#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/uuid.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "error/option_check.hpp"

namespace rcverbs::nvme::detail {

namespace {

using rcverbs::detail::option_check;
using rcverbs::detail::throw_if_refused;

constexpr std::size_t nqn_bytes_max = 223;

boost::uuids::uuid derived_id(std::string const& name) {
    return boost::uuids::name_generator_sha1{boost::uuids::ns::url()}(name);
}

std::array<std::byte, 16> derived_uuid(std::string const& name) {
    boost::uuids::uuid const id = derived_id(name);
    std::array<std::byte, 16> bytes{};
    std::memcpy(bytes.data(), id.data, bytes.size());
    return bytes;
}

std::string derived_serial_number(std::string const& nqn) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (std::uint8_t const byte : derived_id(nqn)) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    text.resize(16);
    return text;
}

bool is_printable(std::string const& text) {
    return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

void check(store_geometry const& g) {
    option_check is{"store_geometry"};
    is.within("block_bytes", g.block_bytes, 512, 4096)
        .that(std::has_single_bit(g.block_bytes), "block_bytes", " is no power of two")
        .that(
            g.size_bytes > 0 && g.size_bytes % g.block_bytes == 0,
            "size_bytes",
            " is not a multiple of block_bytes above 0"
        );
    throw_if_refused(is.problem());
}

}  // namespace

subsystem::subsystem(subsystem_options options) : options_{std::move(options)} {
    std::string& serial = options_.serial_number;
    if (serial.empty()) serial = derived_serial_number(options_.nqn);
    option_check is{"subsystem_options"};
    is.that(
          options_.nqn.starts_with("nqn.") && options_.nqn.size() <= nqn_bytes_max &&
              is_printable(options_.nqn),
          "nqn",
          " is not \"nqn.\" and at most 223 printable characters in all"
    )
        .that(
            serial.size() <= 20 && is_printable(serial),
            "serial_number",
            " is not at most 20 printable characters"
        )
        .that(
            options_.model.size() <= 40 && is_printable(options_.model),
            "model",
            " is not at most 40 printable characters"
        );
    throw_if_refused(is.problem());
    for (namespace_options& n : std::exchange(options_.namespaces, {})) add(std::move(n));
}

std::shared_ptr<subsystem> subsystem::discovery() {
    subsystem_options options;
    options.nqn = discovery_nqn;
    return std::make_shared<subsystem>(std::move(options));
}

bool subsystem::allows(std::string const& host) const noexcept {
    auto const& list = options_.allowed_hosts;
    return list.empty() || std::ranges::find(list, host) != list.end();
}

host_secrets const* subsystem::secrets_of(std::string const& host) const noexcept {
    auto const found = std::ranges::find(options_.secrets, host, &host_secrets::host);
    return found == options_.secrets.end() ? nullptr : &*found;
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

void subsystem::add(namespace_options what) {
    option_check is{"namespace_options"};
    is.within("id", what.id, 1, namespace_id_max)
        .that(find(what.id) == nullptr, "id", " is in use")
        .that(what.store != nullptr, "store", " is missing");
    throw_if_refused(is.problem());
    auto made = std::make_shared<disk>();
    made->geometry = what.store->geometry();
    check(made->geometry);
    made->uuid =
        what.uuid ? *what.uuid : derived_uuid(options_.nqn + '/' + std::to_string(what.id));
    made->options = std::move(what);
    std::lock_guard const lock{mutex_};
    bool const is_new = disks_.emplace(made->options.id, made).second;
    throw_if_refused(is_new ? "" : "namespace_options::id is in use");
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
    check(now);
    // Commands under way have been checked against the geometry of before.
    auto made = std::make_shared<disk>();
    made->options = before->options;
    made->geometry = now;
    made->uuid = before->uuid;
    made->regions = before->regions;
    std::lock_guard const lock{mutex_};
    auto const still = disks_.find(id);
    throw_if_refused(
        still != disks_.end() && still->second == before ? "" : "namespace_options::id is unknown"
    );
    still->second = std::move(made);
}

}  // namespace rcverbs::nvme::detail
