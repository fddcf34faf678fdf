#include "rdma-bench/bench_connection.hpp"

#include <boost/asio/use_awaitable.hpp>

#include <algorithm>

namespace rdma_bench {

namespace asio = boost::asio;
using asio::use_awaitable;
using rcverbs::access_flags;

// --- connecting ----------------------------------------------------------------------------------

asio::awaitable<void> bench_connection::connect(rcverbs::endpoint server) {
    try {
        co_await connection_.async_resolve(server, use_awaitable);
        make_memory();
        post_receives();
        auto const greeting = encode_greeting(exposed(), token_);
        co_await connection_.async_establish(greeting, use_awaitable);
        greet();
    } catch (boost::system::system_error const& e) {
        fail(e.code());
        throw;
    } catch (protocol_error const& e) {
        fail(make_error_code(rcverbs::errc::malformed_message), e.what());
        throw;
    }
}

asio::awaitable<void> bench_connection::accept() {
    try {
        greet();
        make_memory();
        post_receives();
        auto const greeting = encode_greeting(exposed(), token_);
        co_await connection_.async_accept(greeting, use_awaitable);
    } catch (boost::system::system_error const& e) {
        fail(e.code());
        throw;
    } catch (protocol_error const& e) {
        fail(make_error_code(rcverbs::errc::malformed_message), e.what());
        throw;
    }
}

void bench_connection::greet() {
    peer_ = decode_greeting(connection_.private_data(), plan_, token_);
}

// Grants the peer only the rights that the test needs.
void bench_connection::make_memory() {
    if (plan_.what == operation::connect) return;
    std::size_t const out_bytes = layout_.stride_bytes * layout_.slots;
    std::size_t const in_slots =
        plan_.what == operation::send ? layout_.receive_slots : layout_.slots;
    access_flags out_rights = access_flags::local_read;
    access_flags in_rights = access_flags::local_write;
    switch (plan_.what) {
    case operation::read: out_rights = out_rights | access_flags::remote_read; break;
    case operation::write:
    case operation::write_imm: in_rights = in_rights | access_flags::remote_write; break;
    case operation::fetch_add:
    case operation::compare_swap:
        // An atomic's result goes to the outgoing memory: the incoming memory has the cell on which
        // the peer's atomics operate.
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

rcverbs::remote_region bench_connection::exposed() const noexcept {
    return plan_.what == operation::read ? outgoing_.remote() : incoming_.remote();
}

// --- receives ------------------------------------------------------------------------------------

std::span<std::byte> bench_connection::slot_of(std::uint64_t message, std::size_t size_bytes)
    const noexcept {
    bool const is_sent = plan_.what == operation::send;
    std::uint64_t const slot =
        is_sent ? last_receive_ % layout_.receive_slots : message % layout_.slots;
    return incoming_.bytes().subspan(slot * layout_.stride_bytes, size_bytes);
}

void bench_connection::post_receives() {
    if (!is_received(plan_.what)) return;
    for (std::size_t i = 0; i < layout_.receives; ++i) post_receive();
}

void bench_connection::post_receive() {
    rcverbs::mutable_slice into;
    if (plan_.what == operation::send) {
        into = incoming_.slice(
            next_receive_ % layout_.receive_slots * layout_.stride_bytes, layout_.stride_bytes
        );
    }
    ++next_receive_;
    connection_.async_receive(
        into,
        [this](rcverbs::error_code ec, rcverbs::receive_result message) {
            if (ec) return fail(ec);
            last_receive_ = oldest_receive_++;
            if (sink_ != nullptr) sink_->on_message(messages_++, message);
            post_receive();
        }
    );
}

void bench_connection::fail(rcverbs::error_code const& ec) {
    rcverbs::failure const f = connection_.last_failure();
    note(f.code ? f.code : ec, f.code ? f.message() : ec.message());
}

void bench_connection::fail(rcverbs::error_code const& ec, std::string problem) {
    note(ec, std::move(problem));
    connection_.close();
}

void bench_connection::note(rcverbs::error_code const& ec, std::string problem) {
    if (has_failed()) return;
    code_ = ec;
    problem_ = std::move(problem);
    has_failed_.store(true, std::memory_order_release);
    if (sink_ != nullptr) sink_->on_failure();
}

}  // namespace rdma_bench
