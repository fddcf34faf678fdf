#include "rdma-doctor/findings.hpp"

#include <algorithm>

namespace rdma_doctor {

namespace {

constexpr std::uint64_t enough_locked = std::uint64_t{64} << 20;

bool is_ipv4(gid const& g) { return g.address.find(':') == std::string::npos; }
bool is_link_local(gid const& g) { return g.address.starts_with("fe80:"); }
bool is_active(port const& p) { return p.state == "ACTIVE"; }

struct place {
    int rank;
    std::string_view reason;
};

place place_of(port const& p, gid const& g) {
    if (p.link_layer == "InfiniBand") return {3, "InfiniBand, for programs that exchange it themselves; rdmacm goes by the IP address of the interface"};
    if (g.kind != "RoCE v2") return {4, "RoCE v1: does not cross routers, and newer adapters leave it out"};
    if (is_ipv4(g)) return {0, "RoCE v2 over IPv4: crosses routers, and is what programs take by default"};
    if (is_link_local(g)) return {2, "RoCE v2, link-local: this network only, and addresses need the interface (%)"};
    return {1, "RoCE v2 over IPv6: crosses routers"};
}

module::state state_of(machine const& m, std::string_view name) {
    auto const at = std::ranges::find(m.modules, name, &module::name);
    return at == m.modules.end() ? module::state::not_there : at->is;
}

// What could carry SoftRoCE: an Ethernet interface, best one that is up and has an address.
netdev const* carrier(machine const& m) {
    netdev const* best = nullptr;
    auto const worth = [](netdev const& n) { return (n.is_up ? 2 : 0) + (n.addresses.empty() ? 0 : 1); };
    for (netdev const& n : m.netdevs) {
        if (n.is_ethernet && (best == nullptr || worth(n) > worth(*best))) best = &n;
    }
    return best;
}

finding missing_module(machine const& m, std::string const& name, std::string const& what_for) {
    if (m.is_container) {
        return {true, "the host has not loaded the module " + name + ", " + what_for, "on the host: modprobe " + name};
    }
    if (state_of(m, name) == module::state::not_loaded) return {true, "the module " + name + ", " + what_for + ", is not loaded", "modprobe " + name};
    return {
        true, "the kernel " + m.release + " has no module " + name + ", " + what_for,
        "apt-get install linux-image-amd64 (Debian) or linux-modules-extra-" + m.release + " (Ubuntu), and start that kernel; or run programs in "
        "the virtual machine: test/softroce/vm"
    };
}

void look_for_device(machine const& m, std::vector<finding>& out) {
    if (!m.devices.empty()) return;
    if (state_of(m, "rdma_rxe") != module::state::loaded) out.push_back(missing_module(m, "rdma_rxe", "SoftRoCE"));
    netdev const* const on = carrier(m);
    std::string const where = m.is_container ? "on the host: " : "";
    std::string const what = "there is no RDMA device: no adapter, and no SoftRoCE device";
    if (m.is_container) {
        out.push_back({true, what, "on the host: rdma link add rxe0 type rxe netdev NETDEV"});
    } else if (on == nullptr) {
        out.push_back({true, what + ", nor an Ethernet interface that could carry one", "ip link add v0 type veth peer name v0peer"});
    } else {
        out.push_back({true, what + "; " + on->name + " could carry one", "rdma link add rxe0 type rxe netdev " + on->name});
    }
}

void look_at_file(machine const& m, device_file const& f, std::string const& module, std::vector<finding>& out) {
    if (f.may_be_opened) return;
    if (!f.is_there && m.is_container) {
        out.push_back({true, f.path + " is not in this container", "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 …"});
    } else if (!f.is_there) {
        if (state_of(m, module) != module::state::loaded) {
            out.push_back(missing_module(m, module, "which makes " + f.path));
        } else {
            out.push_back({true, f.path + " is not there although " + module + " is loaded", "udevadm trigger --subsystem-match=infiniband_verbs --subsystem-match=misc"});
        }
    } else {
        out.push_back({true, "this user may not open " + f.path, "chmod a+rw " + f.path});
    }
}

void look_at_port(machine const& m, rdma_device const& d, port const& p, std::vector<finding>& out) {
    std::string const name = "port " + std::to_string(p.number) + " of " + d.name;
    auto const on = std::ranges::find_if(p.gids, [](gid const& g) { return !g.netdev.empty(); });
    std::string const interface = on == p.gids.end() ? "NETDEV" : on->netdev;
    if (!is_active(p)) {
        out.push_back({true, name + " is " + p.state + ", not ACTIVE", "ip link set " + interface + " up"});
        return;
    }
    auto const at = std::ranges::find(m.netdevs, interface, &netdev::name);
    if (at != m.netdevs.end() && at->addresses.empty()) {
        out.push_back({true, interface + ", the interface of " + name + ", has no IP address, by which rdmacm would find it", "ip addr add 192.168.77.1/24 dev " + interface});
    }
}

// One good port is enough: what others lack is a remark then.
void look_at_ports(machine const& m, std::vector<finding>& out) {
    std::vector<finding> about;
    for (rdma_device const& d : m.devices) {
        for (port const& p : d.ports) look_at_port(m, d, p, about);
    }
    bool const has_way = !addresses_to_try(m).empty();
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
    std::vector<std::string> out;
    auto const add = [&](std::string const& address) {
        if (std::ranges::find(out, address) == out.end()) out.push_back(address);
    };
    for (rdma_device const& d : m.devices) {
        if (!d.file.may_be_opened) continue;
        for (port const& p : d.ports) {
            if (!is_active(p)) continue;
            for (ranked_gid const& r : ranked(p)) {
                auto const at = std::ranges::find(m.netdevs, r.address.netdev, &netdev::name);
                if (at != m.netdevs.end()) std::ranges::for_each(at->addresses, add);
            }
        }
    }
    return out;
}

std::vector<finding> findings(machine const& m) {
    std::vector<finding> out;
    look_for_device(m, out);
    look_at_file(m, m.connection_manager, "rdma_ucm", out);
    for (rdma_device const& d : m.devices) {
        look_at_file(m, d.file, "ib_uverbs", out);
        if (d.file.may_be_opened && !d.limits) {
            out.push_back({true, "libibverbs cannot open " + d.name + ": its provider library is missing", "apt-get install ibverbs-providers"});
        }
    }
    look_at_ports(m, out);
    if (!m.is_root && m.memory_lock_bytes < enough_locked) {
        std::string const kib = std::to_string(m.memory_lock_bytes / 1024);
        std::string const command = m.is_container ? "docker run --ulimit memlock=-1 …"
                                                   : "echo '* - memlock unlimited' >/etc/security/limits.d/rdma.conf, and log in again";
        out.push_back({false, "only " + kib + " KiB of memory may be registered by this user (ulimit -l)", command});
    }
    return out;
}

}  // namespace rdma_doctor
