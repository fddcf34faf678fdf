#include "rdma-bench/lane.hpp"

#include <boost/asio/use_awaitable.hpp>

#include <algorithm>

namespace rdma_bench {

namespace asio = boost::asio;
using asio::use_awaitable;
using rcverbs::access_flags;

namespace {

// What all connections together may take for either direction, and one: little enough to stay in a processor's cache, as the
// memory of programs that process what they move does.
constexpr std::size_t memory_bytes_max = std::size_t{256} << 20;
constexpr std::size_t lane_bytes_max = std::size_t{1} << 20;

constexpr std::uint32_t greeting_magic = 0x72766231;  // "rvb1"
// The rights that a peer can grant: remote_write, remote_read, remote_atomic.
constexpr std::uint32_t known_rights = 2 + 4 + 8;

template <class Integer>
void put(std::span<std::byte> out, std::size_t at, Integer value) noexcept {
    for (std::size_t i = sizeof value; i-- > 0; value = static_cast<Integer>(value >> 8)) {
        out[at + i] = static_cast<std::byte>(value & 0xff);
    }
}

template <class Integer>
Integer get(std::span<std::byte const> in, std::size_t at) noexcept {
    Integer value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i) value = static_cast<Integer>(value << 8 | std::to_integer<Integer>(in[at + i]));
    return value;
}

}  // namespace

layout::layout(plan const& p) noexcept
    : stride_bytes{(static_cast<std::size_t>(p.size_bytes()) + 63) / 64 * 64}, slots{1}, receives{p.receives}, receive_slots{1} {
    std::size_t const budget = std::min(lane_bytes_max, memory_bytes_max / p.connections);
    // A message that is looked at must not be overwritten before; what nobody looks at may share its place.
    std::size_t const receive_budget = p.verifies ? memory_bytes_max / p.connections : budget;
    slots = std::clamp<std::size_t>(budget / stride_bytes, 1, p.depth);
    // Each in flight needs a place for what it brings back.
    if (is_atomic(p.what)) slots = p.depth;
    receive_slots = std::clamp<std::size_t>(receive_budget / stride_bytes, 1, p.receives);
    if (p.verifies) receives = receive_slots;
}

// --- greeting ----------------------------------------------------------------------------------------------------

std::array<std::byte, greeting_bytes> encode_greeting(rcverbs::remote_region const& exposed) noexcept {
    std::array<std::byte, greeting_bytes> out{};
    put(out, 0, greeting_magic);
    put(out, 4, static_cast<std::uint32_t>(exposed.rights()));
    put(out, 8, exposed.address());
    put(out, 16, exposed.size_bytes());
    put(out, 24, exposed.key().value);
    return out;
}

std::optional<rcverbs::remote_region> decode_greeting(std::span<std::byte const> in) noexcept {
    if (in.size() < greeting_bytes || get<std::uint32_t>(in, 0) != greeting_magic) return std::nullopt;
    return rcverbs::remote_region{
        get<std::uint64_t>(in, 8),
        get<std::uint64_t>(in, 16),
        rcverbs::remote_key{get<std::uint32_t>(in, 24)},
        static_cast<access_flags>(get<std::uint32_t>(in, 4) & known_rights)
    };
}

// --- connecting --------------------------------------------------------------------------------------------------

asio::awaitable<void> lane::connect(rcverbs::endpoint server) {
    try {
        co_await connection_.async_resolve(server, use_awaitable);
        make_memory();
        post_receives();
        auto const greeting = encode_greeting(exposed());
        co_await connection_.async_establish(greeting, use_awaitable);
        greet(connection_.private_data());
    } catch (boost::system::system_error const& e) {
        fail(e.code());
        throw;
    }
}

asio::awaitable<void> lane::accept() {
    try {
        greet(connection_.private_data());
        make_memory();
        post_receives();
        auto const greeting = encode_greeting(exposed());
        co_await connection_.async_accept(greeting, use_awaitable);
    } catch (boost::system::system_error const& e) {
        fail(e.code());
        throw;
    }
}

void lane::greet(std::span<std::byte const> private_data) {
    auto const region = decode_greeting(private_data);
    if (!region) throw boost::system::system_error{make_error_code(rcverbs::errc::foreign_peer)};
    peer_ = *region;
}

// Exposed is what the test needs of this side and no more.
void lane::make_memory() {
    if (plan_.what == operation::connect) return;
    std::size_t const out_bytes = layout_.stride_bytes * layout_.slots;
    std::size_t const in_slots = plan_.what == operation::send ? layout_.receive_slots : layout_.slots;
    access_flags out_rights = access_flags::local_read;
    access_flags in_rights = access_flags::local_write;
    switch (plan_.what) {
    case operation::read: out_rights = out_rights | access_flags::remote_read; break;
    case operation::write:
    case operation::write_imm: in_rights = in_rights | access_flags::remote_write; break;
    case operation::fetch_add:
    case operation::compare_swap:
        // What a cell held before is brought to where messages go out from: where they come in is the peer's cell.
        out_rights = access_flags::local_write;
        in_rights = in_rights | access_flags::remote_atomic;
        break;
    case operation::send:
    case operation::connect: break;
    }
    outgoing_pages_ = pages{out_bytes, plan_.pages, plan_.alignment_bytes};
    incoming_pages_ = pages{layout_.stride_bytes * in_slots, plan_.pages, plan_.alignment_bytes};
    outgoing_ = rcverbs::memory_region{connection_.domain(), outgoing_pages_.bytes(), out_rights};
    incoming_ = rcverbs::memory_region{connection_.domain(), incoming_pages_.bytes(), in_rights};
}

rcverbs::remote_region lane::exposed() const noexcept {
    return plan_.what == operation::read ? outgoing_.remote() : incoming_.remote();
}

// --- receives ----------------------------------------------------------------------------------------------------

std::span<std::byte> lane::slot_of(std::uint64_t message, std::size_t size_bytes) const noexcept {
    bool const is_sent = plan_.what == operation::send;
    std::uint64_t const slot = is_sent ? last_receive_ % layout_.receive_slots : message % layout_.slots;
    return incoming_.bytes().subspan(slot * layout_.stride_bytes, size_bytes);
}

void lane::post_receives() {
    if (!is_received(plan_.what)) return;
    for (std::size_t i = 0; i < layout_.receives; ++i) post_receive();
}

void lane::post_receive() {
    rcverbs::local_slice into;
    if (plan_.what == operation::send) {
        into = incoming_.slice(next_receive_ % layout_.receive_slots * layout_.stride_bytes, layout_.stride_bytes);
    }
    ++next_receive_;
    connection_.async_receive(into, [this](rcverbs::error_code ec, rcverbs::received message) {
        if (ec) return fail(ec);
        last_receive_ = oldest_receive_++;
        if (sink_ != nullptr) sink_->on_message(messages_++, message);
        post_receive();
    });
}

void lane::fail(rcverbs::error_code const& ec) {
    if (has_failed()) return;
    rcverbs::failure const f = connection_.last_failure();
    code_ = f.code ? f.code : ec;
    problem_ = f.code ? f.message() : ec.message();
    has_failed_.store(true, std::memory_order_release);
    if (sink_ != nullptr) sink_->on_failure();
}

}  // namespace rdma_bench
