#include "rdma-doctor/output.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>

namespace rdma_doctor {

namespace {

using nlohmann::ordered_json;

char const* name(module::state s) {
    switch (s) {
    case module::state::loaded: return "loaded";
    case module::state::not_loaded: return "not loaded";
    case module::state::not_there: return "not there";
    }
    return "";
}

char const* state(device_file const& f) {
    if (f.may_be_opened) return "may be opened";
    return f.is_there ? "may not be opened by this user" : "is not there";
}

std::string joined(std::vector<std::string> const& words) {
    std::string out;
    for (std::string const& w : words) out += (out.empty() ? "" : ", ") + w;
    return out;
}

std::string locked_memory(machine const& m) {
    if (m.may_lock_all) return "without limit (CAP_IPC_LOCK)";
    return m.memory_lock_bytes == unlimited ? "without limit"
                                            : std::to_string(m.memory_lock_bytes / 1024) + " KiB";
}

void write_device(std::ostream& out, rdma_device const& d) {
    out << "\ndevice " << d.name << "\n  file     " << d.file.path << ' ' << state(d.file) << '\n';
    if (d.limits) {
        rcverbs::device_limits const& l = *d.limits;
        out << "  limits   queues of " << l.queue_depth_max << " requests, " << l.segments_max
            << " segments each; completion queues of " << l.completion_queue_depth_max << "; "
            << l.initiator_depth_max << " reads and atomics at a time; messages of "
            << l.message_bytes_max << " bytes; " << (l.has_atomics ? "atomics" : "no atomics")
            << '\n';
    }
    for (port const& p : d.ports) {
        out << "  port " << p.number << "   " << p.state << ", " << p.link_layer << ", " << p.rate;
        if (p.mtu > 0) out << ", MTU " << p.mtu;
        out << '\n';
        for (ranked_gid const& r : ranked(p)) {
            out << "    " << r.address.address << " (gid " << r.address.index
                << (r.address.netdev.empty() ? "" : ", " + r.address.netdev) << ")\n      "
                << r.reason << '\n';
        }
    }
}

// A name may contain terminal control sequences.
std::string printable(std::string all) {
    std::ranges::replace_if(
        all, [](unsigned char c) { return c != '\n' && (c < 0x20 || c == 0x7f); }, '?'
    );
    return all;
}

void write_peer(std::ostream& out, peer_result const& p) {
    out << "peer       " << p.address << ", port " << p.port;
    if (!p.local_address.empty()) out << ", from " << p.local_address;
    if (p.path_mtu > 0) {
        out << ": path MTU " << p.path_mtu << "; packets of up to " << p.written_bytes
            << " bytes arrived there, of up to " << p.read_bytes << " bytes here";
    }
    if (!p.works()) out << "; then: " << p.failure;
    out << '\n';
}

ordered_json to_json(peer_result const& p) {
    return {
        {"address", p.address},
        {"port", p.port},
        {"local_address", p.local_address},
        {"path_mtu", p.path_mtu},
        {"written_bytes", p.written_bytes},
        {"read_bytes", p.read_bytes},
        {"failure", p.failure}};
}

ordered_json to_json(device_file const& f) {
    return {{"path", f.path}, {"exists", f.is_there}, {"may_be_opened", f.may_be_opened}};
}

ordered_json to_json(rcverbs::device_limits const& l) {
    return {
        {"queue_depth_max", l.queue_depth_max},
        {"completion_queue_depth_max", l.completion_queue_depth_max},
        {"segments_max", l.segments_max},
        {"initiator_depth_max", l.initiator_depth_max},
        {"responder_resources_max", l.responder_resources_max},
        {"region_bytes_max", l.region_bytes_max},
        {"message_bytes_max", l.message_bytes_max},
        {"has_atomics", l.has_atomics},
        {"has_send_with_invalidate", l.has_send_with_invalidate},
        {"shared_receive_depth_max", l.shared_receive_depth_max},
    };
}

ordered_json to_json(port const& p) {
    ordered_json gids = ordered_json::array();
    for (ranked_gid const& r : ranked(p)) {
        gids.push_back(
            {{"index", r.address.index},
             {"address", r.address.address},
             {"kind", r.address.kind},
             {"netdev", r.address.netdev},
             {"reason", r.reason}}
        );
    }
    return {
        {"number", p.number},
        {"state", p.state},
        {"link_layer", p.link_layer},
        {"rate", p.rate},
        {"mtu", p.mtu},
        {"gids", gids}};
}

ordered_json to_json(rdma_device const& d) {
    ordered_json out{{"name", d.name}, {"file", to_json(d.file)}};
    out["limits"] = d.limits ? to_json(*d.limits) : ordered_json{};
    out["ports"] = ordered_json::array();
    for (port const& p : d.ports) out["ports"].push_back(to_json(p));
    return out;
}

void write_machine(std::ostream& out, machine const& m) {
    out << "kernel     " << m.kernel << (m.is_container ? ", in a container" : "")
        << "\nmodules    ";
    for (module const& one : m.modules)
        out << (&one == m.modules.data() ? "" : ", ") << one.name << ' ' << name(one.is);
    out << "\nfile       " << m.connection_manager.path << ' ' << state(m.connection_manager)
        << "\nmemory     may be registered " << locked_memory(m) << "\ninterfaces ";
    for (netdev const& n : m.netdevs) {
        out << (&n == m.netdevs.data() ? "" : ", ") << n.name
            << (!n.is_up     ? " down"
                : n.has_link ? " up"
                             : " up without link")
            << (n.addresses.empty() ? "" : " " + n.addresses.front());
    }
    out << '\n';
    if (!m.firewall) out << "firewall   not known: its rules are read with root's rights and nft\n";
    for (rdma_device const& d : m.devices) write_device(out, d);
    out << '\n';
}

}  // namespace

std::string text(examination const& e) {
    machine const& m = e.seen;
    std::ostringstream out;
    if (m.fabric_address.empty()) write_machine(out, m);
    else
        out << "devices    exist in memory: this is a node of rcverbs-fabric, with the address "
            << m.fabric_address
            << "\n           without rcverbs-fabric, rdma-doctor examines the machine\n\n";
    for (self_test_result const& t : e.tests) {
        out << "self-test at " << t.address << ": " << (t.done.empty() ? "nothing" : joined(t.done))
            << " succeeded";
        if (!t.left_out.empty()) out << "; the device has no " << joined(t.left_out);
        if (!t.works()) out << "; then: " << t.failure;
        out << '\n';
    }
    if (e.peer) write_peer(out, *e.peer);
    for (finding const& f : e.found) {
        out << (f.prevents ? "missing: " : "remark: ") << f.what << '\n';
        if (!f.command.empty()) out << "    " << f.command << '\n';
    }
    if (e.peer) {
        out << "RDMA " << (e.works() ? "works" : "does not work") << " between this machine and "
            << e.peer->address << ".\n";
        return printable(out.str());
    }
    if (e.works()) {
        out << "RDMA works " << (m.fabric_address.empty() ? "on this machine" : "in this node")
            << ".\n";
    } else if (e.works_locally()) {
        out << "RDMA works within this machine only: its firewall drops the packets of other "
               "machines at "
            << e.tests.back().address << ".\n";
    } else {
        out << "RDMA does not work on this machine.\n";
    }
    return printable(out.str());
}

std::string json(examination const& e) {
    machine const& m = e.seen;
    ordered_json out{
        {"works", e.works()},
        {"works_locally", e.works_locally()},
        {"kernel", m.kernel},
        {"fabric_address", m.fabric_address},
        {"is_container", m.is_container},
        {"may_lock_all", m.may_lock_all},
        {"firewall_is_known", m.firewall.has_value()}};
    out["memory_lock_bytes"] =
        m.memory_lock_bytes == unlimited ? ordered_json{} : ordered_json(m.memory_lock_bytes);
    for (module const& one : m.modules) out["modules"][one.name] = name(one.is);
    out["connection_manager"] = to_json(m.connection_manager);
    out["devices"] = ordered_json::array();
    for (rdma_device const& d : m.devices) out["devices"].push_back(to_json(d));
    out["netdevs"] = ordered_json::array();
    for (netdev const& n : m.netdevs) {
        out["netdevs"].push_back(
            {{"name", n.name},
             {"is_up", n.is_up},
             {"has_link", n.has_link},
             {"is_ethernet", n.is_ethernet},
             {"addresses", n.addresses}}
        );
    }
    out["self_tests"] = ordered_json::array();
    for (self_test_result const& t : e.tests) {
        out["self_tests"].push_back(
            {{"address", t.address},
             {"done", t.done},
             {"left_out", t.left_out},
             {"failure", t.failure}}
        );
    }
    if (e.peer) out["peer"] = to_json(*e.peer);
    out["findings"] = ordered_json::array();
    for (finding const& f : e.found)
        out["findings"].push_back(
            {{"prevents", f.prevents}, {"what", f.what}, {"command", f.command}}
        );
    // Names need not be valid UTF-8: the kernel does not check them.
    return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace rdma_doctor
