// reservations.hpp — who may write and read a namespace: registrations of hosts, and the reservation of one of them or of
// all. No I/O; not safe from several threads.
//
// Source: NVM Express Base Specification 2.0, 8.19 (Reservations), and the commands in 7.2 to 7.5.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "command.hpp"

namespace rcverbs::nvme::detail {

using host_id = std::array<std::byte, 16>;

enum class reservation_type : std::uint8_t {
    none = 0,
    write_exclusive = 1,
    exclusive_access = 2,
    write_exclusive_registrants_only = 3,
    exclusive_access_registrants_only = 4,
    write_exclusive_all_registrants = 5,
    exclusive_access_all_registrants = 6,
};

/// What a command does with a namespace. Compare reads, flush writes.
enum class access_kind : std::uint8_t { read, write };

/// What a host is told when another one has changed something: the type of the log page.
enum class reservation_notice : std::uint8_t {
    registration_preempted = 1,
    reservation_released = 2,
    reservation_preempted = 3,
};

class reservations {
public:
    /// As many hosts as may be registered.
    static constexpr std::size_t registrants_max = 256;

    struct registrant {
        host_id host{};
        std::uint64_t key = 0;

        friend bool operator==(registrant const&, registrant const&) = default;
    };
    /// What a command has done.
    struct outcome {
        status code = status::success;
        /// Others that are to be told.
        struct told {
            host_id host{};
            reservation_notice what = reservation_notice::registration_preempted;
        };
        std::vector<told> notices;
        /// Hosts that have lost their registration to a preemption.
        std::vector<host_id> preempted;
    };

    /// Executes Register, Acquire or Release.
    ///
    /// @param c         The command; its opcode is one of these.
    /// @param data      Of the host: 16 bytes, for Release 8.
    /// @param can_save  Whether the state may be kept over a restart.
    outcome execute(
        command const& c, host_id const& host, std::span<std::byte const> data, bool can_save
    );
    /// The data of Report, with identifiers of 16 bytes.
    std::vector<std::byte> report() const;

    bool is_reserved() const noexcept { return type_ != reservation_type::none; }
    bool conflicts(host_id const& host, access_kind access) const noexcept;
    /// Whether the state is kept over a restart.
    bool is_kept() const noexcept { return is_kept_; }
    void keep(bool is_it) noexcept { is_kept_ = is_it; }

    /// Everything, as lines of text.
    std::string to_text() const;
    /// Empty if that is no such text.
    static std::optional<reservations> from_text(std::string const& text);

    friend bool operator==(reservations const&, reservations const&) = default;

private:
    registrant* find(host_id const& host) noexcept;
    registrant const* find(host_id const& host) const noexcept;
    bool is_all_registrants() const noexcept;
    bool is_for_registrants() const noexcept;
    bool holds(host_id const& host) const noexcept;
    outcome register_host(command const& c, host_id const& host, std::span<std::byte const> data);
    outcome acquire(command const& c, host_id const& host, std::span<std::byte const> data);
    outcome preempt(host_id const& host, std::uint64_t key, reservation_type type);
    outcome release(command const& c, host_id const& host, std::span<std::byte const> data);
    void remove_registrant(host_id const& host, outcome& o);
    void end_reservation(host_id const& by, outcome& o);
    void remove_others(host_id const& by, std::optional<std::uint64_t> key, outcome& o);

    std::uint32_t generation_ = 0;
    reservation_type type_ = reservation_type::none;
    host_id holder_{};  // of one that not all registrants hold
    std::vector<registrant> registrants_;
    bool is_kept_ = false;
};

}  // namespace rcverbs::nvme::detail
