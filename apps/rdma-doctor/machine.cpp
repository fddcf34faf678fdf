#include "rdma-doctor/machine.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <tuple>

#include <rcverbs/error.hpp>

namespace rdma_doctor {

namespace fs = std::filesystem;

namespace {

// The first line of a file; empty if it cannot be read, as attributes that a device lacks.
std::string line_of(fs::path const& file) {
    std::ifstream in{file};
    std::string line;
    std::getline(in, line);
    return line;
}

// The names in a folder, sorted; numbers first, by value.
std::vector<std::string> names_in(fs::path const& folder) {
    std::vector<std::string> names;
    std::error_code ec;
    for (auto const& entry : fs::directory_iterator{folder, ec})
        names.push_back(entry.path().filename());
    std::ranges::sort(names, {}, [](std::string const& name) {
        bool const is_word = name.find_first_not_of("0123456789") != std::string::npos;
        return std::tuple{is_word, is_word ? 0 : name.size(), name};
    });
    return names;
}

// The value of a line "KEY=VALUE" or "KEY:  VALUE".
std::string value_of(fs::path const& file, std::string const& key) {
    std::ifstream in{file};
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(key)) continue;
        std::size_t const at = line.find_first_not_of("=: \t\"", key.size());
        return at == std::string::npos ? "" : line.substr(at, line.find_last_not_of('"') + 1 - at);
    }
    return {};
}

unsigned number(std::string const& text) {
    return static_cast<unsigned>(std::strtoul(text.c_str(), nullptr, 10));
}

// "4: ACTIVE" to "ACTIVE".
std::string behind_colon(std::string const& text) {
    std::size_t const at = text.find(": ");
    return at == std::string::npos ? text : text.substr(at + 2);
}

// The kernel prints every address as eight full groups. None if the address is all zeros: an empty
// entry.
std::optional<std::string> address_text(std::string const& full) {
    in6_addr bytes{};
    if (::inet_pton(AF_INET6, full.c_str(), &bytes) != 1) return std::nullopt;
    if (IN6_IS_ADDR_UNSPECIFIED(&bytes)) return std::nullopt;
    char text[INET6_ADDRSTRLEN] = {};
    if (IN6_IS_ADDR_V4MAPPED(&bytes)) {
        ::inet_ntop(AF_INET, &bytes.s6_addr[12], text, sizeof text);
    } else {
        ::inet_ntop(AF_INET6, &bytes, text, sizeof text);
    }
    return text;
}

port look_at_port(fs::path const& folder) {
    port p;
    p.number = number(folder.filename());
    p.state = behind_colon(line_of(folder / "state"));
    p.link_layer = line_of(folder / "link_layer");
    p.rate = line_of(folder / "rate");
    for (std::string const& index : names_in(folder / "gids")) {
        auto const address = address_text(line_of(folder / "gids" / index));
        if (!address) continue;
        fs::path const about = folder / "gid_attrs";
        p.gids.push_back(
            {number(index),
             *address,
             line_of(about / "types" / index),
             line_of(about / "ndevs" / index)}
        );
    }
    return p;
}

// Opens the file: a container's device rules show only when it is opened.
device_file look_at_file(fs::path const& root, std::string const& path) {
    int const file = ::open((root / path.substr(1)).c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return {path, errno != ENOENT && errno != ENOTDIR, false, errno};
    ::close(file);
    return {path, true, true, 0};
}

// The uverbs file of a device: the one whose ibdev attribute names it.
std::string verbs_file(fs::path const& root, std::string const& device) {
    fs::path const folder = root / "sys/class/infiniband_verbs";
    for (std::string const& name : names_in(folder)) {
        if (line_of(folder / name / "ibdev") == device) return "/dev/infiniband/" + name;
    }
    return "/dev/infiniband/uverbs0";
}

bool has_module_file(fs::path const& root, std::string const& release, std::string const& name) {
    for (char const* const list : {"modules.dep", "modules.builtin"}) {
        std::ifstream in{root / "lib/modules" / release / list};
        for (std::string line; std::getline(in, line);) {
            if (line.substr(0, line.find(':')).find("/" + name + ".ko") != std::string::npos)
                return true;
        }
    }
    return false;
}

module look_at_module(fs::path const& root, std::string const& release, std::string const& name) {
    std::error_code ec;
    if (fs::exists(root / "sys/module" / name, ec)) return {name, module::state::loaded};
    return {
        name,
        has_module_file(root, release, name) ? module::state::not_loaded
                                             : module::state::not_there};
}

// The interfaces of the IPv4 default routes. Source: proc(5), /proc/net/route.
std::vector<std::string> default_routes(fs::path const& root) {
    std::vector<std::string> out;
    std::ifstream in{root / "proc/net/route"};
    for (std::string line; std::getline(in, line);) {
        std::istringstream words{line};
        std::string name, to;
        if (words >> name >> to && to == "00000000") out.push_back(name);
    }
    return out;
}

// Source: capabilities(7); bit 14 is CAP_IPC_LOCK.
bool may_lock_all() {
    std::string const effective = value_of("/proc/self/status", "CapEff:");
    return (std::strtoull(effective.c_str(), nullptr, 16) >> 14 & 1) != 0;
}

// Adds the limits of one cgroup: files of lines "rxe0 hca_handle=2 hca_object=max".
void add_limits(machine& m, fs::path const& root, fs::path const& folder) {
    auto const each = [&](char const* file, auto use) {
        std::ifstream in{root / folder.relative_path() / file};
        for (std::string line; std::getline(in, line);) {
            std::istringstream words{line};
            std::string device, word;
            words >> device;
            while (words >> word) {
                std::size_t const at = word.find('=');
                if (at == std::string::npos || word.substr(at + 1) == "max") continue;
                use(device, word.substr(0, at), std::strtoull(word.c_str() + at + 1, nullptr, 10));
            }
        }
    };
    std::size_t const first = m.cgroup_limits.size();
    each("rdma.max", [&](auto const& device, auto const& resource, std::uint64_t max) {
        m.cgroup_limits.push_back({folder, device, resource, max, 0});
    });
    each("rdma.current", [&](auto const& device, auto const& resource, std::uint64_t used) {
        for (std::size_t i = first; i < m.cgroup_limits.size(); ++i) {
            cgroup_limit& l = m.cgroup_limits[i];
            if (l.device == device && l.resource == resource) l.used = used;
        }
    });
}

// Source: cgroups(7). Lines "0::/path" of version 2, and "7:rdma:/path" of version 1.
void look_at_cgroup(machine& m, fs::path const& root) {
    std::ifstream in{root / "proc/self/cgroup"};
    for (std::string line; std::getline(in, line);) {
        std::size_t const at = line.find(":/");
        if (at == std::string::npos) continue;
        std::string const controllers = line.substr(0, at);
        bool const is_unified = controllers == "0:";
        fs::path group = line.substr(at + 1);
        if (is_unified) {
            for (fs::path const& part : group) {
                bool const is_service =
                    part.extension() == ".service" && !part.string().starts_with("user@");
                if (is_service) m.service = part;
            }
        }
        if (!is_unified && !controllers.ends_with(":rdma")) continue;
        fs::path const base = is_unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/rdma";
        for (; group != group.root_path(); group = group.parent_path())
            add_limits(m, root, base / group.relative_path());
        add_limits(m, root, base);
    }
}

// Whether /sys has the interfaces of another network namespace: it shows those of the process that
// mounted it.
bool is_sys_of_another_namespace(machine const& m) {
    std::unique_ptr<struct if_nameindex, decltype(&::if_freenameindex)> const here{
        ::if_nameindex(), ::if_freenameindex};
    if (here == nullptr) return false;
    bool has_interface = !m.netdevs.empty();
    for (auto const* i = here.get(); i->if_name != nullptr; ++i) {
        if (number(line_of(fs::path{"/sys/class/net"} / i->if_name / "ifindex")) == i->if_index) {
            // The loopback interface is the first one of every namespace.
            if (i->if_name != std::string_view{"lo"}) return false;
        } else {
            has_interface = true;
        }
    }
    return has_interface;
}

void add_addresses(machine& m) {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return;
    std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> const owner{list, ::freeifaddrs};
    // Link-local addresses last: programs need their interface, too.
    struct kind {
        int family;
        bool is_link_local;
    };
    for (kind const k : {kind{AF_INET, false}, {AF_INET6, false}, {AF_INET6, true}}) {
        int const family = k.family;
        for (ifaddrs const* a = list; a != nullptr; a = a->ifa_next) {
            if (a->ifa_addr == nullptr || a->ifa_addr->sa_family != family) continue;
            // A label ("eth0:1") belongs to an address, not to an interface.
            std::string_view const labelled = a->ifa_name;
            auto const at =
                std::ranges::find(m.netdevs, labelled.substr(0, labelled.find(':')), &netdev::name);
            if (at == m.netdevs.end()) continue;
            char text[INET6_ADDRSTRLEN] = {};
            if (family == AF_INET) {
                ::inet_ntop(
                    family,
                    &reinterpret_cast<sockaddr_in const*>(a->ifa_addr)->sin_addr,
                    text,
                    sizeof text
                );
            } else {
                in6_addr const& address =
                    reinterpret_cast<sockaddr_in6 const*>(a->ifa_addr)->sin6_addr;
                if ((IN6_IS_ADDR_LINKLOCAL(&address) != 0) != k.is_link_local) continue;
                ::inet_ntop(family, &address, text, sizeof text);
            }
            at->addresses.push_back(k.is_link_local ? text + ('%' + at->name) : text);
        }
    }
}

// The rules of the packet filter. nft itself decodes them: what the kernel stores is a program.
std::optional<std::string> firewall_rules() {
    std::error_code ec;
    // Rules of iptables-legacy are not nft's to print. Only root may read these lists.
    for (char const* const list : {"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"}) {
        bool const is_unused = ::access(list, R_OK) == 0 && line_of(list).empty();
        if (fs::exists(list, ec) && !is_unused) return std::nullopt;
    }
    // nft would load the module.
    if (!fs::exists("/sys/module/nf_tables", ec)) return "";
    // A user's PATH need not have these folders.
    struct close_pipe {
        void operator()(FILE* pipe) const noexcept { ::pclose(pipe); }
    };
    std::unique_ptr<FILE, close_pipe> const nft{
        ::popen("PATH=$PATH:/usr/sbin:/sbin exec nft --json list ruleset 2>/dev/null", "re")};
    if (nft == nullptr) return std::nullopt;
    std::string rules;
    char part[4096];
    for (std::size_t n = 0; (n = std::fread(part, 1, sizeof part, nft.get())) > 0;)
        rules.append(part, n);
    // nft prints nothing when it fails.
    return rules.empty() ? std::nullopt : std::optional{rules};
}

void ask_verbs(machine& m) {
    // Limits stay empty if librdmacm cannot list the devices.
    try {
        for (rcverbs::device_info const& d : rcverbs::devices()) {
            auto const at = std::ranges::find(m.devices, d.name, &rdma_device::name);
            if (at != m.devices.end()) at->limits = d.limits;
        }
    } catch (boost::system::system_error const&) {}
    int count = 0;
    std::unique_ptr<ibv_device*, decltype(&::ibv_free_device_list)> const list{
        ::ibv_get_device_list(&count), ::ibv_free_device_list};
    for (int i = 0; list != nullptr && i < count; ++i) {
        auto const at =
            std::ranges::find(m.devices, ::ibv_get_device_name(list.get()[i]), &rdma_device::name);
        if (at == m.devices.end()) continue;
        errno = 0;
        std::unique_ptr<ibv_context, decltype(&::ibv_close_device)> const device{
            ::ibv_open_device(list.get()[i]), ::ibv_close_device};
        if (device == nullptr) {
            at->open_error = errno;
            continue;
        }
        for (port& p : at->ports) {
            ibv_port_attr about{};
            // The values 1 to 5 stand for 256 to 4096. Source: enum ibv_mtu.
            if (::ibv_query_port(device.get(), static_cast<std::uint8_t>(p.number), &about) == 0)
                p.mtu = 128U << about.active_mtu;
        }
    }
}

}  // namespace

machine look_at(fs::path const& root, std::string const& release) {
    machine m;
    m.release = release;
    std::error_code ec;
    // Marker files of Docker, of Podman, and of systemd's container interface.
    for (char const* const sign : {".dockerenv", "run/.containerenv", "run/systemd/container"}) {
        m.is_container = m.is_container || fs::exists(root / sign, ec);
    }
    if (!fs::is_directory(root / "sys/class", ec)) m.sys = machine::sys_state::not_mounted;
    look_at_cgroup(m, root);
    m.distribution = value_of(root / "etc/os-release", "ID=");
    for (char const* const name : {"ib_uverbs", "rdma_ucm", "rdma_rxe"})
        m.modules.push_back(look_at_module(root, release, name));
    m.connection_manager = look_at_file(root, "/dev/infiniband/rdma_cm");
    fs::path const devices = root / "sys/class/infiniband";
    for (std::string const& name : names_in(devices)) {
        rdma_device d;
        d.name = name;
        d.file = look_at_file(root, verbs_file(root, name));
        // Only rdma_rxe has this attribute.
        d.is_software = fs::exists(devices / name / "parent", ec);
        d.netdevs = names_in(devices / name / "device/net");
        for (std::string const& p : names_in(devices / name / "ports"))
            d.ports.push_back(look_at_port(devices / name / "ports" / p));
        m.devices.push_back(std::move(d));
    }
    // Device files belong to no namespace, and devices do.
    for (std::string const& file : names_in(root / "sys/class/infiniband_verbs")) {
        std::string const name = line_of(root / "sys/class/infiniband_verbs" / file / "ibdev");
        bool const is_here =
            std::ranges::find(m.devices, name, &rdma_device::name) != m.devices.end();
        // Only an adapter has a device below.
        bool const is_software =
            !fs::exists(root / "sys/class/infiniband_verbs" / file / "device", ec);
        if (!name.empty() && !is_here) m.devices_elsewhere.push_back({name, is_software});
    }
    fs::path const netdevs = root / "sys/class/net";
    std::vector<std::string> const routed = default_routes(root);
    for (std::string const& name : names_in(netdevs)) {
        // Source: /usr/include/linux/if_arp.h and if.h.
        constexpr unsigned ethernet = 1;
        constexpr unsigned loopback = 772;
        fs::path const folder = netdevs / name;
        unsigned const type = number(line_of(folder / "type"));
        if (type == loopback || !fs::is_directory(folder, ec)) continue;
        netdev& n = m.netdevs.emplace_back();
        n.name = name;
        n.is_up = (std::strtoul(line_of(folder / "flags").c_str(), nullptr, 16) & IFF_UP) != 0;
        n.has_link = line_of(folder / "carrier") == "1";
        n.is_ethernet = type == ethernet;
        n.mtu = number(line_of(folder / "mtu"));
        n.is_hardware = fs::exists(folder / "device", ec);
        n.has_default_route = std::ranges::find(routed, name) != routed.end();
    }
    return m;
}

machine look_at_this_machine() {
    utsname u{};
    ::uname(&u);
    machine m = look_at("/", u.release);
    m.kernel = std::string{u.sysname} + " " + u.release + " " + u.machine;
    // Kubernetes leaves no marker file.
    m.is_container = m.is_container || std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
    m.may_lock_all = may_lock_all();
    if (m.sys == machine::sys_state::complete && is_sys_of_another_namespace(m))
        m.sys = machine::sys_state::of_another_namespace;
    rlimit lock{};
    if (::getrlimit(RLIMIT_MEMLOCK, &lock) == 0)
        m.memory_lock_bytes = lock.rlim_cur == RLIM_INFINITY ? unlimited : lock.rlim_cur;
    if (char const* const address = std::getenv("RCVERBS_FABRIC_ADDRESS"))
        m.fabric_address = address;
    add_addresses(m);
    if (std::ranges::any_of(m.devices, &rdma_device::is_software)) m.firewall = firewall_rules();
    ask_verbs(m);
    return m;
}

}  // namespace rdma_doctor
