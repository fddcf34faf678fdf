// packet.hpp — what travels between two queue pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <infiniband/verbs.h>

namespace rcverbs::fabric::detail {

struct packet {
    enum class kind : std::uint8_t { send, write, read_request, atomic, acknowledge, negative, read_response, atomic_response };
    /// Why a responder refuses.
    enum class refusal : std::uint8_t { sequence, not_ready, invalid_request, remote_access, remote_operation };

    kind what = kind::send;
    std::uint32_t source = 0;
    std::uint32_t target = 0;
    std::uint64_t number = 0;
    // The number after the last one that this request takes: more than one for a read.
    std::uint64_t number_end = 0;
    bool is_first = true;
    bool is_last = true;
    bool wants_acknowledge = true;
    bool is_solicited = false;
    // A message's first packet names the whole of it.
    std::uint64_t message_bytes = 0;
    std::uint64_t offset = 0;
    std::uint64_t remote_address = 0;
    std::uint32_t rkey = 0;
    ibv_wr_opcode opcode = IBV_WR_SEND;
    std::uint32_t immediate = 0;  // as it stands in the request: network byte order, or the key to invalidate
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
    refusal why = refusal::sequence;
    std::uint8_t rnr_timer_code = 0;
    std::vector<std::byte> payload;
};

}  // namespace rcverbs::fabric::detail
