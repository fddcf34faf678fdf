// packet.hpp — a packet between two queue pairs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <infiniband/verbs.h>

namespace rcverbs::fabric::detail {

/// The bytes of a packet: its own, or memory of somebody else that exists until the function has returned
/// to which the packet is passed. Who keeps a packet for longer calls own(). A copy has bytes of its own.
class packet_payload {
public:
    packet_payload() = default;
    explicit packet_payload(std::span<std::byte const> borrowed) : bytes_{borrowed} {}
    packet_payload(packet_payload const& other) { assign(other.bytes_); }
    packet_payload(packet_payload&& other) noexcept
        : owned_{std::move(other.owned_)},
          bytes_{std::exchange(other.bytes_, {})} {}
    packet_payload& operator=(packet_payload const& other) {
        if (this != &other) assign(other.bytes_);
        return *this;
    }
    packet_payload& operator=(packet_payload&& other) noexcept {
        owned_ = std::move(other.owned_);
        bytes_ = std::exchange(other.bytes_, {});
        return *this;
    }
    ~packet_payload() = default;

    std::size_t size() const noexcept { return bytes_.size(); }
    bool empty() const noexcept { return bytes_.empty(); }
    std::byte const* data() const noexcept { return bytes_.data(); }
    // NOLINTNEXTLINE(google-explicit-constructor): it is bytes
    operator std::span<std::byte const>() const noexcept { return bytes_; }
    auto begin() const noexcept { return bytes_.begin(); }
    auto end() const noexcept { return bytes_.end(); }

    void own() {
        if (bytes_.data() != owned_.get()) assign(bytes_);
    }
    /// Bytes of its own, which are to be written now.
    std::span<std::byte> make(std::size_t size) {
        owned_ = std::make_unique_for_overwrite<std::byte[]>(size);
        std::span<std::byte> const all{owned_.get(), size};
        bytes_ = all;
        return all;
    }

private:
    void assign(std::span<std::byte const> from) {
        auto made = std::make_unique_for_overwrite<std::byte[]>(from.size());
        // std::ranges::copy() of g++ 12 copies byte by byte.
        std::copy(from.begin(), from.end(), made.get());
        owned_ = std::move(made);
        bytes_ = {owned_.get(), from.size()};
    }

    std::unique_ptr<std::byte[]> owned_;
    std::span<std::byte const> bytes_;
};

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
    packet_payload payload;
};

}  // namespace rcverbs::fabric::detail
