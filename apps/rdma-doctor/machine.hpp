// machine.hpp — the state of a machine that matters for RDMA, read from kernel files and from
// verbs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/device.hpp>

namespace rdma_doctor {

/// One address of a port. Source: /sys/class/infiniband/*/ports/*/gids and gid_attrs.
struct gid {
    unsigned index = 0;
    /// As text; an IPv4-mapped address as IPv4.
    std::string address;
    /// "RoCE v2", "IB/RoCE v1".
    std::string kind;
    std::string netdev;
};

struct port {
    unsigned number = 0;
    /// "ACTIVE", "DOWN", …
    std::string state;
    /// "Ethernet", "InfiniBand".
    std::string link_layer;
    std::string rate;
    /// Bytes; 0 if the device could not be queried.
    unsigned mtu = 0;
    std::vector<gid> gids;
};

/// A device file that a program must be able to open for reading and writing.
struct device_file {
    std::string path;
    bool is_there = false;
    bool may_be_opened = false;
    /// The errno of opening it, if the file exists.
    int error = 0;
};

struct rdma_device {
    std::string name;
    device_file file;
    /// True for SoftRoCE, whose packets pass through the kernel's packet filter; those of an adapter
    /// do not.
    bool is_software = false;
    std::vector<port> ports;
    /// The network interfaces of the same adapter, by which InfiniBand is reached over IP.
    std::vector<std::string> netdevs;
    /// None if libibverbs cannot open it.
    std::optional<rcverbs::device_limits> limits;
    /// The errno of opening it with libibverbs; 0 if libibverbs does not list it.
    int open_error = 0;
};

/// A device of another network namespace.
struct device_elsewhere {
    std::string name;
    /// True for SoftRoCE, which stays in its namespace.
    bool is_software = false;
};

/// A limit of the cgroup controller rdma. Source: the kernel's Documentation/admin-guide/cgroup-v2.
struct cgroup_limit {
    /// The folder of the cgroup, which has rdma.max.
    std::string folder;
    std::string device;
    /// "hca_handle": how often the device may be open; "hca_object": protection domains, queues and
    /// memory regions.
    std::string resource;
    std::uint64_t max = 0;
    std::uint64_t used = 0;
};

struct module {
    enum class state { loaded, not_loaded, not_there };

    std::string name;
    state is = state::not_there;
};

/// A network interface other than the loopback one.
struct netdev {
    std::string name;
    /// Administratively up; has_link says whether there is a link.
    bool is_up = false;
    bool has_link = false;
    bool is_ethernet = false;
    /// True for an adapter, false for an interface that exists in software only (a bridge, a veth).
    bool is_hardware = false;
    bool has_default_route = false;
    /// Bytes; 0 if unknown.
    unsigned mtu = 0;
    /// IPv4 first; link-local ones last, with the interface (fe80::1%eth0).
    std::vector<std::string> addresses;
};

/// No limit on locked memory.
constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

struct machine {
    std::string kernel;
    /// The release alone, as in /lib/modules.
    std::string release;
    /// The distribution's ID in os-release: "debian", "ubuntu".
    std::string distribution;
    bool is_container = false;
    enum class sys_state { complete, not_mounted, of_another_namespace };
    /// Its address, if this process is a node of rcverbs-fabric: its devices exist in memory, and nothing else here is
    /// about them.
    std::string fabric_address;
    /// What /sys shows. That of another network namespace has its devices and interfaces.
    sys_state sys = sys_state::complete;
    /// The systemd service that this process belongs to; empty if it belongs to none.
    std::string service;
    /// True with CAP_IPC_LOCK, which lifts the limit on locked memory. Root has it, but not in
    /// every container.
    bool may_lock_all = false;
    /// The limit on locked memory without that capability, in bytes.
    std::uint64_t memory_lock_bytes = 0;
    std::vector<module> modules;
    device_file connection_manager;
    std::vector<rdma_device> devices;
    /// Devices that belong to other network namespaces: they have a file, and cannot be used here.
    std::vector<device_elsewhere> devices_elsewhere;
    /// Of this process's cgroup and those above it; without those that are "max".
    std::vector<cgroup_limit> cgroup_limits;
    std::vector<netdev> netdevs;
    /// The packet filter's rules as `nft --json list ruleset` prints them; empty if there are none.
    /// None if they matter and cannot be read: without the right, or without nft.
    std::optional<std::string> firewall = "";
};

/// Reads the files below `root` ("/" for this machine), and nothing else: no interface addresses,
/// no process limits, no verbs.
machine look_at(std::filesystem::path const& root, std::string const& release);

/// This machine: the files, and everything else.
machine look_at_this_machine();

}  // namespace rdma_doctor
