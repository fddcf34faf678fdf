#include "rdma-doctor/findings.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <system_error>
#include <tuple>

namespace rdma_doctor {

namespace {

constexpr std::uint64_t enough_locked = std::uint64_t{64} << 20;

bool is_ipv4(gid const& g) { return g.address.find(':') == std::string::npos; }
bool is_link_local(gid const& g) { return g.address.starts_with("fe80:"); }
bool is_active(port const& p) { return p.state == "ACTIVE"; }
bool is_infiniband(port const& p) { return p.link_layer == "InfiniBand"; }

struct place {
    int rank;
    std::string_view reason;
};

place place_of(port const& p, gid const& g) {
    if (is_infiniband(p))
        return {
            3,
            "InfiniBand, for programs that exchange it themselves; rdmacm uses the IP address of "
            "the interface"};
    if (g.kind != "RoCE v2")
        return {4, "RoCE v1: not routable, and not supported by newer adapters"};
    if (is_ipv4(g)) return {0, "RoCE v2 over IPv4: routable, and the default of programs"};
    if (is_link_local(g))
        return {2, "RoCE v2, link-local: this network only; addresses need the interface (%)"};
    return {1, "RoCE v2 over IPv6: routable"};
}

module::state state_of(machine const& m, std::string_view name) {
    auto const at = std::ranges::find(m.modules, name, &module::name);
    return at == m.modules.end() ? module::state::not_there : at->is;
}

// Quoted as one word for a shell, whatever characters the name has.
std::string quoted(std::string const& name) {
    auto const is_plain = [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == '@' || c == '/';
    };
    if (std::ranges::all_of(name, is_plain)) return name;
    std::string out = "'";
    for (char const c : name) out += c == '\'' ? "'\\''" : std::string{c};
    return out + "'";
}

// The interface best suited to carry SoftRoCE: an Ethernet interface, preferably with a link, then
// the one of the default route, then a hardware adapter.
netdev const* carrier(machine const& m) {
    netdev const* best = nullptr;
    auto const worth = [](netdev const& n) {
        return std::tuple{
            n.is_up && n.has_link,
            n.has_default_route,
            n.is_hardware,
            n.is_up,
            !n.addresses.empty()};
    };
    for (netdev const& n : m.netdevs) {
        if (n.is_ethernet && (best == nullptr || worth(n) > worth(*best))) best = &n;
    }
    return best;
}

finding missing_module(machine const& m, std::string const& name, std::string const& what_for) {
    if (m.is_container)
        return {
            true,
            "the host has not loaded the module " + name + ", " + what_for + "; there:",
            "modprobe " + name};
    if (state_of(m, name) == module::state::not_loaded)
        return {
            true, "the module " + name + ", " + what_for + ", is not loaded", "modprobe " + name};
    finding f{
        true,
        "the kernel " + m.release + " has no module " + name + ", " + what_for +
            ": boot a kernel that has it",
        {}};
    if (m.distribution == "ubuntu") f.command = "apt-get install linux-modules-extra-" + m.release;
    if (m.distribution == "debian") f.command = "apt-get install linux-image-amd64";
    return f;
}

void look_for_device(machine const& m, std::vector<finding>& out) {
    if (!m.devices.empty()) return;
    if (!m.devices_elsewhere.empty()) {
        device_elsewhere const& d = m.devices_elsewhere.front();
        std::string const what =
            "the RDMA device " + d.name +
            " belongs to another network namespace, and this one has none: " +
            (m.is_container ? "use that of the host (--network=host)" : "run programs in that one");
        if (d.is_software) {
            out.push_back(
                {true,
                 what + ", or let all namespaces share the devices. The kernel permits that only "
                        "while there is no namespace but its first:",
                 "rdma system set netns shared"}
            );
        } else {
            out.push_back(
                {true,
                 what + ", or give it the device, with the name of this one, there:",
                 "rdma dev set " + quoted(d.name) + " netns NAME"}
            );
        }
        return;
    }
    if (state_of(m, "rdma_rxe") != module::state::loaded)
        out.push_back(missing_module(m, "rdma_rxe", "SoftRoCE"));
    netdev const* const on = carrier(m);
    std::string const what = "there is no RDMA device: no adapter, and no SoftRoCE device";
    if (m.is_container) {
        out.push_back(
            {true,
             what + "; on the host:",
             "rdma link add rxe0 type rxe netdev " + (on == nullptr ? "NAME" : quoted(on->name))}
        );
    } else if (on == nullptr) {
        out.push_back(
            {true,
             what + ", nor an Ethernet interface that could carry one",
             "ip link add v0 type veth peer name v0peer"}
        );
    } else {
        out.push_back(
            {true,
             what + "; " + on->name + " could carry one",
             "rdma link add rxe0 type rxe netdev " + quoted(on->name)}
        );
    }
}

constexpr char const* run_with_devices =
    "docker run --device=/dev/infiniband --network=host --cap-add=IPC_LOCK --ulimit memlock=-1 "
    "IMAGE";

void look_at_file(
    machine const& m, device_file const& f, std::string const& module, std::vector<finding>& out
) {
    if (f.may_be_opened) return;
    if (!f.is_there && m.is_container) {
        out.push_back({true, f.path + " is not in this container", run_with_devices});
    } else if (!f.is_there) {
        if (state_of(m, module) != module::state::loaded) {
            out.push_back(missing_module(m, module, "which makes " + f.path));
        } else {
            out.push_back(
                {true,
                 f.path + " is not there although " + module + " is loaded",
                 "udevadm trigger --subsystem-match=infiniband_verbs --subsystem-match=misc"}
            );
        }
    } else if (f.error == EACCES) {
        out.push_back({true, "this user may not open " + f.path, "chmod a+rw " + f.path});
    } else if (f.error == EPERM && m.is_container) {
        out.push_back(
            {true,
             "this container may not open " + f.path + ", though it sees it",
             run_with_devices}
        );
    } else {
        out.push_back(
            {true, f.path + " cannot be opened: " + std::generic_category().message(f.error), {}}
        );
    }
}

// The network interfaces by which a port is reached. A GID names its interface; where none does, as
// on InfiniBand, the interfaces are the adapter's.
std::vector<std::string> interfaces(rdma_device const& d, port const& p) {
    std::vector<std::string> out;
    for (ranked_gid const& r : ranked(p)) {
        std::string const& name = r.address.netdev;
        if (!name.empty() && std::ranges::find(out, name) == out.end()) out.push_back(name);
    }
    return out.empty() ? d.netdevs : out;
}

// Why a port is not active. `on`: its network interface, if it is visible here.
finding inactive(port const& p, std::string const& name, netdev const* on) {
    std::string const what = name + " is " + p.state + ", not ACTIVE";
    if (is_infiniband(p)) {
        bool const has_link = p.state == "INIT" || p.state == "ARMED";
        if (has_link)
            return {true, what + ": no subnet manager has set it up", "systemctl start opensm"};
        return {true, what + ": it has no link, or nobody at its other end", {}};
    }
    if (on == nullptr) return {true, what, {}};
    if (on->is_up)
        return {
            true,
            what + ": " + on->name + " is up, but has no link (a cable, or the other end)",
            {}};
    return {true, what, "ip link set " + quoted(on->name) + " up"};
}

// The objects that the self-test makes: for each of its two sides a protection domain, completion
// queues, a queue pair and memory regions. Found by trying.
constexpr std::uint64_t objects_of_self_test = 12;

bool is_exhausted(cgroup_limit const& l) {
    std::uint64_t const free = l.max > l.used ? l.max - l.used : 0;
    return free < (l.resource == "hca_handle" ? 1 : objects_of_self_test);
}

bool is_limited(machine const& m, rdma_device const& d) {
    return std::ranges::any_of(m.cgroup_limits, [&](cgroup_limit const& l) {
        return l.device == d.name && is_exhausted(l);
    });
}

void look_at_limits(machine const& m, rdma_device const& d, std::vector<finding>& out) {
    for (cgroup_limit const& l : m.cgroup_limits) {
        if (l.device != d.name || !is_exhausted(l)) continue;
        std::string const what = "the cgroup " + l.folder + " may have " + std::to_string(l.max) +
                                 (l.resource == "hca_handle" ? " open contexts" : " objects") +
                                 " of " + d.name + " (" + l.resource + "), and has " +
                                 std::to_string(l.used);
        if (m.is_container) {
            out.push_back({true, what + ": raise the limit of this container on the host", {}});
        } else {
            out.push_back(
                {true,
                 what,
                 "echo '" + d.name + ' ' + l.resource + "=max' >" + quoted(l.folder + "/rdma.max")}
            );
        }
    }
}

// The device works with less than the largest packets.
void look_at_mtu(machine const& m, std::vector<finding>& out) {
    // 4096 bytes of data and the headers of RoCE v2 over IPv6, rounded up.
    constexpr unsigned interface_mtu = 4200;
    for (rdma_device const& d : m.devices) {
        for (port const& p : d.ports) {
            if (!is_active(p) || is_infiniband(p) || p.mtu == 0 || p.mtu >= 4096) continue;
            for (std::string const& interface : interfaces(d, p)) {
                auto const at = std::ranges::find(m.netdevs, interface, &netdev::name);
                if (at == m.netdevs.end() || at->mtu == 0 || at->mtu >= interface_mtu) continue;
                out.push_back(
                    {false,
                     "port " + std::to_string(p.number) + " of " + d.name + " sends packets of " +
                         std::to_string(p.mtu) + " bytes, because the MTU of " + interface +
                         " is " + std::to_string(at->mtu) +
                         "; larger ones, if all machines and switches of the network have this "
                         "MTU:",
                     "ip link set " + quoted(interface) + " mtu " + std::to_string(interface_mtu)}
                );
            }
        }
    }
}

void look_at_locked_memory(machine const& m, std::vector<finding>& out) {
    if (m.may_lock_all || m.memory_lock_bytes >= enough_locked) return;
    std::string const what = "only " + std::to_string(m.memory_lock_bytes / 1024) +
                             " KiB of memory may be registered by this user (ulimit -l)";
    if (m.is_container) {
        out.push_back({false, what, "docker run --ulimit memlock=-1 IMAGE"});
    } else if (!m.service.empty()) {
        std::string const folder = "/etc/systemd/system/" + quoted(m.service + ".d");
        out.push_back(
            {false,
             what + "; the service " + m.service + " has more after",
             "mkdir -p " + folder + " && printf '[Service]\nLimitMEMLOCK=infinity\n' >" + folder +
                 "/memlock.conf && systemctl daemon-reload && systemctl restart " +
                 quoted(m.service)}
        );
    } else {
        out.push_back(
            {false,
             what +
                 "; services of systemd have LimitMEMLOCK=infinity in their unit for more, logins "
                 "from the next one on",
             "echo '* - memlock unlimited' >/etc/security/limits.d/rdma.conf"}
        );
    }
}

void look_at_port(
    machine const& m, rdma_device const& d, port const& p, std::vector<finding>& out
) {
    std::string const name = "port " + std::to_string(p.number) + " of " + d.name;
    auto const names = interfaces(d, p);
    std::string const interface = names.empty() ? "" : names.front();
    auto const at = std::ranges::find(m.netdevs, interface, &netdev::name);
    if (!is_active(p)) {
        out.push_back(inactive(p, name, at == m.netdevs.end() ? nullptr : &*at));
    } else if (interface.empty() && is_infiniband(p)) {
        out.push_back(
            {true,
             name + " has no network interface, by whose IP address rdmacm would find it (IPoIB)",
             "modprobe ib_ipoib"}
        );
    } else if (interface.empty()) {
        out.push_back(
            {true, name + " has no network interface, by whose IP address rdmacm would find it", {}}
        );
    } else if (at == m.netdevs.end()) {
        out.push_back(
            {true,
             interface + ", the interface of " + name +
                 ", is in another network namespace, and with it the IP address by which rdmacm "
                 "would find it: run programs in that one" +
                 (m.is_container || d.is_software
                      ? ""
                      : ", or move the interface, with the name of this one, there:"),
             m.is_container  ? run_with_devices
             : d.is_software ? ""
                             : "ip link set " + quoted(interface) + " netns NAME"}
        );
    } else if (at->addresses.empty()) {
        out.push_back(
            {true,
             interface + ", the interface of " + name +
                 ", has no IP address, by which rdmacm would find it",
             "ip addr add 192.168.77.1/24 dev " + quoted(interface)}
        );
    }
}

// If one port works, defects of other ports and devices are remarks.
void look_at_devices(machine const& m, std::vector<finding>& out) {
    std::vector<finding> about;
    for (rdma_device const& d : m.devices) {
        look_at_file(m, d.file, "ib_uverbs", about);
        look_at_limits(m, d, about);
        if (d.file.may_be_opened && d.open_error != 0 && !is_limited(m, d)) {
            about.push_back(
                {true,
                 "libibverbs cannot open " + d.name + ": " +
                     std::generic_category().message(d.open_error),
                 {}}
            );
        } else if (d.file.may_be_opened && !d.limits && !is_limited(m, d)) {
            about.push_back(
                {true,
                 "libibverbs cannot open " + d.name + ": its provider library is missing",
                 "apt-get install ibverbs-providers"}
            );
        }
        for (port const& p : d.ports) look_at_port(m, d, p, about);
    }
    bool const has_way = !addresses_to_try(m).empty();
    for (finding& f : about) {
        f.prevents = !has_way;
        out.push_back(std::move(f));
    }
}

void look_at_firewall(machine const& m, std::vector<finding>& out) {
    std::vector<finding> about;
    bool has_way = false;
    for (std::string const& address : addresses_to_try(m)) {
        auto const by = firewall_at(m, address);
        has_way = has_way || !by;
        if (!by || std::ranges::find(about, by->command, &finding::command) != about.end())
            continue;
        about.push_back(
            {true,
             "the firewall drops the packets of other machines (UDP port 4791, RoCE v2) at " +
                 address + ", in the chain " + by->chain +
                 "; to let them pass until the next start:",
             by->command}
        );
    }
    for (finding& f : about) {
        f.prevents = !has_way;
        out.push_back(std::move(f));
    }
}

}  // namespace

std::vector<ranked_gid> ranked(port const& p) {
    std::vector<gid> in_order = p.gids;
    std::ranges::stable_sort(in_order, {}, [&](gid const& g) { return place_of(p, g).rank; });
    std::vector<ranked_gid> out;
    for (gid& g : in_order) {
        std::string_view const reason = place_of(p, g).reason;
        out.push_back({std::move(g), reason});
    }
    return out;
}

std::vector<std::string> addresses_to_try(machine const& m) {
    if (!m.fabric_address.empty()) return {m.fabric_address};
    std::vector<std::string> out;
    auto const add = [&](std::string const& address) {
        if (std::ranges::find(out, address) == out.end()) out.push_back(address);
    };
    for (rdma_device const& d : m.devices) {
        if (!d.file.may_be_opened || !d.limits || is_limited(m, d)) continue;
        for (port const& p : d.ports) {
            if (!is_active(p)) continue;
            for (std::string const& interface : interfaces(d, p)) {
                auto const at = std::ranges::find(m.netdevs, interface, &netdev::name);
                if (at != m.netdevs.end()) std::ranges::for_each(at->addresses, add);
            }
        }
    }
    return out;
}

std::optional<dropped> firewall_at(machine const& m, std::string const& address) {
    if (!m.firewall || m.firewall->empty()) return std::nullopt;
    for (rdma_device const& d : m.devices) {
        if (!d.is_software) continue;
        for (port const& p : d.ports) {
            for (std::string const& interface : interfaces(d, p)) {
                auto const at = std::ranges::find(m.netdevs, interface, &netdev::name);
                if (at == m.netdevs.end() ||
                    std::ranges::find(at->addresses, address) == at->addresses.end())
                    continue;
                bool const is_ipv6 = address.find(':') != std::string::npos;
                return dropping_chain(*m.firewall, {is_ipv6, interface});
            }
        }
    }
    return std::nullopt;
}

namespace {

// The MTU of an Ethernet interface with which a port has these packets, or larger ones. The headers
// take up to 92 bytes.
unsigned interface_mtu(std::size_t packet_bytes) {
    return packet_bytes == 1024 ? 1500 : static_cast<unsigned>(packet_bytes) + 100;
}

finding lost_packets(machine const& m, peer_result const& r) {
    std::size_t const passed = r.is_reading ? r.read_bytes : r.written_bytes;
    std::string const way = r.is_reading ? "from " + r.address + " to this machine"
                                         : "from this machine to " + r.address;
    std::string const what =
        "packets of " + std::to_string(r.size_bytes) + " bytes do not arrive " + way;
    if (passed < 256)
        return {true, what + ": look for a firewall or a fault of the network on this way", {}};
    auto const at = std::ranges::find_if(m.netdevs, [&](netdev const& n) {
        return std::ranges::find(n.addresses, r.local_address) != n.addresses.end();
    });
    std::string const name = at == m.netdevs.end() ? "NAME" : quoted(at->name);
    return {
        true,
        what + ", those of " + std::to_string(passed) +
            " bytes do: an interface or a switch between them has a smaller MTU. Raise it there, "
            "or "
            "on both machines:",
        "ip link set " + name + " mtu " + std::to_string(interface_mtu(passed))};
}

}  // namespace

std::optional<finding> finding_of(machine const& m, peer_result const& r) {
    using rcverbs::step;
    if (r.works()) return std::nullopt;
    std::string const serve =
        "rdma-doctor --serve" + (r.port == peer_port ? "" : " --port " + std::to_string(r.port));
    if (r.where == step::resolve_address || r.where == step::resolve_route)
        return finding{
            true,
            r.address +
                " is not reached through an RDMA device of this machine, or does not answer "
                "the search for its hardware address; the interface that leads there:",
            "ip route get " + r.address};
    if (r.code == rcverbs::cm_errc::rejected_no_listener)
        return finding{
            true,
            "packets arrive both ways, but at port " + std::to_string(r.port) + " of " + r.address +
                " no program listens; there:",
            serve};
    if (r.code == rcverbs::condition::timed_out && r.size_bytes > 0) return lost_packets(m, r);
    if (r.where == step::connect &&
        (r.code == rcverbs::condition::timed_out || r.code == rcverbs::cm_errc::unreachable))
        return finding{
            true,
            r.address +
                " does not answer: it has no RDMA device at this address, or packets are "
                "dropped on one of the two ways (with RoCE v2, UDP port 4791 must pass in "
                "both directions); there, as root:",
            "rdma-doctor"};
    if (r.code == rcverbs::condition::refused)
        return finding{
            true,
            "the program that listens at port " + std::to_string(r.port) + " of " + r.address +
                " is no rdma-doctor of this version, or is busy; there:",
            serve};
    return finding{true, "the connection to " + r.address + " failed: " + r.failure, {}};
}

std::vector<finding> findings(machine const& m) {
    std::vector<finding> out;
    // Without its files nothing is known of the devices.
    if (m.sys == machine::sys_state::not_mounted) {
        out.push_back(
            {true,
             "/sys is empty, from which programs learn what devices there are" +
                 std::string{m.is_container ? ": run the container with it" : ""},
             m.is_container ? run_with_devices : "mount -t sysfs sysfs /sys"}
        );
        return out;
    }
    if (m.sys == machine::sys_state::of_another_namespace) {
        std::string const what = "/sys shows devices and interfaces of another network namespace";
        if (m.is_container) {
            out.push_back({true, what + ": run the container in that one", run_with_devices});
        } else {
            out.push_back(
                {true,
                 what + "; with a /sys of this one, as ip netns exec mounts it:",
                 "unshare --mount sh -c 'mount -t sysfs sysfs /sys && exec rdma-doctor'"}
            );
        }
        return out;
    }
    look_for_device(m, out);
    look_at_file(m, m.connection_manager, "rdma_ucm", out);
    look_at_devices(m, out);
    look_at_firewall(m, out);
    look_at_mtu(m, out);
    look_at_locked_memory(m, out);
    return out;
}

}  // namespace rdma_doctor
