// target.hpp — a target for NVMe over Fabrics on RDMA: serves block stores to the initiators of
// Linux and other systems.
//
//     nvme::subsystem_options disk{
//         .nqn = "nqn.2026-01.org.example:disk",
//         .namespaces = {{.id = 1, .store = std::make_shared<nvme::memory_store>(1 << 30)}}};
//     nvme::target target{io, {"0.0.0.0", 4420}, {std::move(disk)}};
//
//     # nvme connect --transport rdma --traddr ADDRESS --trsvcid 4420 --nqn NQN
//
// A target listens at one endpoint, with a discovery subsystem and any number of subsystems of
// namespaces. Each queue of a host is one connection. Limits bound the memory that hosts can make
// the target use; see target_options.
//
// Executor. Everything of a target runs on the executor that it is made with, which must run one
// handler at a time: of an io_context that one thread runs, of a poller, or a strand. With
// target_options::io_pollers, I/O queues run there instead. The executor has work until the target
// and its connections are closed: before you destroy its context, call close() and run it until it
// has none. Otherwise stores and their memory may never be freed; and queues may use the context
// after its end, with io_pollers, or when a store completes a request later.
//
// Threads. Any thread may call the functions of a target; construction, moves and destruction need
// the owner.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/endpoint.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/nvme/block_store.hpp>
#include <rcverbs/poller.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs::nvme {

namespace detail {

class target_core;

}  // namespace detail

/// The NQN of the discovery subsystem, which every target has.
inline constexpr char const* discovery_nqn = "nqn.2014-08.org.nvmexpress.discovery";

/// An NQN that names this machine, derived from /etc/machine-id; empty on a machine without one.
RCVERBS_EXPORT std::string machine_nqn();

/// How hosts reach the disks of a group through one target, where several targets are paths to the same disks
/// (asymmetric namespace access, ANA).
enum class ana_state : std::uint8_t {
    /// Hosts prefer this path.
    optimized = 0x1,
    /// Hosts take this path if none is optimized.
    non_optimized = 0x2,
    /// Commands for I/O fail with a status for which hosts take another path, or wait for one.
    inaccessible = 0x3,
    /// The same for ever, as far as this target knows.
    persistent_loss = 0x4,
    /// The same while another state is on its way; hosts wait some seconds for it.
    changing = 0xf,
};

/// A namespace: a disk, as hosts see it.
struct namespace_options {
    /// Its number, 1 to 1024; hosts name the disk nvmeXnID.
    std::uint32_t id = 1;
    /// Where its blocks are.
    std::shared_ptr<block_store> store = {};
    /// True to refuse writes.
    bool is_read_only = false;
    /// The identifier by which hosts recognize the disk (UUID, RFC 4122). Empty for the store's own,
    /// block_store::uuid(). Give it if two targets serve the same bytes, such as a file of a shared
    /// file system: hosts then use both as paths to one disk. Two namespaces of a target have
    /// different ones, unless they are in different subsystems and both have it here.
    std::optional<std::array<std::byte, 16>> uuid = {};
    /// The group of disks that are reached alike: subsystem_options::ana_states. The same in all targets that serve
    /// the disk. 1 to 32.
    std::uint32_t ana_group = 1;
    /// The file in which the reservations of hosts are kept over a restart, with ".lock" and ".new" beside it; it has not
    /// to exist. Without one hosts cannot reserve the disk. Only one target may serve a disk that has reservations: two
    /// would not know of each other's.
    std::string reservation_file = {};
};

/// The secrets of a host for DH-HMAC-CHAP, in the form that `nvme gen-dhchap-key` prints:
/// "DHHC-1:00:…:".
struct host_secrets {
    /// The NQN of the host.
    std::string host;
    /// The secret by which the host authenticates.
    std::string secret;
    /// The secret by which the controller authenticates if the host demands that; empty for none,
    /// and then such a host cannot connect.
    std::string controller_secret = {};

    friend bool operator==(host_secrets const&, host_secrets const&) = default;
};

/// A subsystem: namespaces that hosts connect to together.
struct subsystem_options {
    /// Its name: "nqn." and at most 223 characters in all.
    std::string nqn;
    /// Its namespaces, with different numbers.
    std::vector<namespace_options> namespaces = {};
    /// NQNs of the hosts that may connect; empty for all.
    std::vector<std::string> allowed_hosts = {};
    /// Secrets of hosts. If there are any, every host must authenticate with its own on each
    /// queue; others are refused. The data itself is neither encrypted nor signed.
    std::vector<host_secrets> secrets = {};
    /// The serial number, at most 20 ASCII characters. Empty for one derived from the NQN and
    /// /etc/machine-id.
    std::string serial_number = {};
    /// The model, at most 40 ASCII characters.
    std::string model = "rcverbs";
    /// How hosts reach the disks of a group here, by the group's number; ana_state::optimized for those that are not
    /// named.
    std::map<std::uint32_t, ana_state> ana_states = {};
    /// Addresses, with ports, at which other targets serve the subsystem: discovery lists them, too. IPv4 or IPv6; at
    /// most 64.
    std::vector<endpoint> other_addresses = {};
};

/// Limits of a target.
struct target_options {
    /// Commands that a host may have outstanding on one I/O queue. 16 to 128. An admin queue has
    /// 32 or more.
    std::uint32_t queue_depth_max = 128;
    /// I/O queues of a controller; a host may connect several controllers. 1 to 64.
    std::uint32_t io_queues_max = 16;
    /// Bytes that a host may send inside a command capsule of an I/O queue, which saves small
    /// writes a round trip. 0 to 16384, a multiple of 16.
    std::uint32_t in_capsule_bytes = 4096;
    /// The largest transfer of a command, in bytes: a power of two, 8192 to 1 MiB.
    std::uint32_t transfer_bytes_max = 1U << 20;
    /// Registered memory per device for data on its way between hosts and stores, in bytes. Each
    /// queue has 64 KiB of its own, when it needs them; the rest is common, and a host may use half
    /// of it. When common memory is short, a command goes through its queue's own, in pieces if it
    /// is longer; a long one of the admin queue, which cannot be cut, ends with a status for which
    /// hosts try again. Two transfers of transfer_bytes_max, and 64 KiB, to 64 GiB. Stores with memory()
    /// of their own do not use it for data.
    std::size_t staging_bytes_max = std::size_t{64} << 20;
    /// Connections at a time, that is queues of all hosts together; three quarters of them for one
    /// address, or as many as one controller needs if that is more. One more is rejected, unless
    /// there is a queue whose host has proved nothing: of discovery, or before its authentication.
    /// The oldest of these ends for it. 1 to 4096, and at most as many as have 64 KiB each of
    /// staging_bytes_max beside two transfers.
    std::size_t connections_max = 256;
    /// How long a host may take for one transfer of data or a completion that was posted to it; then
    /// its queue ends. 8 ms or more.
    std::chrono::milliseconds transfer_timeout{10'000};
    /// The numbers of controllers. Give the targets that are paths to one disk, with one NQN,
    /// numbers that differ: a host refuses a number that it has. When all are in use, a controller
    /// of discovery, or of a host that has not authenticated, ends for a new one. 1 to 65519.
    std::uint16_t controller_id_min = 1;
    /// See controller_id_min.
    std::uint16_t controller_id_max = 65519;
    /// How long a new connection may take until its Connect command, and its host's authentication
    /// where secrets are required; then it ends. Above 0.
    std::chrono::milliseconds connect_timeout{10'000};
    /// The keep-alive timeout for hosts that ask for none, rounded up to 100 ms. A host without a
    /// command for that long has the same time again while its queue pair answers; then it is
    /// disconnected, and its resources are freed. Above 0; empty for no limit.
    std::optional<std::chrono::milliseconds> keep_alive_default =
        std::chrono::milliseconds{120'000};
    /// Where I/O queues run: each new one on the poller that has the fewest. Empty for the target's
    /// executor. Each must run one handler at a time. With more than one, stores get requests on
    /// several threads at a time. Each has staging memory, and a registration of each store's
    /// memory(), of its own: staging_bytes_max counts for each.
    std::vector<poller> io_pollers = {};
    /// Called on the target's executor for events that concern an operator: a host connects, leaves
    /// or is refused. The message names the host and its subsystem, as far as they are known, in
    /// printable ASCII. Hosts cause these events, so at most 100 that concern hosts and 10 refusals
    /// are reported in 10 s; the next one follows a message with the number of the others. Must
    /// neither throw nor block: all hosts wait meanwhile.
    std::function<void(std::string const& message)> on_event = {};
    /// How long a command may be unanswered on this side until on_fault reports it: while its store has the
    /// request, or while it waits for memory or for its turn. Above 0.
    std::chrono::milliseconds command_report_age{10'000};
    /// Called on the target's executor for faults on this side that an operator must repair, such as
    /// a store that fails: once for each operation and error of a namespace. Also when a queue has commands
    /// as old as command_report_age: once until it has none, and at most 10 times in 10 s. Must not throw.
    std::function<void(std::string const& message)> on_fault = {};
};

/// The most memory that such a target registers, in bytes, for each device over which hosts connect:
/// with hosts on all of its queues, staging memory in use, and data in every store with memory(). Memory
/// of the device's driver, for its queues, comes on top.
///
/// A program compares it with RLIMIT_MEMLOCK before it serves anybody: later, hosts would find that
/// their commands fail.
///
/// @throws boost::system::system_error: errc::invalid_option, as target's constructor.
RCVERBS_EXPORT std::uint64_t registered_bytes_max(
    std::vector<subsystem_options> const& subsystems, target_options const& options = {}
);

/// Numbers of commands, by what they wait for.
struct commands_by_state {
    /// For memory for their data: others of their host, or of their queue, have it.
    std::uint64_t waiting_for_memory = 0;
    /// For their data to arrive from the host.
    std::uint64_t receiving_data = 0;
    /// For their store.
    std::uint64_t in_store = 0;
    /// For their turn on a thread of the target.
    std::uint64_t executing = 0;
    /// For the host to take a piece of their data.
    std::uint64_t sending_data = 0;
    /// For the host to take their response, and the data in front of it.
    std::uint64_t answering = 0;
};

/// Counters of a target; a snapshot.
struct target_statistics {
    /// Controllers at this moment: associations with hosts, without discovery.
    std::uint64_t controllers = 0;
    /// Queues at this moment, of discovery, too.
    std::uint64_t queues = 0;
    /// Controllers made so far, without discovery.
    std::uint64_t controllers_made = 0;
    /// Connections, or Connect commands, that were refused.
    std::uint64_t refused = 0;
    /// Controllers that ended because their host sent nothing until the keep-alive timeout.
    std::uint64_t keep_alive_expired = 0;
    /// Reads that succeeded.
    std::uint64_t reads = 0;
    /// Bytes of them.
    std::uint64_t read_bytes = 0;
    /// Writes that succeeded.
    std::uint64_t writes = 0;
    /// Bytes of them.
    std::uint64_t written_bytes = 0;
    /// Other I/O commands that succeeded: flush, write zeroes, discard, compare.
    std::uint64_t other_commands = 0;
    /// Commands that ended with an error status.
    std::uint64_t failed_commands = 0;
    /// Requests that a store failed.
    std::uint64_t store_failures = 0;
    /// Queues that ended because of target_options::transfer_timeout.
    std::uint64_t transfers_stalled = 0;
    /// Commands at this moment that are not answered: at a store, on their way, or waiting for an
    /// event. Those of a queue that has ended count until their stores have completed them.
    std::uint64_t commands = 0;
    /// Those that arrived more than a second ago, without requests for events; looked for once a second, or
    /// more often with a transfer_timeout below 8 s. A command of a queue that has ended keeps its state here.
    commands_by_state old_commands = {};
};

/// Counters of the I/O commands of one host to one namespace; a snapshot. A flush of all namespaces is counted
/// in target_statistics only, and so is a command to a namespace that does not exist.
struct host_statistics {
    /// NQN of the subsystem.
    std::string subsystem;
    /// Number of the namespace.
    std::uint32_t namespace_id = 0;
    /// NQN of the host, which the host has chosen: any bytes. Empty for the sum of the other hosts of the
    /// namespace: at most 1024 pairs of a host and a namespace have counters of their own. When all are in
    /// use, a new pair replaces one whose host is not connected, or is counted in the sum.
    std::string host;
    /// Reads that succeeded.
    std::uint64_t reads = 0;
    /// Bytes of them.
    std::uint64_t read_bytes = 0;
    /// The sum of their times, each from its arrival until its answer is ready to be sent.
    std::chrono::nanoseconds read_time{0};
    /// Writes that succeeded.
    std::uint64_t writes = 0;
    /// Bytes of them.
    std::uint64_t written_bytes = 0;
    /// The sum of their times, with the transfers from the host.
    std::chrono::nanoseconds write_time{0};
    /// Other commands that succeeded: flush, write zeroes, discard, compare.
    std::uint64_t other_commands = 0;
    /// The sum of their times.
    std::chrono::nanoseconds other_time{0};
    /// Requests that the store has completed, also with errors. A command causes none, one or several; one to
    /// a store with memory() causes none unless it needs a flush.
    std::uint64_t store_requests = 0;
    /// The sum of their times in the store.
    std::chrono::nanoseconds store_time{0};
    /// Commands that ended because of a mistake of the host: fields, lengths, opcodes.
    std::uint64_t invalid_commands = 0;
    /// Commands for blocks beyond the end, or for which the store has no space.
    std::uint64_t out_of_range = 0;
    /// Writes to a namespace that is read-only.
    std::uint64_t write_protected = 0;
    /// Commands that the store failed for good.
    std::uint64_t media_errors = 0;
    /// Compares whose data differ.
    std::uint64_t compares_that_differ = 0;
    /// Commands that the host was asked to repeat, here or on another path.
    std::uint64_t transient_errors = 0;
    /// As target_statistics::old_commands.
    commands_by_state old_commands = {};
};

/// A target at one endpoint. Closes when it is destroyed.
class RCVERBS_EXPORT target {
public:
    /// Listens.
    ///
    /// @param where       The executor, or the thread, that runs it.
    /// @param local       The address to listen at, and the port; 4420 is usual, 0 picks a free
    ///                    one.
    /// @param subsystems  The subsystems to serve.
    /// @param options     Limits.
    /// @throws boost::system::system_error: errc::invalid_option (options, names, namespaces, UUIDs),
    ///         errno (EADDRINUSE, EADDRNOTAVAIL, ENODEV …).
    target(
        runs_on<boost::asio::any_io_executor> where,
        endpoint const& local,
        std::vector<subsystem_options> subsystems,
        target_options options = {}
    );
    target(target&&) noexcept = default;
    target& operator=(target&& other) noexcept;
    ~target();

    /// Where it listens.
    endpoint local_endpoint() const;
    /// The counters.
    target_statistics statistics() const;
    /// The counters of each host and namespace: of those that the host has identified or used since the
    /// target was made.
    std::vector<host_statistics> statistics_by_host() const;

    /// Serves these subsystems from now on, instead of those before; if it throws, nothing has
    /// changed. A subsystem is kept if its NQN is, and a disk of it if its number, its store and its
    /// UUID are. Hosts receive an event for each namespace that comes, goes or changes, and for a
    /// changed list of subsystems. Hosts of a subsystem that is gone, or that may not use it any
    /// more, are disconnected; a new secret counts from the next connection on.
    ///
    /// @throws boost::system::system_error: errc::invalid_option, as the constructor.
    void serve(std::vector<subsystem_options> subsystems);
    /// Adds a namespace to a subsystem; connected hosts receive an event.
    ///
    /// @throws boost::system::system_error: errc::invalid_option (unknown subsystem, number or UUID in
    ///         use, geometry).
    void add_namespace(std::string const& nqn, namespace_options what);
    /// Removes a namespace; connected hosts receive an event. Commands in progress finish, later
    /// ones fail.
    ///
    /// @throws boost::system::system_error: errc::invalid_option (unknown).
    void remove_namespace(std::string const& nqn, std::uint32_t id);
    /// Reads the geometry of a namespace's store again; connected hosts receive an event.
    ///
    /// @throws as above.
    void namespace_changed(std::string const& nqn, std::uint32_t id);
    /// Changes how hosts reach the disks of a group through this target; connected hosts receive an event. Commands
    /// in progress finish.
    ///
    /// @throws boost::system::system_error: errc::invalid_option (unknown subsystem, number of a group).
    void set_ana_state(std::string const& nqn, std::uint32_t group, ana_state now);

    /// Stops listening and disconnects all hosts. Returns at once; the executor runs out of work
    /// when the last connection has ended.
    void close() noexcept;

private:
    std::shared_ptr<detail::target_core> core_;
};

}  // namespace rcverbs::nvme
