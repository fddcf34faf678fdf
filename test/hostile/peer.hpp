// peer.hpp — a hostile peer: plain C calls of libibverbs and librdmacm, without rcverbs.
//
// Each step is a separate call, so that a test can omit it, repeat it, or falsify its data.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "behaviour/ends.hpp"

namespace test::hostile {

using bytes = std::vector<std::byte>;

inline bytes text(std::string_view from) {
    auto const* const first = reinterpret_cast<std::byte const*>(from.data());
    return {first, first + from.size()};
}

inline void put(bytes& out, std::uint64_t value, std::size_t size) {
    for (std::size_t i = size; i-- > 0;) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

/// A session's hello, with every field changeable.
struct hello {
    std::uint16_t version = 1;
    std::uint16_t verdict = 0;
    std::uint32_t mode = 0;
    std::uint32_t message_bytes_max = 3088;
    std::uint16_t receives = 2;
    std::uint64_t reserved = 0;

    bytes encoded() const {
        bytes out = text("RCVS");
        put(out, version, 2);
        put(out, verdict, 2);
        put(out, mode, 4);
        put(out, message_bytes_max, 4);
        put(out, receives, 2);
        put(out, reserved, 6);
        return out;
    }
};

inline bytes message_head(std::uint8_t type, std::uint16_t count) {
    bytes out = text("RCVM");
    put(out, 1, 1);
    put(out, type, 1);
    put(out, count, 2);
    put(out, 16U + 48U * count, 4);
    put(out, 0, 4);
    return out;
}

inline bytes done_message() { return message_head(2, 0); }

/// MSG_MR with one region of any name.
inline bytes regions_message(
    std::string_view name,
    std::uint64_t address,
    std::uint64_t size,
    std::uint32_t key,
    std::uint32_t rights
) {
    bytes out = message_head(1, 1);
    put(out, address, 8);
    put(out, size, 8);
    put(out, key, 4);
    put(out, rights, 4);
    for (std::size_t i = 0; i < 24; ++i)
        put(out, i < name.size() ? static_cast<std::uint8_t>(name[i]) : 0, 1);
    return out;
}

/// One side of a connection.
class peer {
public:
    static constexpr std::size_t memory_bytes = 64 * 1024;

    /// Resolves the route to a listener, and creates a queue pair with receives posted.
    void approach(std::string const& address, std::uint16_t port, bool posts_receives = true) {
        rdma_cm_id* made = nullptr;
        REQUIRE(rdma_create_id(e_.channel.get(), &made, nullptr, RDMA_PS_TCP) == 0);
        e_.id.reset(made);
        sockaddr_in to = address_of(address, port);
        REQUIRE(rdma_resolve_addr(made, nullptr, raw(to), 2000) == 0);
        expect(e_.channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
        REQUIRE(rdma_resolve_route(made, 2000) == 0);
        expect(e_.channel.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
        prepare(posts_receives);
    }

    /// Listens on all addresses. Returns the port.
    std::uint16_t listen() {
        rdma_cm_id* made = nullptr;
        REQUIRE(rdma_create_id(listening_.channel.get(), &made, nullptr, RDMA_PS_TCP) == 0);
        listening_.id.reset(made);
        sockaddr_in any = address_of("0.0.0.0");
        REQUIRE(rdma_bind_addr(made, raw(any)) == 0);
        REQUIRE(rdma_listen(made, 8) == 0);
        return ntohs(rdma_get_src_port(made));
    }
    /// Waits for a connection request.
    received_event take_request(bool posts_receives = true) {
        received_event h = expect(listening_.channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
        e_.id.reset(h.id);
        prepare(posts_receives);
        return h;
    }

    /// Requests a connection, without waiting for the answer.
    void ask(bytes const& private_data) {
        rdma_conn_param p = parameters(private_data);
        REQUIRE(rdma_connect(e_.id.get(), &p) == 0);
    }
    void accept(bytes const& private_data) {
        rdma_conn_param p = parameters(private_data);
        REQUIRE(rdma_accept(e_.id.get(), &p) == 0);
    }
    void reject(bytes const& private_data) {
        rdma_reject(
            e_.id.get(), private_data.data(), static_cast<std::uint8_t>(private_data.size())
        );
    }
    /// Waits for the next event of its id: after ESTABLISHED, both a client and a server may send.
    received_event await_event(int type) { return expect(events(), type); }
    std::optional<received_event> next_event(int patience_ms = 10000) {
        return wait_for_event(events(), patience_ms);
    }

    void send(bytes const& message) {
        // Each message has its own slot: the device may still read the previous one.
        std::size_t const at = (1 + sends_++ % (outgoing_slots - 1)) * outgoing_bytes;
        std::memcpy(memory_->bytes() + at, message.data(), message.size());
        ibv_sge from = memory_->segment(at, message.size());
        ibv_send_wr wr = work(IBV_WR_SEND, &from, 1);
        REQUIRE(e_.post(wr) == 0);
    }
    /// Sends, and waits until the peer's device has acknowledged it. False if that failed.
    bool deliver(bytes const& message) {
        send(message);
        return await_send() == IBV_WC_SUCCESS;
    }
    /// The next received message; empty if none arrives.
    bytes await_message(std::chrono::milliseconds patience = std::chrono::seconds{10}) {
        auto const until = std::chrono::steady_clock::now() + patience;
        while (arrived_.empty() && std::chrono::steady_clock::now() < until && take(until)) {}
        if (arrived_.empty()) return {};
        bytes const first = arrived_.front();
        arrived_.erase(arrived_.begin());
        return first;
    }
    /// The status of the oldest send whose status was not returned yet.
    ibv_wc_status await_send(std::chrono::milliseconds patience = std::chrono::seconds{10}) {
        auto const until = std::chrono::steady_clock::now() + patience;
        while (sent_.empty() && take(until)) {}
        if (sent_.empty()) return IBV_WC_GENERAL_ERR;
        ibv_wc_status const first = sent_.front();
        sent_.erase(sent_.begin());
        return first;
    }
    ibv_wc_status write(std::uint64_t address, std::uint32_t key, std::size_t size = 8) {
        return touch(IBV_WR_RDMA_WRITE, address, key, size);
    }
    ibv_wc_status write_bytes(std::uint64_t address, std::uint32_t key, bytes const& what) {
        std::memcpy(memory_->bytes(), what.data(), what.size());
        return touch(IBV_WR_RDMA_WRITE, address, key, what.size());
    }
    ibv_wc_status write_bytes_with_immediate(
        std::uint64_t address, std::uint32_t key, bytes const& what, std::uint32_t immediate
    ) {
        std::memcpy(memory_->bytes(), what.data(), what.size());
        ibv_sge segment = memory_->segment(0, what.size());
        ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE_WITH_IMM, &segment, 1, address, key);
        wr.imm_data = htonl(immediate);
        REQUIRE(e_.post(wr) == 0);
        return await_send();
    }
    ibv_wc_status read(std::uint64_t address, std::uint32_t key, std::size_t size = 8) {
        return touch(IBV_WR_RDMA_READ, address, key, size);
    }
    ibv_wc_status add(std::uint64_t address, std::uint32_t key, std::uint64_t value) {
        ibv_sge into = memory_->segment(0, 8);
        ibv_send_wr wr = work(IBV_WR_ATOMIC_FETCH_AND_ADD, &into, 1);
        wr.wr.atomic.remote_addr = address;
        wr.wr.atomic.rkey = key;
        wr.wr.atomic.compare_add = value;
        REQUIRE(e_.post(wr) == 0);
        return await_send();
    }

    void disconnect() { rdma_disconnect(e_.id.get()); }
    /// Destroys queue pair and id without rdma_disconnect(); the kernel may still notify the peer.
    void vanish() {
        if (e_.id && e_.id->qp != nullptr) rdma_destroy_qp(e_.id.get());
        e_.id.reset();
    }

    /// This peer's memory that the other side may access.
    std::byte* exposed() { return exposed_->bytes(); }
    std::uint64_t exposed_address() { return exposed_->at(); }
    std::uint32_t exposed_key() { return exposed_->mr->rkey; }

private:
    // Messages use all slots but the first, which reads and writes use.
    static constexpr std::size_t outgoing_bytes = 8192;
    static constexpr std::size_t outgoing_slots = memory_bytes / outgoing_bytes;
    static constexpr std::size_t slot_bytes = 4096;
    static constexpr std::size_t slots = 8;
    static constexpr std::uint64_t receive_id = 1000;

    rdma_event_channel* events() { return (listening_.id ? listening_ : e_).channel.get(); }

    rdma_conn_param parameters(bytes const& private_data) {
        rdma_conn_param p = parameters_of({});
        p.private_data = private_data.empty() ? nullptr : private_data.data();
        p.private_data_len = static_cast<std::uint8_t>(private_data.size());
        return p;
    }

    void prepare(bool posts_receives) {
        e_.make_queue_pair({});
        memory_.emplace(e_, memory_bytes);
        incoming_.emplace(e_, slots * slot_bytes);
        exposed_.emplace(e_, memory_bytes, all_access);
        if (!posts_receives) return;
        for (std::size_t i = 0; i < slots; ++i) post_receive(i);
    }

    void post_receive(std::size_t slot) {
        ibv_sge into = incoming_->segment(slot * slot_bytes, slot_bytes);
        static_cast<void>(e_.receive(receive_id + slot, &into, 1));
    }

    ibv_wc_status touch(
        ibv_wr_opcode what, std::uint64_t address, std::uint32_t key, std::size_t size
    ) {
        ibv_sge segment = memory_->segment(0, size);
        ibv_send_wr wr = remote(what, &segment, 1, address, key);
        REQUIRE(e_.post(wr) == 0);
        return await_send();
    }

    bool take(std::chrono::steady_clock::time_point until) {
        auto const left = until - std::chrono::steady_clock::now();
        auto const wc = e_.poll(std::max(
            std::chrono::duration_cast<std::chrono::milliseconds>(left),
            std::chrono::milliseconds{0}
        ));
        if (!wc) return false;
        if (wc->wr_id < receive_id) {
            sent_.push_back(wc->status);
            return true;
        }
        if (wc->status != IBV_WC_SUCCESS) return false;
        std::size_t const slot = wc->wr_id - receive_id;
        std::byte const* const from = incoming_->bytes() + slot * slot_bytes;
        arrived_.emplace_back(from, from + wc->byte_len);
        post_receive(slot);
        return true;
    }

    end listening_;
    end e_;
    // Registered in the queue pair's domain, which must outlive it.
    std::optional<memory> memory_;
    std::optional<memory> incoming_;
    std::optional<memory> exposed_;
    std::size_t sends_ = 0;
    std::vector<bytes> arrived_;
    std::vector<ibv_wc_status> sent_;
};

}  // namespace test::hostile
