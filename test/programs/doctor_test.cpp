// What rdma-doctor reads from kernel files and concludes: tested on trees of such files and on
// constructed machines.
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "rdma-doctor/findings.hpp"
#include "rdma-doctor/firewall.hpp"
#include "rdma-doctor/machine.hpp"
#include "rdma-doctor/output.hpp"
#include "support/catch.hpp"

using namespace rdma_doctor;
namespace fs = std::filesystem;
using test::ContainsSubstring;
using test::EndsWith;
using test::StartsWith;

namespace {

// A temporary folder with files.
class tree {
public:
    tree() : root_{fs::temp_directory_path() / ("doctor-" + std::to_string(::getpid()))} {
        fs::create_directories(root_);
    }
    ~tree() { fs::remove_all(root_); }
    tree(tree const&) = delete;
    tree& operator=(tree const&) = delete;

    void write(std::string const& file, std::string const& content) {
        fs::create_directories((root_ / file).parent_path());
        std::ofstream{root_ / file} << content << '\n';
    }
    fs::path const& root() const { return root_; }

private:
    fs::path root_;
};

gid v4{1, "10.0.0.1", "RoCE v2", "eth0"};

// An interface that is up and has a link.
netdev ethernet(std::string name, std::vector<std::string> addresses) {
    netdev n;
    n.name = std::move(name);
    n.is_up = n.has_link = n.is_ethernet = n.is_hardware = true;
    n.addresses = std::move(addresses);
    return n;
}

// A machine on which RDMA works.
machine healthy() {
    machine m;
    m.kernel = "Linux 6.1.0 x86_64";
    m.release = "6.1.0";
    m.distribution = "debian";
    m.memory_lock_bytes = unlimited;
    m.modules = {
        {"ib_uverbs", module::state::loaded},
        {"rdma_ucm", module::state::loaded},
        {"rdma_rxe", module::state::loaded}};
    m.connection_manager = {"/dev/infiniband/rdma_cm", true, true, 0};
    m.netdevs = {ethernet("eth0", {"10.0.0.1", "fd00::1"})};
    rdma_device d;
    d.name = "rxe0";
    d.file = {"/dev/infiniband/uverbs0", true, true, 0};
    d.limits.emplace();
    d.ports = {{1, "ACTIVE", "Ethernet", "2.5 Gb/sec (1X SDR)", 4096, {v4}}};
    m.devices = {d};
    return m;
}

std::string commands(machine const& m) {
    std::string all;
    for (finding const& f : findings(m))
        all += (f.prevents ? "! " : "") + f.what + " -> " + f.command + "\n";
    return all;
}

}  // namespace

TEST_CASE("the doctor reads devices, ports and addresses of the kernel's files", "[doctor]") {
    tree t;
    std::string const port = "sys/class/infiniband/mlx5_1/ports/1/";
    t.write(port + "state", "4: ACTIVE");
    t.write(port + "link_layer", "Ethernet");
    t.write(port + "rate", "100 Gb/sec (4X EDR)");
    t.write(port + "gids/0", "fe80:0000:0000:0000:5054:00ff:fe12:3456");
    t.write(port + "gids/1", "0000:0000:0000:0000:0000:ffff:c0a8:010b");
    t.write(port + "gids/2", "0000:0000:0000:0000:0000:0000:0000:0000");
    t.write(port + "gids/10", "fd00:0000:0000:0000:0000:0000:0000:0001");
    for (char const* const index : {"0", "1", "10"}) {
        t.write(
            port + "gid_attrs/types/" + index, index == std::string{"0"} ? "IB/RoCE v1" : "RoCE v2"
        );
        t.write(port + "gid_attrs/ndevs/" + index, "eth4");
    }
    t.write("sys/class/infiniband_verbs/uverbs7/ibdev", "mlx5_1");
    t.write("sys/class/infiniband/mlx5_1/parent", "eth4");
    t.write("dev/infiniband/uverbs7", "");
    t.write("sys/class/infiniband_verbs/uverbs8/ibdev", "mlx5_8");
    t.write("sys/class/infiniband_verbs/uverbs8/device/vendor", "0x15b3");
    t.write("sys/class/infiniband_verbs/uverbs9/ibdev", "rxe9");
    t.write("proc/self/cgroup", "0::/system.slice/disk.service\n7:rdma:/old\n3:cpu:/x");
    std::string const slice = "sys/fs/cgroup/system.slice/";
    t.write(slice + "disk.service/rdma.max", "mlx5_1 hca_handle=max hca_object=7");
    t.write(slice + "disk.service/rdma.current", "mlx5_1 hca_handle=1 hca_object=5");
    t.write(slice + "rdma.max", "mlx5_0 hca_handle=1 hca_object=max");
    t.write("sys/fs/cgroup/rdma/old/rdma.max", "mlx5_1 hca_handle=3 hca_object=max");
    t.write("sys/class/net/eth4/type", "1");
    t.write("sys/class/net/eth4/flags", "0x1003");
    t.write("sys/class/net/eth4/carrier", "1");
    t.write("sys/class/net/eth4/device/vendor", "0x15b3");
    t.write("sys/class/infiniband/mlx5_1/device/net/eth4/mtu", "1500");
    t.write(
        "proc/net/route",
        "Iface\tDestination\tGateway\nib0\t0001A8C0\t00000000\neth4\t00000000\t0101A8C0"
    );
    t.write("etc/os-release", "PRETTY_NAME=\"Some Linux\"\nID=\"ubuntu\"");
    t.write("sys/class/net/ib0/type", "32");
    t.write("sys/class/net/ib0/flags", "0x1002");
    t.write("sys/class/net/lo/type", "772");
    t.write("sys/module/ib_uverbs/refcnt", "1");
    t.write(
        "lib/modules/6.1.0/modules.dep",
        "kernel/drivers/infiniband/core/rdma_ucm.ko: kernel/a.ko\nkernel/x.ko: kernel/rdma_rxe.ko"
    );
    t.write("run/.containerenv", "");

    machine const m = look_at(t.root(), "6.1.0");
    CHECK(m.is_container);
    CHECK(m.distribution == "ubuntu");
    REQUIRE(m.modules.size() == 3);
    CHECK(m.modules[0].is == module::state::loaded);
    CHECK(m.modules[1].is == module::state::not_loaded);
    // An entry of modules.dep that only depends on the module does not count.
    CHECK(m.modules[2].is == module::state::not_there);
    CHECK_FALSE(m.connection_manager.is_there);
    REQUIRE(m.devices.size() == 1);
    REQUIRE(m.devices_elsewhere.size() == 2);
    CHECK(m.devices_elsewhere[0].name == "mlx5_8");
    CHECK_FALSE(m.devices_elsewhere[0].is_software);
    CHECK(m.devices_elsewhere[1].is_software);
    CHECK(m.sys == machine::sys_state::complete);
    CHECK(m.service == "disk.service");
    REQUIRE(m.cgroup_limits.size() == 3);
    CHECK(m.cgroup_limits[0].folder == "/sys/fs/cgroup/system.slice/disk.service");
    CHECK(m.cgroup_limits[0].device == "mlx5_1");
    CHECK(m.cgroup_limits[0].resource == "hca_object");
    CHECK(m.cgroup_limits[0].max == 7);
    CHECK(m.cgroup_limits[0].used == 5);
    CHECK(m.cgroup_limits[1].folder == "/sys/fs/cgroup/system.slice");
    CHECK(m.cgroup_limits[1].resource == "hca_handle");
    CHECK(m.cgroup_limits[2].folder == "/sys/fs/cgroup/rdma/old");
    CHECK(m.devices[0].file.path == "/dev/infiniband/uverbs7");
    CHECK(m.devices[0].file.is_there);
    CHECK(m.devices[0].is_software);
    CHECK(m.devices[0].file.may_be_opened);
    CHECK(m.devices[0].netdevs == std::vector<std::string>{"eth4"});
    REQUIRE(m.devices[0].ports.size() == 1);
    rdma_doctor::port const& p = m.devices[0].ports[0];
    CHECK(p.number == 1);
    CHECK(p.state == "ACTIVE");
    CHECK(p.link_layer == "Ethernet");
    REQUIRE(p.gids.size() == 3);
    CHECK(p.gids[0].address == "fe80::5054:ff:fe12:3456");
    CHECK(p.gids[1].address == "192.168.1.11");
    CHECK(p.gids[2].index == 10);
    CHECK(p.gids[2].address == "fd00::1");
    REQUIRE(m.netdevs.size() == 2);
    CHECK(m.netdevs[0].name == "eth4");
    CHECK(m.netdevs[0].is_up);
    CHECK(m.netdevs[0].has_link);
    CHECK(m.netdevs[0].is_ethernet);
    CHECK(m.netdevs[0].is_hardware);
    CHECK(m.netdevs[0].has_default_route);
    CHECK_FALSE(m.netdevs[1].is_up);
    CHECK_FALSE(m.netdevs[1].has_link);
    CHECK_FALSE(m.netdevs[1].is_hardware);
    CHECK_FALSE(m.netdevs[1].has_default_route);
    CHECK_FALSE(m.netdevs[1].is_ethernet);

    auto const best = ranked(p);
    REQUIRE(best.size() == 3);
    CHECK(best[0].address.address == "192.168.1.11");
    CHECK(best[1].address.address == "fd00::1");
    CHECK(best[2].address.kind == "IB/RoCE v1");
    for (ranked_gid const& r : best) CHECK_FALSE(r.reason.empty());
}

TEST_CASE("the doctor finds no problem on a complete machine", "[doctor]") {
    CHECK(commands(healthy()).empty());
    CHECK(addresses_to_try(healthy()) == std::vector<std::string>{"10.0.0.1", "fd00::1"});
}

TEST_CASE("for each missing part the doctor prints the command that repairs it", "[doctor]") {
    machine m = healthy();
    SECTION("no device, SoftRoCE not loaded") {
        m.devices.clear();
        m.modules[2].is = module::state::not_loaded;
        CHECK_THAT(commands(m), ContainsSubstring("-> modprobe rdma_rxe\n"));
        CHECK_THAT(commands(m), ContainsSubstring("-> rdma link add rxe0 type rxe netdev eth0\n"));
        CHECK(addresses_to_try(m).empty());
    }
    SECTION("no device, and a kernel without SoftRoCE") {
        m.devices.clear();
        m.modules[2].is = module::state::not_there;
        CHECK_THAT(
            commands(m),
            ContainsSubstring("! the kernel 6.1.0 has no module rdma_rxe") &&
                ContainsSubstring("-> apt-get install linux-image-amd64\n")
        );
        m.distribution = "ubuntu";
        CHECK_THAT(
            commands(m), ContainsSubstring("-> apt-get install linux-modules-extra-6.1.0\n")
        );
        m.distribution = "other";
        CHECK_THAT(commands(m), ContainsSubstring("boot a kernel that has it -> \n"));
    }
    SECTION("no device, nor anything to carry one") {
        m.devices.clear();
        m.netdevs[0].is_ethernet = false;
        CHECK_THAT(commands(m), ContainsSubstring("ip link add v0 type veth peer name v0peer"));
    }
    SECTION("the best carrier has a link, leads to everywhere, and is an adapter's") {
        m.devices.clear();
        netdev docker = ethernet("docker0", {"172.17.0.1"});
        docker.is_hardware = docker.has_link = false;
        netdev veth = ethernet("a", {"10.2.0.1"});
        veth.is_hardware = false;
        netdev off = ethernet("eth0", {"10.3.0.1"});
        off.is_up = off.has_link = false;
        m.netdevs = {veth, docker, off, ethernet("eth1", {}), ethernet("eth2", {"10.1.0.1"})};
        CHECK_THAT(commands(m), ContainsSubstring("netdev eth2\n"));
        m.netdevs[0].has_default_route = true;
        CHECK_THAT(commands(m), ContainsSubstring("netdev a\n"));
    }
    SECTION("a name is one word to a shell, and nothing to a terminal") {
        m.devices.clear();
        m.netdevs = {ethernet("a;b'c", {})};
        CHECK_THAT(commands(m), ContainsSubstring("netdev 'a;b'\\''c'\n"));
        examination e;
        e.seen = m;
        e.seen.netdevs[0].name = "e\x1b[2J\xff";
        CHECK_THAT(text(e), ContainsSubstring("e?[2J"));
        CHECK(nlohmann::json::parse(json(e))["works"] == false);
    }
    SECTION("no connection manager") {
        m.connection_manager.is_there = m.connection_manager.may_be_opened = false;
        m.modules[1].is = module::state::not_loaded;
        CHECK_THAT(commands(m), ContainsSubstring("-> modprobe rdma_ucm\n"));
    }
    SECTION("a container without the devices") {
        m.is_container = true;
        m.devices.clear();
        m.connection_manager.is_there = m.connection_manager.may_be_opened = false;
        CHECK_THAT(
            commands(m),
            ContainsSubstring("--device=/dev/infiniband --network=host") &&
                ContainsSubstring("on the host: -> rdma link add rxe0 type rxe netdev eth0\n")
        );
    }
    SECTION("a container that sees the devices and may not open them") {
        m.is_container = true;
        m.devices[0].file.may_be_opened = false;
        m.devices[0].file.error = EPERM;
        CHECK_THAT(
            commands(m),
            ContainsSubstring("! this container may not open /dev/infiniband/uverbs0") &&
                ContainsSubstring("-> docker run --device=/dev/infiniband")
        );
    }
    SECTION("a container with a network of its own") {
        m.is_container = true;
        m.netdevs[0].name = "veth7";
        CHECK_THAT(
            commands(m),
            ContainsSubstring(
                "! eth0, the interface of port 1 of rxe0, is in another network namespace"
            ) && ContainsSubstring("--network=host")
        );
    }
    SECTION("a file that cannot be opened for another reason") {
        m.devices[0].file.may_be_opened = false;
        m.devices[0].file.error = EIO;
        CHECK_THAT(
            commands(m),
            ContainsSubstring("! /dev/infiniband/uverbs0 cannot be opened: Input/output error")
        );
    }
    SECTION("no right to a file") {
        m.devices[0].file.may_be_opened = false;
        m.devices[0].file.error = EACCES;
        CHECK_THAT(commands(m), ContainsSubstring("-> chmod a+rw /dev/infiniband/uverbs0\n"));
        CHECK(addresses_to_try(m).empty());
    }
    SECTION("a device of another network namespace") {
        m.devices.clear();
        m.netdevs.clear();
        m.devices_elsewhere = {{"mlx5_0", false}};
        CHECK_THAT(
            commands(m),
            StartsWith("! the RDMA device mlx5_0 belongs to another network namespace") &&
                EndsWith("-> rdma dev set mlx5_0 netns NAME\n") && !ContainsSubstring("SoftRoCE")
        );
        m.devices_elsewhere = {{"rxe0", true}};
        CHECK_THAT(
            commands(m),
            ContainsSubstring("run programs in that one") &&
                EndsWith("-> rdma system set netns shared\n")
        );
    }
    SECTION("defects of another device are remarks while one works") {
        m.devices.push_back(m.devices[0]);
        m.devices[1].name = "rxe1";
        m.devices[1].file = {"/dev/infiniband/uverbs1", false, false, 0};
        CHECK_THAT(commands(m), StartsWith("/dev/infiniband/uverbs1 is not there"));
        m.devices[1].file = m.devices[0].file;
        m.devices[1].limits.reset();
        CHECK_THAT(commands(m), StartsWith("libibverbs cannot open rxe1"));
        m.devices[0].limits.reset();
        CHECK_THAT(commands(m), StartsWith("! libibverbs cannot open rxe0"));
    }
    SECTION("an interface with nothing but a link-local address works") {
        m.netdevs[0].addresses = {"fe80::1%eth0"};
        CHECK(commands(m).empty());
        CHECK(addresses_to_try(m) == std::vector<std::string>{"fe80::1%eth0"});
    }
    SECTION("a /sys that is empty, or that of another network namespace, is all that is said") {
        m.devices.clear();
        m.sys = machine::sys_state::not_mounted;
        CHECK_THAT(
            commands(m),
            StartsWith("! /sys is empty") && EndsWith("-> mount -t sysfs sysfs /sys\n") &&
                !ContainsSubstring("SoftRoCE")
        );
        m.sys = machine::sys_state::of_another_namespace;
        CHECK_THAT(
            commands(m),
            StartsWith("! /sys shows devices and interfaces of another network namespace") &&
                ContainsSubstring("mount -t sysfs sysfs /sys")
        );
        m.is_container = true;
        CHECK_THAT(
            commands(m), ContainsSubstring("--network=host") && !ContainsSubstring("unshare")
        );
    }
    SECTION("the limits of a cgroup") {
        m.devices[0].limits.reset();
        m.cgroup_limits = {{"/sys/fs/cgroup/few", "rxe0", "hca_handle", 2, 2}};
        CHECK_THAT(
            commands(m),
            StartsWith("! the cgroup /sys/fs/cgroup/few may have 2 open contexts of rxe0") &&
                EndsWith("-> echo 'rxe0 hca_handle=max' >/sys/fs/cgroup/few/rdma.max\n") &&
                !ContainsSubstring("ibverbs-providers")
        );
        m.devices[0].limits.emplace();
        m.cgroup_limits = {{"/sys/fs/cgroup/few", "rxe0", "hca_object", 12, 1}};
        CHECK_THAT(commands(m), StartsWith("! the cgroup /sys/fs/cgroup/few may have 12 objects"));
        CHECK(addresses_to_try(m).empty());
        m.is_container = true;
        CHECK_THAT(commands(m), EndsWith("of this container on the host -> \n"));
        m.cgroup_limits[0].used = 0;
        CHECK(commands(m).empty());
        m.cgroup_limits = {{"/sys/fs/cgroup/few", "rxe1", "hca_handle", 0, 0}};
        CHECK(commands(m).empty());
    }
    SECTION("a device that libibverbs lists and cannot open") {
        m.devices[0].limits.reset();
        m.devices[0].open_error = EIO;
        CHECK_THAT(
            commands(m),
            StartsWith("! libibverbs cannot open rxe0: Input/output error") &&
                !ContainsSubstring("ibverbs-providers")
        );
    }
    SECTION("an interface in another network namespace") {
        m.netdevs.clear();
        CHECK_THAT(commands(m), EndsWith("-> ip link set eth0 netns NAME\n"));
        m.devices[0].is_software = true;
        CHECK_THAT(commands(m), EndsWith("run programs in that one -> \n"));
    }
    SECTION("small packets are a remark") {
        m.devices[0].ports[0].mtu = 1024;
        m.netdevs[0].mtu = 1500;
        CHECK_THAT(
            commands(m),
            StartsWith("port 1 of rxe0 sends packets of 1024 bytes, because the MTU of eth0 is 1500"
            ) && EndsWith("-> ip link set eth0 mtu 4200\n")
        );
        m.netdevs[0].mtu = 9000;
        CHECK(commands(m).empty());
    }
    SECTION("a service has its own limit on locked memory") {
        m.memory_lock_bytes = std::uint64_t{8} << 20;
        m.service = "disk.service";
        CHECK_THAT(
            commands(m),
            StartsWith("only 8192 KiB") && ContainsSubstring("LimitMEMLOCK=infinity") &&
                EndsWith("systemctl restart disk.service\n")
        );
    }
    SECTION("no provider library") {
        m.devices[0].limits.reset();
        CHECK_THAT(commands(m), ContainsSubstring("-> apt-get install ibverbs-providers\n"));
    }
    SECTION("a port that is down") {
        m.devices[0].ports[0].state = "DOWN";
        CHECK_THAT(
            commands(m),
            ContainsSubstring("! port 1 of rxe0 is DOWN") &&
                ContainsSubstring("up, but has no link") && !ContainsSubstring("ip link set")
        );
        m.netdevs[0].is_up = false;
        CHECK_THAT(
            commands(m),
            ContainsSubstring("! port 1 of rxe0 is DOWN") &&
                ContainsSubstring("-> ip link set eth0 up\n")
        );
        CHECK(addresses_to_try(m).empty());
    }
    SECTION("InfiniBand is reached by the adapter's own interface, if it has one") {
        port& p = m.devices[0].ports[0];
        p.link_layer = "InfiniBand";
        p.gids = {{0, "fe80::2:c903:1:2", "IB/RoCE v1", ""}};
        CHECK_THAT(
            commands(m),
            ContainsSubstring("! port 1 of rxe0 has no network interface") &&
                ContainsSubstring("-> modprobe ib_ipoib\n")
        );
        netdev ib = ethernet("ib0", {"10.9.0.1"});
        ib.is_ethernet = false;
        m.netdevs.push_back(ib);
        m.devices[0].netdevs = {"ib0"};
        CHECK(commands(m).empty());
        CHECK(addresses_to_try(m) == std::vector<std::string>{"10.9.0.1"});
        p.state = "INIT";
        CHECK_THAT(
            commands(m),
            ContainsSubstring("no subnet manager") &&
                ContainsSubstring("-> systemctl start opensm\n")
        );
        p.state = "DOWN";
        CHECK_THAT(commands(m), ContainsSubstring("no link") && !ContainsSubstring("ip link"));
    }
    SECTION("a port without an address") {
        m.netdevs[0].addresses.clear();
        CHECK_THAT(
            commands(m),
            ContainsSubstring("! eth0") &&
                ContainsSubstring("-> ip addr add 192.168.77.1/24 dev eth0\n")
        );
    }
    SECTION("a second port that is down is a remark") {
        m.devices[0].ports.push_back({2, "DOWN", "Ethernet", "", 0, {}});
        CHECK_THAT(commands(m), StartsWith("port 2 of rxe0 is DOWN"));
    }
    SECTION("no command needs more than an installation") {
        m.is_container = true;
        m.devices.clear();
        m.modules[2].is = module::state::not_there;
        CHECK_THAT(commands(m), !ContainsSubstring("docker/") && !ContainsSubstring("test/"));
    }
    SECTION("little memory to lock is a remark, and none to who has the capability") {
        m.memory_lock_bytes = std::uint64_t{8} << 20;
        CHECK_THAT(
            commands(m),
            StartsWith("only 8192 KiB") &&
                EndsWith("-> echo '* - memlock unlimited' >/etc/security/limits.d/rdma.conf\n")
        );
        m.is_container = true;
        CHECK_THAT(commands(m), ContainsSubstring("--ulimit memlock=-1"));
        m.may_lock_all = true;
        CHECK(commands(m).empty());
    }
}

TEST_CASE("the rules of the packet filter decide whether RoCE packets are dropped", "[doctor]") {
    // A table `inet filter` with a base chain `input`, and a chain `sub` that it may jump to.
    auto const rules = [](std::string const& policy, std::string const& in, std::string const& sub
                       ) {
        auto const rule = [](std::string const& chain, std::string const& expressions) {
            return R"({"rule":{"family":"inet","table":"filter","chain":")" + chain +
                   R"(","expr":[)" + expressions + "]}}";
        };
        return R"({"nftables":[{"table":{"family":"inet","name":"filter"}},
            {"set":{"family":"inet","name":"ports","table":"filter","elem":[22,{"range":[4000,5000]}]}},
            {"chain":{"family":"inet","table":"filter","name":"sub"}},
            {"chain":{"family":"inet","table":"filter","name":"input","type":"filter",
             "hook":"input","policy":")" +
               policy + R"("}},)" + rule("input", in) + "," + rule("sub", sub) + "]}";
    };
    auto const field = [](std::string const& left,
                          std::string const& right,
                          std::string const& then = R"({"accept":null})") {
        return R"({"match":{"op":"==","left":)" + left + R"(,"right":)" + right + "}}," + then;
    };
    std::string const port = R"({"payload":{"protocol":"udp","field":"dport"}})";
    std::string const interface = R"({"meta":{"key":"iifname"}})";
    std::string const source = R"({"payload":{"protocol":"ip","field":"saddr"}})";
    std::string const state = R"({"ct":{"key":"state"}})";
    std::string const family = R"({"meta":{"key":"nfproto"}})";
    struct row {
        std::string what;
        std::string policy;
        std::string in;
        std::string sub;
        bool is_dropped;
    };
    std::string const drop = R"({"drop":null})";
    std::string const jump = R"({"jump":{"target":"sub"}})";
    std::string const go = R"({"goto":{"target":"sub"}})";
    std::vector<row> const table{
        {"no rule, policy accept", "accept", "", "", false},
        {"no rule, policy drop", "drop", "", "", true},
        {"a dropped port", "accept", field(port, "4791", drop), "", true},
        {"a rejected port", "accept", field(port, "4791", R"({"reject":null})"), "", true},
        {"another dropped port", "accept", field(port, "53", drop), "", false},
        {"an accepted port", "drop", field(port, "4791"), "", false},
        {"an accepted range", "drop", field(port, R"({"range":[4000,5000]})"), "", false},
        {"a list with it", "drop", field(port, R"({"set":[53,4791]})"), "", false},
        {"a list without it", "drop", field(port, R"({"set":[53,67]})"), "", true},
        {"a named set with it", "drop", field(port, R"("@ports")"), "", false},
        {"a set that is not there", "drop", field(port, R"("@others")"), "", false},
        {"TCP",
         "drop",
         field(R"({"payload":{"protocol":"tcp","field":"dport"}})", "4791"),
         "",
         true},
        {"established only", "drop", field(state, R"(["established","related"])"), "", true},
        {"new", "drop", field(state, R"({"set":["new","established"]})"), "", false},
        {"this interface", "drop", field(interface, R"("eth*")"), "", false},
        {"the loopback interface", "drop", field(interface, R"("lo")"), "", true},
        {"an unknown condition", "drop", field(source, R"("10.0.0.2")"), "", false},
        {"an unknown condition that drops",
         "accept",
         field(source, R"("10.0.0.2")", drop),
         "",
         false},
        {"IPv6 only", "drop", field(family, R"("ipv6")"), "", true},
        {"a chain that accepts", "drop", jump, field(port, "4791"), false},
        {"a chain that drops", "accept", jump, drop, true},
        {"a chain that returns", "drop", jump, R"({"return":null})", true},
        {"a chain that goes on to the policy", "drop", go + R"(,{"accept":null})", "", true},
        {"a verdict map of states",
         "drop",
         R"({"vmap":{"key":{"ct":{"key":"state"}},"data":{"set":[["established",{"accept":null}]]}}})",
         "",
         true},
        {"a verdict map of ports",
         "drop",
         R"({"vmap":{"key":{"payload":{"protocol":"udp","field":"dport"}},"data":{"set":[[4791,{"accept":null}]]}}})",
         "",
         false},
        {"conntrack of iptables",
         "drop",
         R"({"xt":{"type":"match","name":"conntrack"}},{"accept":null})",
         "",
         true},
        {"another match of iptables",
         "drop",
         R"({"xt":{"type":"match","name":"multiport"}},{"accept":null})",
         "",
         false},
        {"a log with a limit", "drop", R"({"limit":{"rate":3}},{"log":null})", "", true},
    };
    for (row const& r : table) {
        INFO(r.what);
        auto const by = dropping_chain(rules(r.policy, r.in, r.sub), {false, "eth0"});
        CHECK(by.has_value() == r.is_dropped);
        if (by) CHECK(by->command == "nft insert rule inet filter input udp dport 4791 accept");
    }
    CHECK_FALSE(dropping_chain(rules("drop", field(family, R"("ipv6")"), ""), {true, "eth0"}));
    CHECK_FALSE(dropping_chain("", {}));
    CHECK_FALSE(dropping_chain(R"({"nftables":[{"chain":null},7]})", {}));
}

TEST_CASE("a firewall has its own program's command", "[doctor]") {
    auto const command = [](std::string const& family,
                            std::string const& table,
                            std::string const& chain) {
        auto const by = dropping_chain(
            R"({"nftables":[{"chain":{"family":")" + family + R"(","table":")" + table +
                R"(","name":")" + chain + R"(","type":"filter","hook":"input","policy":"drop"}}]})",
            {family == "ip6", "eth0"}
        );
        return by ? by->command : "";
    };
    CHECK(
        command("ip", "filter", "INPUT") ==
        "iptables -t filter -I INPUT -p udp --dport 4791 -j ACCEPT"
    );
    CHECK(
        command("ip6", "filter", "INPUT") ==
        "ip6tables -t filter -I INPUT -p udp --dport 4791 -j ACCEPT"
    );
    CHECK(command("inet", "firewalld", "filter_INPUT") == "firewall-cmd --add-port=4791/udp");
    CHECK(command("bridge", "filter", "input") == "");
}

TEST_CASE("a machine whose firewall drops RoCE packets works within itself only", "[doctor]") {
    examination e;
    e.seen = healthy();
    e.seen.devices[0].is_software = true;
    auto const with_family = [](std::string const& family) {
        return R"({"nftables":[{"chain":{"family":")" + family +
               R"(","table":"t","name":"c","type":"filter","hook":"input","policy":"drop"}}]})";
    };
    e.seen.firewall = with_family("inet");
    e.tests = {{"10.0.0.1", {"connect"}, {}, ""}};
    CHECK(e.works_locally());
    CHECK_FALSE(e.works());
    CHECK_THAT(
        commands(e.seen),
        StartsWith("! the firewall drops the packets of other machines") &&
            EndsWith("-> nft insert rule inet t c udp dport 4791 accept\n")
    );
    CHECK_THAT(text(e), ContainsSubstring("\nRDMA works within this machine only: its firewall"));
    CHECK(nlohmann::json::parse(json(e))["works"] == false);
    // Another address of the machine is not affected.
    e.seen.firewall = with_family("ip6");
    CHECK(e.works());
    CHECK_THAT(commands(e.seen), StartsWith("the firewall drops"));
    // An adapter's packets do not pass through the kernel.
    e.seen.firewall = with_family("inet");
    e.seen.devices[0].is_software = false;
    CHECK(e.works());
    CHECK(commands(e.seen).empty());
    e.seen.firewall.reset();
    CHECK_THAT(text(e), ContainsSubstring("\nfirewall   not known"));
    CHECK(nlohmann::json::parse(json(e))["firewall_is_known"] == false);
}

TEST_CASE("a failed test with a peer has its cause", "[doctor]") {
    using rcverbs::step;
    struct row {
        step where;
        rcverbs::error_code code;
        std::size_t size_bytes;
        bool is_reading;
        std::size_t passed_bytes;
        std::string what;
        std::string command;
    };
    using rcverbs::cm_errc;
    using rcverbs::errc;
    using rcverbs::wc_errc;
    std::vector<row> const table{
        {step::resolve_address,
         cm_errc::address_error,
         0,
         false,
         0,
         "is not reached through",
         "ip route get 10.0.1.1"},
        {step::connect,
         cm_errc::rejected_no_listener,
         0,
         false,
         0,
         "packets arrive both ways",
         "rdma-doctor --serve"},
        {step::connect, cm_errc::unreachable, 0, false, 0, "does not answer", "rdma-doctor"},
        {step::connect, errc::timed_out, 0, false, 0, "does not answer", "rdma-doctor"},
        {step::connect,
         cm_errc::rejected_by_peer,
         0,
         false,
         0,
         "is no rdma-doctor",
         "rdma-doctor --serve"},
        {step::transfer,
         wc_errc::retry_exceeded,
         64,
         false,
         0,
         "packets of 64 bytes do not arrive from this machine to 10.0.1.1: look for",
         ""},
        {step::transfer,
         wc_errc::retry_exceeded,
         2048,
         false,
         1024,
         "packets of 2048 bytes do not arrive from this machine to 10.0.1.1, those of 1024 bytes "
         "do",
         "ip link set eth0 mtu 1500"},
        {step::transfer,
         errc::stalled,
         4096,
         true,
         2048,
         "packets of 4096 bytes do not arrive from 10.0.1.1 to this machine",
         "ip link set eth0 mtu 2148"},
        {step::transfer,
         wc_errc::remote_access,
         64,
         false,
         0,
         "the connection to 10.0.1.1 failed",
         ""},
    };
    for (row const& r : table) {
        peer_result p;
        p.address = "10.0.1.1";
        p.local_address = "10.0.0.1";
        p.port = peer_port;
        p.where = r.where;
        p.code = r.code;
        p.size_bytes = r.size_bytes;
        p.is_reading = r.is_reading;
        (r.is_reading ? p.read_bytes : p.written_bytes) = r.passed_bytes;
        p.failure = "it failed";
        INFO(r.what);
        auto const f = finding_of(healthy(), p);
        REQUIRE(f);
        CHECK_THAT(f->what, ContainsSubstring(r.what));
        CHECK(f->command == r.command);
    }
    examination e;
    e.seen = healthy();
    e.tests = {{"10.0.0.1", {"connect"}, {}, ""}};
    e.peer.emplace();
    e.peer->address = "10.0.1.1";
    CHECK_FALSE(finding_of(e.seen, *e.peer));
    CHECK_THAT(text(e), EndsWith("RDMA works between this machine and 10.0.1.1.\n"));
    e.peer->failure = "it failed";
    CHECK_THAT(text(e), EndsWith("RDMA does not work between this machine and 10.0.1.1.\n"));
    CHECK(nlohmann::json::parse(json(e))["works"] == false);
    CHECK(nlohmann::json::parse(json(e))["peer"]["failure"] == "it failed");
}

TEST_CASE("the doctor's verdict is that of the last self-test, in text and in JSON", "[doctor]") {
    examination e;
    e.seen = healthy();
    CHECK_FALSE(e.works());
    e.tests = {{"10.0.0.1", {"connect"}, {}, "write: it broke"}};
    e.found = {{true, "something", "mend it"}};
    CHECK_FALSE(e.works());
    CHECK_THAT(
        text(e),
        ContainsSubstring("then: write: it broke") &&
            ContainsSubstring("missing: something\n    mend it\n") &&
            EndsWith("RDMA does not work on this machine.\n")
    );
    CHECK(nlohmann::json::parse(json(e))["works"] == false);
    e.tests.push_back({"fd00::1", {"connect", "write", "read"}, {"fetch-and-add"}, ""});
    e.found.clear();
    CHECK(e.works());
    CHECK_THAT(
        text(e),
        ContainsSubstring("the device has no fetch-and-add") &&
            EndsWith("RDMA works on this machine.\n")
    );
    auto const j = nlohmann::json::parse(json(e));
    CHECK(j["works"] == true);
    CHECK(j["memory_lock_bytes"].is_null());
    CHECK(j["devices"][0]["ports"][0]["gids"][0]["address"] == "10.0.0.1");
    CHECK(j["self_tests"][1]["done"][2] == "read");
    CHECK(j["findings"].empty());
}
