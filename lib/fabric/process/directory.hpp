// directory.hpp — a network as a directory of the user: its nodes, their processes and ports, as locked files.
//
// A node is what a host is: it has addresses, and its processes share its devices and ports. The lock
// of a file is what counts, never its existence: the kernel releases it whatever ends the process.
//
//     N           shared lock of all processes of node N; contains "remote" if they are on another machine
//     N.S.lock    exclusive lock of the process in slot S of node N; contains its process number, its generation and its faults; with "remote", the bridge that stands for it
//     N.S         its socket
//     bridge.lock exclusive lock of the bridge of a network that has joined that of another machine
//     bridge      its socket, which gives numbers of nodes: see apps/rcverbs-fabric/bridge.hpp
//     stepper.lock exclusive lock of the stepper of a network that goes on step by step; contains its seed
//     stepper     its socket: see apps/rcverbs-fabric/stepper.hpp
//     N.port-P    exclusive lock of the process that is bound to port P; contains its slot, and "listening" once it listens
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rcverbs::fabric::detail {

/// A descriptor that is closed with its object.
class descriptor {
public:
    descriptor() = default;
    explicit descriptor(int fd) noexcept : fd_{fd} {}
    descriptor(descriptor&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
    descriptor& operator=(descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~descriptor();

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }

private:
    int fd_ = -1;
};

/// A socket that listens at a path, where another one may have been; none if that fails.
descriptor listen_at(std::string const& path);
/// A connection to the socket at a path, not blocking; none if nobody listens there.
descriptor connect_to(std::string const& path);

/// The addresses of device `device` of a node: 10.77.D.N and fd77::D:N.
std::vector<std::string> addresses_of(std::uint32_t node, std::uint32_t device);

inline constexpr std::uint32_t nodes_max = 254;
inline constexpr std::uint32_t slots_max = 255;

/// True if a network may have this name: a file name of at most 32 bytes, not hidden.
bool is_network_name(std::string const& name);

class directory {
public:
    /// The directory of the network with this name, created with mode 0700. Throws
    /// std::runtime_error if the name is no file name, or if others may write there.
    static directory of_network(std::string const& name);
    /// The same of one that is there; creates nothing.
    static std::optional<directory> find_network(std::string const& name);
    /// Throws std::runtime_error if others may write there.
    explicit directory(std::string path);

    std::string const& path() const noexcept { return path_; }

    struct member {
        std::uint32_t number = 0;
        descriptor lock;
        /// Of a slot: tells its process from others that have had the slot; 24 bits, not 0.
        std::uint32_t generation = 0;
    };
    /// A node that no process has, on another machine of the network neither. The lock holds it for processes that inherit it. Throws
    /// std::runtime_error if there is none.
    member take_node() const;
    /// The same of a network that was joined: none if it was not, or if its bridge ends.
    std::optional<member> take_given_node() const;
    /// Holds a node for this process; no lock if that fails.
    descriptor join_node(std::uint32_t node) const;
    /// Holds a node, also for processes that inherit the lock. Throws std::runtime_error if it is on another
    /// machine, or if another machine gives the numbers and the node is not in use.
    descriptor hold_node(std::uint32_t node) const;
    /// Holds a node of another machine; no lock if that fails.
    descriptor hold_remote_node(std::uint32_t node) const;
    /// The lock of a bridge that gives the numbers of nodes; none if there is one already.
    descriptor take_bridge() const;
    /// True if another machine gives the numbers of nodes.
    bool has_bridge() const;
    /// The lock of a stepper with this seed; none if there is one already.
    descriptor take_stepper(std::uint64_t seed) const;
    /// The seed of the network's stepper; none if it has no stepper.
    std::optional<std::uint64_t> stepper_seed() const;
    /// A slot of the node for this process. Throws std::runtime_error if there is none.
    member take_slot(std::uint32_t node) const;
    /// A slot of a node for a process of another machine; no lock if that fails.
    descriptor take_remote_slot(std::uint32_t node, std::uint32_t slot) const;
    /// No lock if another process listens there.
    descriptor take_port(std::uint32_t node, std::uint32_t slot, std::uint16_t port) const;
    /// Marks a port that was taken: its process listens there.
    void show_port(descriptor const& port, std::uint32_t slot) const noexcept;
    /// The slot of the process that has the port.
    std::optional<std::uint32_t> find_port(std::uint32_t node, std::uint16_t port) const;

    /// Nodes that have processes, and the slots that are taken.
    std::vector<std::uint32_t> nodes() const;
    std::vector<std::uint32_t> slots(std::uint32_t node) const;
    /// The ports at which processes of the node listen.
    std::vector<std::uint32_t> ports(std::uint32_t node) const;
    /// The process number in a slot; 0 if it is free, or if the process is on another machine.
    pid_t process_of(std::uint32_t node, std::uint32_t slot) const;
    /// The faults of the process in a slot, as show_faults() got them; empty if it is free, or on another machine.
    std::string faults_of(std::uint32_t node, std::uint32_t slot) const;
    /// Writes down the faults of this process, in words for people: "link down", "loss 0.1".
    void show_faults(member const& slot, std::string const& faults) const noexcept;
    /// The generation of the process in a slot; 0 if it is not known.
    std::uint32_t generation_of(std::uint32_t node, std::uint32_t slot) const;
    /// True if the process in the slot, or the bridge that stands for it, has the other end of a socket.
    bool is_end_of(int socket, std::uint32_t node, std::uint32_t slot) const;

    std::string socket_path(std::uint32_t node, std::uint32_t slot) const;
    std::string bridge_path() const { return path_ + "/bridge"; }
    std::string stepper_path() const { return path_ + "/stepper"; }
    /// REQUIRES: this process has the slot.
    void remove_socket(std::uint32_t node, std::uint32_t slot) const noexcept;

private:
    std::optional<std::uint32_t> ask_bridge() const;
    descriptor hold_given_node(std::uint32_t node) const;
    descriptor open(std::string const& file, int flags) const;
    descriptor open_slot(std::uint32_t node, std::uint32_t slot) const;
    // The numbers in the names of locked files that contain `word`.
    std::vector<std::uint32_t> numbers(
        std::string const& prefix, std::string const& suffix, std::string_view word = {}
    ) const;

    std::string path_;
};

}  // namespace rcverbs::fabric::detail
