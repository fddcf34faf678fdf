// packet.hpp — a packet between two queue pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <infiniband/verbs.h>

namespace rcverbs::fabric::detail {

struct packet {
    enum class kind : std::uint8_t {
        send,
        write,
        read_request,
        atomic,
        acknowledge,
        negative,
        read_response,
        atomic_response
    };
    /// The reason of a NAK.
    enum class refusal : std::uint8_t {
        sequence,
        not_ready,
        invalid_request,
        remote_access,
        remote_operation
    };

    kind what = kind::send;
    // The addresses of both devices, and the numbers of both queue pairs.
    ibv_gid from{};
    ibv_gid to{};
    std::uint32_t source = 0;
    std::uint32_t target = 0;
    std::uint64_t number = 0;
    // One past the last number that this request takes: several for a read.
    std::uint64_t number_end = 0;
    bool is_first = true;
    bool is_last = true;
    bool wants_acknowledge = true;
    bool is_solicited = false;
    // The size of the whole message.
    std::uint64_t message_bytes = 0;
    std::uint64_t offset = 0;
    std::uint64_t remote_address = 0;
    std::uint32_t rkey = 0;
    ibv_wr_opcode opcode = IBV_WR_SEND;
    // As in the work request: in network byte order, or the key to invalidate.
    std::uint32_t immediate = 0;
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
    refusal why = refusal::sequence;
    std::uint8_t rnr_timer_code = 0;
    std::vector<std::byte> payload;
};

}  // namespace rcverbs::fabric::detail
