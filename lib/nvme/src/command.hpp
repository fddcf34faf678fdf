// command.hpp — commands and completions of NVMe over Fabrics as bytes, and their status codes.
//
// Everything on the wire is little-endian. Source: NVM Express Base Specification 2.0, chapters 3.3
// and 4.1; NVMe over RDMA Transport Specification 1.0.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace rcverbs::nvme::detail {

inline constexpr std::size_t command_bytes = 64;
inline constexpr std::size_t completion_bytes = 16;
inline constexpr std::size_t identify_bytes = 4096;

/// Status code type << 8 | status code.
enum class status : std::uint16_t {
    success = 0x000,
    invalid_opcode = 0x001,
    invalid_field = 0x002,
    internal_error = 0x006,
    aborted = 0x007,
    invalid_namespace = 0x00b,
    command_sequence = 0x00c,
    invalid_sgl_descriptor = 0x00d,
    sgl_data_length_invalid = 0x00f,
    sgl_type_invalid = 0x011,
    sgl_offset_invalid = 0x016,
    host_id_inconsistent = 0x018,
    keep_alive_invalid = 0x01b,
    write_protected = 0x020,
    lba_range = 0x080,
    capacity_exceeded = 0x081,
    reservation_conflict = 0x083,
    invalid_log_page = 0x109,
    feature_not_saveable = 0x10d,
    feature_not_changeable = 0x10e,
    aer_limit_exceeded = 0x105,
    connect_format = 0x180,
    connect_busy = 0x181,
    connect_invalid_parameter = 0x182,
    connect_invalid_host = 0x184,
    authentication_required = 0x191,
    write_fault = 0x280,
    read_error = 0x281,
    compare_failed = 0x285,
    path_error = 0x300,
    ana_persistent_loss = 0x301,
    ana_inaccessible = 0x302,
    ana_transition = 0x303,
};

namespace opcode {
// Admin.
inline constexpr std::uint8_t get_log_page = 0x02;
inline constexpr std::uint8_t identify = 0x06;
inline constexpr std::uint8_t abort = 0x08;
inline constexpr std::uint8_t set_features = 0x09;
inline constexpr std::uint8_t get_features = 0x0a;
inline constexpr std::uint8_t async_event = 0x0c;
inline constexpr std::uint8_t keep_alive = 0x18;
inline constexpr std::uint8_t fabrics = 0x7f;
// I/O.
inline constexpr std::uint8_t flush = 0x00;
inline constexpr std::uint8_t write = 0x01;
inline constexpr std::uint8_t read = 0x02;
inline constexpr std::uint8_t compare = 0x05;
inline constexpr std::uint8_t write_zeroes = 0x08;
inline constexpr std::uint8_t dataset_management = 0x09;
inline constexpr std::uint8_t reservation_register = 0x0d;
inline constexpr std::uint8_t reservation_report = 0x0e;
inline constexpr std::uint8_t reservation_acquire = 0x11;
inline constexpr std::uint8_t reservation_release = 0x15;
}  // namespace opcode

namespace fabrics_type {
inline constexpr std::uint8_t property_set = 0x00;
inline constexpr std::uint8_t connect = 0x01;
inline constexpr std::uint8_t property_get = 0x04;
inline constexpr std::uint8_t authentication_send = 0x05;
inline constexpr std::uint8_t authentication_receive = 0x06;
}  // namespace fabrics_type

// g++ 12 makes one instruction of a memcpy, and a dozen of a loop over the bytes.
template <class Integer>
Integer load(std::span<std::byte const> from, std::size_t at) noexcept {
    Integer value = 0;
    if constexpr (std::endian::native == std::endian::little) {
        std::memcpy(&value, from.subspan(at, sizeof value).data(), sizeof value);
    } else {
        for (std::size_t i = 0; i < sizeof value; ++i)
            value |= static_cast<Integer>(static_cast<Integer>(from[at + i]) << (8 * i));
    }
    return value;
}

template <class Integer>
void store(std::span<std::byte> to, std::size_t at, Integer value) noexcept {
    if constexpr (std::endian::native == std::endian::little) {
        std::memcpy(to.subspan(at, sizeof value).data(), &value, sizeof value);
    } else {
        for (std::size_t i = 0; i < sizeof value; ++i)
            to[at + i] = static_cast<std::byte>(value >> (8 * i));
    }
}

/// Where a command's data is, or goes.
struct data_pointer {
    enum class place { none, in_capsule, keyed, unknown };

    place where = place::none;
    std::uint64_t address = 0;  // the host's; in the capsule: the offset of the data
    std::uint32_t size_bytes = 0;
    std::uint32_t key = 0;
    bool is_invalidated = false;  // the response invalidates the key
};

/// The one form of the data pointer in a capsule: an SGL, and metadata in one buffer.
inline constexpr std::uint8_t psdt_sgl = 1;

/// A command of 64 bytes.
struct command {
    std::uint8_t code = 0;
    std::uint8_t fuse = 0;  // 0: not fused
    std::uint8_t psdt = psdt_sgl;  // whether the data pointer is PRPs or an SGL
    std::uint8_t fabrics = 0;  // the type of a fabrics command
    std::uint16_t id = 0;
    std::uint32_t namespace_id = 0;
    data_pointer data;
    std::array<std::uint32_t, 6> dword{};  // command dwords 10 to 15

    /// @param bytes  REQUIRES: command_bytes at least.
    static command decode(std::span<std::byte const> bytes) noexcept;

    std::uint64_t first_block() const noexcept { return dword[0] | std::uint64_t{dword[1]} << 32; }
    std::uint32_t blocks() const noexcept { return (dword[2] & 0xffff) + 1; }
    bool has_force_unit_access() const noexcept { return (dword[2] >> 30 & 1) != 0; }
    // Fabrics commands have the type where others have the namespace. Source: 6.1.
    std::uint8_t direction() const noexcept {
        return static_cast<std::uint8_t>((code == opcode::fabrics ? fabrics : code) & 3);
    }
    bool sends_data() const noexcept { return direction() == 1; }
    bool takes_data() const noexcept { return direction() == 2; }
};

/// The result of a command.
struct completion {
    std::uint64_t result = 0;
    status code = status::success;
    bool may_retry = false;  // else the host is told not to retry an error

    void encode(
        std::span<std::byte> to, std::uint16_t command_id, std::uint16_t queue, std::uint16_t head
    ) const noexcept;
};

/// The data of a Connect command.
struct connect_data {
    static constexpr std::size_t size_bytes = 1024;

    std::array<std::byte, 16> host_id{};
    std::uint16_t controller_id = 0;
    std::string subsystem;
    std::string host;

    /// @param bytes  REQUIRES: size_bytes.
    static connect_data decode(std::span<std::byte const> bytes);
};

/// The private data of a connection request.
struct connect_private_data {
    static constexpr std::size_t size_bytes = 32;

    std::uint16_t format = 0;
    std::uint16_t queue = 0;
    std::uint16_t host_receive_queue = 0;
    std::uint16_t host_send_queue = 0;  // 0-based

    static connect_private_data decode(std::span<std::byte const> bytes) noexcept;
};

/// Why a connection request is rejected. Source: NVMe over RDMA Transport Specification, 3.2.1.
enum class connect_reject : std::uint16_t {
    length = 1,
    format = 2,
    queue_id = 3,
    send_queue_size = 4,
    receive_queue_size = 5,
    no_resources = 6,
};

}  // namespace rcverbs::nvme::detail
