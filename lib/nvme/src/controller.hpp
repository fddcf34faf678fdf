// controller.hpp — a controller: what a host's admin commands do. No connection, no memory of the
// device: unit tests and the fuzzer drive it with bytes. The functions for I/O queues are safe from any
// thread; everything else belongs to one.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "command.hpp"
#include "host_counters.hpp"
#include "subsystem.hpp"

namespace rcverbs::nvme::detail {

/// What a controller tells its hosts about the target.
struct controller_terms {
    std::uint32_t queue_depth_max = 128;
    std::uint32_t io_queues_max = 16;
    std::uint32_t in_capsule_bytes = 4096;
    std::uint32_t transfer_bytes_max = 1U << 20;
};

/// What a host presented with its Connect command.
struct host_identity {
    std::string nqn;
    std::array<std::byte, 16> id{};
};

/// What a discovery controller lists: one record for each subsystem.
struct discovery_entry {
    std::string nqn;
    std::string address;
    std::uint16_t port = 0;
    bool is_ipv6 = false;
    bool is_discovery = false;
    std::uint16_t port_id = 1;
};

struct discovery_list {
    std::uint64_t generation = 1;  // the number of changes to it
    std::vector<discovery_entry> entries;
};

class controller {
public:
    /// Of one discard (DMRL, DMRSL, DMSL): with 4 KiB blocks 64 MiB. Where the store writes zeros, more
    /// takes longer than hosts wait for an answer (Linux: 30 s).
    static constexpr std::uint8_t discard_ranges_max = 255;
    static constexpr std::uint64_t discard_blocks_max = 16384;
    /// Of one write of zeros (WZSL), as a power of two of pages of 4 KiB: 16 MiB, for the same reason. A
    /// host that asks for more is served all the same.
    static constexpr std::uint8_t write_zeroes_pages_log = 12;

    controller(
        std::uint16_t id,
        std::shared_ptr<subsystem> of,
        host_identity host,
        controller_terms const& terms
    );

    std::uint16_t id() const noexcept { return id_; }
    subsystem& of() const noexcept { return *subsystem_; }
    host_identity const& host() const noexcept { return host_; }
    /// CC.EN and CSTS.RDY: commands are accepted. Any thread.
    bool is_enabled() const noexcept { return is_enabled_; }
    /// The host has asked for a shutdown, which ends when all stores have been flushed: then call
    /// on_shut_down().
    bool is_shutting_down() const noexcept;
    ///
    /// @param is_durable  All stores were flushed; else CSTS.CFS is set, too.
    void on_shut_down(bool is_durable) noexcept;
    /// An I/O queue has come, or has gone.
    void on_queue(bool has_come) noexcept { has_come ? ++io_queues_ : --io_queues_; }
    std::chrono::milliseconds keep_alive() const noexcept { return keep_alive_; }
    /// Grants a time: in units of 100 ms, rounded up.
    void set_keep_alive(std::chrono::milliseconds time) noexcept;
    /// Notes a command that failed, for the error log, which keeps the newest. Any thread.
    void note_error(std::uint16_t queue, command const& c, status why) noexcept;

    /// Executes a command of the admin queue, other than Connect.
    ///
    /// @param c    The command.
    /// @param in   The data of the host, of the size that the command says.
    /// @param out  The memory for data to the host, zeroed, of the size that the command says.
    /// @return The completion; none for an asynchronous event request, which waits.
    std::optional<completion> execute(
        command const& c, std::span<std::byte const> in, std::span<std::byte> out
    );

    /// Namespaces have changed. If the host waits for events, takes one of its requests and returns
    /// it with its completion.
    struct event {
        std::uint16_t command_id;
        completion what;
    };
    std::optional<event> on_namespace_change(std::uint32_t namespace_id);
    /// The same for the states of groups (ANA).
    std::optional<event> on_ana_change();
    /// Another host has changed reservations of a namespace.
    std::optional<event> on_reservation_notice(std::uint32_t namespace_id, reservation_notice what);
    /// The event that a command has made due, if the host waits for one. Ask after each command.
    std::optional<event> take_due_event() { return tell(); }

    /// The disk that a command for I/O is for, and the counters of this host for it, which live as long
    /// as the controller.
    struct io_disk {
        /// Null if there is none with that number, or if it is another one than the host knows under it.
        std::shared_ptr<disk> of;
        /// Null without counters_of.
        host_counters* counters = nullptr;
    };
    /// Any thread.
    io_disk find_for_io(std::uint32_t namespace_id);

    /// A command has arrived from the host. True if give_grace() was called since the one before. Any
    /// thread.
    bool note_life() noexcept;
    /// A command has arrived since forget_life().
    bool has_shown_life() const noexcept { return has_shown_life_; }
    void forget_life() noexcept { has_shown_life_ = false; }
    /// The host was silent for its keep-alive time, and has it once more. False if it has had that.
    bool give_grace() noexcept { return !is_in_grace_.exchange(true); }

    /// The I/O queues that the host may still connect; without it, those of the terms.
    std::function<std::uint32_t()> io_queues_left;
    /// Supplies the discovery log.
    std::function<discovery_list()> discover;
    /// Supplies the counters of this host for a namespace, when it identifies or uses that for the first
    /// time. Any thread.
    std::function<std::shared_ptr<host_counters>(std::uint32_t namespace_id)> counters_of;

private:
    // What a host knows a disk by: with blocks of another size, its requests mean other bytes.
    struct known_disk {
        uuid_bytes uuid;
        std::uint32_t block_bytes;

        explicit known_disk(disk const& d) : uuid{d.uuid}, block_bytes{d.geometry.block_bytes} {}
        friend bool operator==(known_disk const&, known_disk const&) = default;
    };
    struct known_namespace {
        std::optional<known_disk> as;
        // Of the number: those of one disk go on when another one takes it.
        std::shared_ptr<host_counters> counters;
    };

    completion get_property(command const& c) const;
    completion set_property(command const& c);
    completion identify(command const& c, std::span<std::byte> out);
    completion get_log_page(command const& c, std::span<std::byte> out);
    completion get_features(command const& c, std::span<std::byte> out) const;
    completion set_features(command const& c);
    void write_controller(std::span<std::byte> out) const;
    void write_descriptors(disk const& d, std::span<std::byte> out) const;
    std::vector<std::byte> read_log(std::uint8_t page, bool is_short);
    std::vector<std::byte> error_log() const;
    std::vector<std::byte> smart_log() const;
    std::vector<std::byte> effects_log() const;
    std::vector<std::byte> changed_namespaces() const;
    std::vector<std::byte> ana_log(bool has_namespaces) const;
    std::vector<std::byte> discovery_log() const;
    std::vector<std::byte> reservation_log();
    std::optional<event> tell();
    void note_known(disk const& d);
    known_namespace& known(std::uint32_t namespace_id);
    void note_change(std::uint32_t namespace_id);
    std::shared_ptr<disk> visible(std::uint32_t namespace_id) const;
    void write_active_namespaces(std::uint32_t after, std::span<std::byte> out);
    static void write_limits(std::span<std::byte> out);

    std::uint16_t const id_;
    std::shared_ptr<subsystem> const subsystem_;
    host_identity const host_;
    controller_terms const terms_;
    std::uint32_t configuration_ = 0;  // CC
    std::uint32_t state_ = 0;  // CSTS
    std::atomic<bool> is_enabled_{false};
    std::atomic<bool> has_shown_life_{false};
    std::atomic<bool> is_in_grace_{false};
    std::uint32_t async_events_ = 0;  // the feature: events that the host wants
    std::chrono::milliseconds keep_alive_{0};
    std::vector<std::uint16_t> event_requests_;
    std::set<std::uint32_t> changed_;
    // What a host is told of; after an event no further one is sent until the host has read the log.
    struct notice {
        bool is_due = false;
        bool is_masked = false;
    };
    notice namespaces_notice_;
    notice ana_notice_;
    notice reservations_notice_;
    // Of reservations, the oldest first.
    struct reservation_change {
        std::uint32_t namespace_id;
        reservation_notice what;
    };
    std::deque<reservation_change> reservation_changes_;
    std::uint64_t reservation_changes_seen_ = 0;
    // By namespace: the feature, a bit for each notice that the host does not want.
    std::map<std::uint32_t, std::uint32_t> reservation_masks_;
    std::uint32_t io_queues_ = 0;
    // The disks that the host has seen, or uses. When another disk takes the number of one, a host still
    // writes what it has cached of the old one. So the new disk is not shown, and takes no I/O, until
    // the host has read a list without it (then there is no UUID here); and takes I/O only once the
    // host has identified it.
    mutable std::mutex known_mutex_;
    std::map<std::uint32_t, known_namespace> known_;  // guarded by known_mutex_
    // Number of Queues, as granted: submission and completion queues, 0-based.
    std::uint32_t granted_queues_ = 0;
};

}  // namespace rcverbs::nvme::detail
