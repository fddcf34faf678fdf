// ring_core.hpp — the two sides of a ring: connecting, and what is posted.
//
// Everything here runs inside the driver, except where it says otherwise. What may be
// written, and what is against the rules, is the business of machines/ring_machine.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/batch.hpp>
#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/ring.hpp>
#include <rcverbs/op.hpp>
#include <rcverbs/registered_buffer.hpp>

#include "machines/ring_machine.hpp"
#include "wire/ring_message.hpp"

namespace rcverbs::detail {

/// The largest ring_options::records.
inline constexpr std::uint32_t ring_records_max = 65536;

/// The first option out of its range; empty if there is none.
std::string problem_of(ring_options const& options);

/// What both sides do: hello, connecting, the end.
class ring_core : public protocol::handshake {
public:
    using actor::enter;

protected:
    ring_core(connection over, wire::ring_role role, authentication_options const& how)
        : handshake{std::move(over)},
          role_{role} {
        authenticate(how);
    }

    virtual wire::ring_hello own_hello() const = 0;
    /// The peer's hello is right: data may flow. An error if it says what cannot be.
    virtual error_code begin(wire::ring_hello const& theirs) = 0;
    /// It is open.
    virtual void on_open() {}

    void violated(channel_errc why);
    error_code check_device();

    bool is_open_ = false;
    std::atomic<std::uint32_t> records_{0};
    std::atomic<std::uint64_t> used_bytes_{0};
    std::atomic<std::uint32_t> waits_{0};

private:
    std::vector<std::byte> hello(error_code refused) const override;
    error_code judge(std::span<std::byte const> theirs) override;
    error_code reason(std::span<std::byte const> theirs) const override;
    error_code on_established() override;
    error_code problem_of(wire::ring_hello const& theirs) const noexcept;

    wire::ring_role const role_;
};

class ring_writer_core final : public ring_core {
public:
    ring_writer_core(connection over, ring_options const& options);
    ~ring_writer_core() override;

    // Messages with counts that may be under way. A count covers a quarter of the bytes or of the
    // receives that the writer does not know of yet, or answers the one request for room, or is the
    // last: at most ten.
    static constexpr std::uint32_t counts_max = 16;

    // Any thread.
    std::size_t record_bytes_max() const noexcept { return record_bytes_max_; }
    ring_statistics statistics() const noexcept { return {records_, used_bytes_, waits_}; }

    // Inside.
    void write(std::span<std::byte const> record, protocol::waiter<error_code> who);
    void finish(protocol::waiter<error_code> who);

private:
    struct pending {
        std::uint64_t number;  // in writes_
        std::span<std::byte const> record;
    };

    // Writes that are posted with one doorbell.
    struct round {
        explicit round(batch b) : list{std::move(b)} {}

        batch list;
        std::optional<op::write_t> last;
        bool is_free = true;
    };
    static constexpr std::size_t rounds_max = 4;
    static constexpr std::size_t round_records = 16;

    error_code prepare() override;
    wire::ring_hello own_hello() const override { return {}; }
    error_code begin(wire::ring_hello const& theirs) override;
    void on_end(failure const& why) override;

    void receive(std::size_t slot);
    void on_counts(std::size_t slot, receive_result const& got, std::span<std::byte const> bytes);
    void pump();
    void place(
        machines::ring_writer_machine::place const& where, std::span<std::byte const> record
    );
    void notify(machines::ring_notice what);
    void post(const_slice const& from, remote_region const& to, std::uint32_t immediate);
    void flush();
    void publish() noexcept;
    void await_release();

    std::uint32_t const ring_bytes_max_;
    std::optional<std::chrono::milliseconds> const finish_timeout_;
    machines::ring_writer_machine machine_;
    registered_buffer mirror_;  // what is under way, at its place in the ring
    protocol::slots counts_{*this};
    remote_region ring_;
    std::deque<pending> pending_;
    std::vector<round> rounds_;
    std::size_t filling_ = 0;
    bool is_round_ = false;  // records wait for those that are written with them
    bool is_blocked_ = false;  // no list is free
    bool is_finishing_ = false;
    bool has_said_end_ = false;
    std::atomic<std::size_t> record_bytes_max_{0};
    protocol::wait_list<error_code> writes_{*this, [this] { pump(); }};
    protocol::wait_list<error_code> finishes_{*this};
    protocol::deadline release_limit_{*this};
};

class ring_reader_core final : public ring_core {
public:
    ring_reader_core(connection over, ring_options const& options)
        : ring_core{std::move(over), wire::ring_role::reader, options.authentication},
          machine_{{options.ring_bytes, options.records}} {}
    ~ring_reader_core() override;

    // Any thread.
    ring_statistics statistics() const noexcept { return {records_, used_bytes_, waits_}; }

    // Inside.
    void read(protocol::waiter<error_code, ring_record> who);
    void release(std::uint64_t number, std::uint32_t lent);
    /// Closes, but not before the writer knows that everything was released.
    void leave_ring();

private:
    static constexpr std::uint32_t counts_max = ring_writer_core::counts_max;

    // A record from its arrival until it is released.
    struct arrived {
        std::span<std::byte const> bytes;
        std::uint64_t end;
        std::uint32_t lent = 0;  // to whom: 1, 2 …
        bool is_released = false;
    };

    error_code prepare() override;
    wire::ring_hello own_hello() const override;
    error_code begin(wire::ring_hello const& theirs) override;
    void on_end(failure const& why) override;

    void receive();
    void on_notice(receive_result const& got);
    void on_open() override;
    bool has_next() const noexcept;
    ring_record lend();
    void give();
    void take_back(ring_record r);
    void tell();
    void on_told_last();

    machines::ring_reader_machine machine_;
    registered_buffer memory_;
    protocol::slots counts_{*this};  // under way
    // From `first_` on: those that are not free yet, of which `given_` are the program's, without those
    // that cancelled reads have left.
    std::deque<arrived> records_in_ring_;
    std::uint64_t first_ = 0;
    std::size_t given_ = 0;
    std::set<std::uint64_t> returned_;
    std::uint32_t last_lent_ = 0;
    bool is_telling_last_ = false;
    bool is_leaving_ = false;
    std::optional<error_code> end_;
    protocol::wait_list<error_code, ring_record> reads_{
        *this,
        [this](std::uint64_t, error_code const&, ring_record r) { take_back(std::move(r)); }};
};

}  // namespace rcverbs::detail
