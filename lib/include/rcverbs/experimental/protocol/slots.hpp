// slots.hpp — registered memory for the messages of a protocol, in places of one size. Experimental: it
// may change.
//
//     error_code prepare() override {  // of a handshake
//         error_code const ec = slots_.open(8, 8, sizeof(frame));
//         for (std::size_t i = 0; !ec && i < 8; ++i) receive(i);
//         return ec;
//     }
//     protocol::slots slots_{*this};
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <rcverbs/detail/access.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/experimental/protocol/driver.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/receive_result.hpp>
#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/slice.hpp>

namespace rcverbs::protocol {

/// Registered memory of a driver's: a part for receives, and a part for sends. A member of the driver,
/// used inside. Memory that the device may still use when the driver is destroyed is kept.
class RCVERBS_EXPORT slots final : private part {
public:
    explicit slots(driver& owner);
    ~slots();

    /// Makes the memory, in the domain of the connection.
    ///
    /// @param receives    Number of receives.
    /// @param sends       Number of sends that may be under way.
    /// @param slot_bytes  Bytes of each, at most. Above 0.
    /// @return The errors of registered_buffer.
    error_code open(std::size_t receives, std::size_t sends, std::size_t slot_bytes);
    bool is_open() const noexcept { return all_.size() > 0; }

    /// REQUIRES: i < receives.
    mutable_slice receive_slot(std::size_t i) const noexcept { return slot(i); }
    /// REQUIRES: i < sends.
    mutable_slice send_slot(std::size_t i) const noexcept { return slot(receives_ + i); }

    /// Posts a receive; `on_received(error_code, receive_result const&, std::span<std::byte const>)` runs
    /// inside, with the bytes that have arrived. After an error on_end() follows.
    template <class Function>
    void receive(std::size_t i, Function on_received) {
        owner_.lower().async_receive(
            receive_slot(i),
            owner_.held([this, i, f = std::move(on_received)](
                            error_code ec, receive_result const& what
                        ) mutable {
                bool const has_bytes = !ec && !what.is_write;
                std::span<std::byte const> const all = receive_slot(i).bytes();
                f(ec, what, has_bytes ? all.first(what.size_bytes) : all.first(0));
            })
        );
    }
    /// Sends a copy of the bytes from a slot that is free; `on_sent(error_code)` runs inside, when it is
    /// free again. Not for protocols that use send_slot().
    ///
    /// @return False if no slot is free; then nothing happens.
    template <class Function>
    bool send(std::span<std::byte const> bytes, Function on_sent) {
        if (free_.empty()) return false;
        std::uint32_t const i = free_.back();
        free_.pop_back();
        mutable_slice const place = send_slot(i).first(bytes.size());
        if (!bytes.empty()) std::memcpy(place.data(), bytes.data(), bytes.size());
        owner_.lower().async_send(
            place,
            owner_.held([this, i, f = std::move(on_sent)](error_code ec, std::size_t) mutable {
                free_.push_back(i);
                f(ec);
            })
        );
        return true;
    }
    /// Slots that send() may use.
    std::size_t free_sends() const noexcept { return free_.size(); }

private:
    void abandon() noexcept override {}
    mutable_slice slot(std::size_t i) const noexcept {
        return detail::access::make<mutable_slice>(
            all_.bytes().subspan(i * slot_bytes_, slot_bytes_),
            all_.key(),
            detail::access::mark_of(all_)
        );
    }

    driver& owner_;
    registered_buffer memory_;
    mutable_slice all_;
    std::size_t receives_ = 0;
    std::size_t slot_bytes_ = 0;
    std::vector<std::uint32_t> free_;
};

}  // namespace rcverbs::protocol
