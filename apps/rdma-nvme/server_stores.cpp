#include "rdma-nvme/server_stores.hpp"

#include <boost/system/system_error.hpp>

#include <cerrno>
#include <optional>

#ifdef RCVERBS_HAS_NBD
#include <rcverbs/nvme/nbd_store.hpp>
#endif
#ifdef RCVERBS_HAS_RBD
#include <rcverbs/nvme/rbd_store.hpp>
#endif

namespace demo {

namespace nvme = rcverbs::nvme;

namespace {

// What the options of all stores on servers have.
template <class Options>
[[maybe_unused]] Options options_for(
    disk_description const& d, std::string const& nqn, store_surroundings const& around
) {
    Options o;
    o.block_bytes = d.block_bytes;
    o.is_read_only = d.is_read_only;
    o.on_event = [on = around.on_event, nqn, id = d.id](std::string const& text) {
        on(nqn, id, text);
    };
    o.on_reached = [on = around.on_reached, nqn] { on(nqn); };
    o.on_resized = [on = around.on_resized, nqn, id = d.id] { on(nqn, id); };
    return o;
}

[[noreturn, maybe_unused]] void throw_missing(char const* library) {
    throw boost::system::system_error{
        {ENOTSUP, boost::system::system_category()}, std::string{"built without "} + library};
}

#ifdef RCVERBS_HAS_NBD
std::shared_ptr<nvme::block_store> make_nbd_store(
    disk_description const& d, std::string const& nqn, store_surroundings const& around
) {
    auto options = options_for<nvme::nbd_store_options>(d, nqn, around);
    options.writes_through = d.writes_through;
    options.connections = d.connections;
    return std::make_shared<nvme::nbd_store>(around.on, d.nbd, options);
}
bool nbd_has_lost_writes(nvme::block_store const& store) {
    auto const* const nbd = dynamic_cast<nvme::nbd_store const*>(&store);
    return nbd != nullptr && nbd->has_lost_writes();
}
bool count_nbd(nvme::block_store const& store, server_statistics& row) {
    auto const* const nbd = dynamic_cast<nvme::nbd_store const*>(&store);
    if (nbd == nullptr) return false;
    nvme::nbd_statistics const now = nbd->statistics();
    row.connections_lost = now.connections_lost;
    row.repeated = now.repeated;
    row.given_up = now.given_up;
    return true;
}
constexpr bool has_libnbd = true;
#else
std::shared_ptr<nvme::block_store>
make_nbd_store(disk_description const&, std::string const&, store_surroundings const&) {
    throw_missing("libnbd");
}
bool nbd_has_lost_writes(nvme::block_store const&) { return false; }
bool count_nbd(nvme::block_store const&, server_statistics&) { return false; }
constexpr bool has_libnbd = false;
#endif

#ifdef RCVERBS_HAS_RBD
std::shared_ptr<nvme::block_store> make_rbd_store(
    disk_description const& d, std::string const& nqn, store_surroundings const& around
) {
    auto options = options_for<nvme::rbd_store_options>(d, nqn, around);
    options.configuration = d.ceph_configuration;
    options.keyring = d.keyring;
    return std::make_shared<nvme::rbd_store>(around.on, d.rbd, options);
}
bool count_rbd(nvme::block_store const& store, server_statistics& row) {
    auto const* const rbd = dynamic_cast<nvme::rbd_store const*>(&store);
    if (rbd == nullptr) return false;
    nvme::rbd_statistics const now = rbd->statistics();
    row.connections_lost = now.reopened;
    row.given_up = now.given_up;
    return true;
}
constexpr bool has_librbd = true;
#else
std::shared_ptr<nvme::block_store>
make_rbd_store(disk_description const&, std::string const&, store_surroundings const&) {
    throw_missing("librbd");
}
bool count_rbd(nvme::block_store const&, server_statistics&) { return false; }
constexpr bool has_librbd = false;
#endif

}  // namespace

bool is_on_server(disk_description const& d) noexcept { return !d.nbd.empty() || !d.rbd.empty(); }

bool can_serve(disk_description const& d) noexcept {
    return (d.nbd.empty() || has_libnbd) && (d.rbd.empty() || has_librbd);
}

std::shared_ptr<nvme::block_store> make_server_store(
    disk_description const& d, std::string const& nqn, store_surroundings const& around
) {
    return d.nbd.empty() ? make_rbd_store(d, nqn, around) : make_nbd_store(d, nqn, around);
}

bool has_lost_writes(nvme::block_store const& store) { return nbd_has_lost_writes(store); }

std::vector<server_statistics> statistics_of_servers(opened_subsystems const& all) {
    std::vector<server_statistics> rows;
    for (nvme::subsystem_options const& s : all.options) {
        for (nvme::namespace_options const& n : s.namespaces) {
            server_statistics row{s.nqn, n.id};
            if (count_nbd(*n.store, row) || count_rbd(*n.store, row)) rows.push_back(row);
        }
    }
    return rows;
}

}  // namespace demo
