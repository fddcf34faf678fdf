#include "capture.hpp"

#include <boost/crc.hpp>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <system_error>

namespace rcverbs::fabric::detail {

namespace {

constexpr std::uint16_t roce_port = 4791;
constexpr std::size_t mac_bytes = 14;
constexpr std::size_t udp_bytes = 8;

// Appends integers in network byte order.
class network_writer {
public:
    explicit network_writer(std::vector<std::byte>& to) : to_{to} {}

    void put(std::uint64_t value, int bytes) {
        while (bytes-- > 0) to_.push_back(static_cast<std::byte>(value >> (8 * bytes)));
    }
    void put(std::span<std::byte const> bytes) {
        to_.insert(to_.end(), bytes.begin(), bytes.end());
    }

private:
    std::vector<std::byte>& to_;
};

bool is_v4(ibv_gid const& gid) noexcept {
    static constexpr std::uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::memcmp(gid.raw, prefix, sizeof prefix) == 0;
}

std::span<std::byte const> bytes_of(ibv_gid const& gid, bool v4) noexcept {
    auto const all = std::as_bytes(std::span{gid.raw});
    return v4 ? all.last(4) : all;
}

// A locally administered address for each device.
void put_mac(network_writer& w, ibv_gid const& gid) {
    w.put(0x0200, 2);
    w.put(std::as_bytes(std::span{gid.raw}).last(4));
}

std::uint8_t operation_of(packet const& p) noexcept {
    bool const is_only = p.is_first && p.is_last;
    // First, middle, last and only are not numbered alike for all operations.
    auto const place = [&](std::uint8_t first, std::uint8_t only) {
        if (is_only) return only;
        if (p.is_first) return first;
        return static_cast<std::uint8_t>(first + (p.is_last ? 2 : 1));
    };
    bool const has_immediate =
        p.is_last && (p.opcode == IBV_WR_SEND_WITH_IMM || p.opcode == IBV_WR_RDMA_WRITE_WITH_IMM);
    switch (p.what) {
    case packet::kind::send:
        if (p.is_last && p.opcode == IBV_WR_SEND_WITH_INV) return is_only ? 0x17 : 0x16;
        return static_cast<std::uint8_t>(place(0x00, 0x04) + (has_immediate ? 1 : 0));
    case packet::kind::write:
        return static_cast<std::uint8_t>(place(0x06, 0x0a) + (has_immediate ? 1 : 0));
    case packet::kind::read_request: return 0x0c;
    case packet::kind::read_response: return place(0x0d, 0x10);
    case packet::kind::acknowledge:
    case packet::kind::negative: return 0x11;
    case packet::kind::atomic_response: return 0x12;
    case packet::kind::atomic: return p.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? 0x13 : 0x14;
    }
    return 0x04;
}

std::uint8_t syndrome_of(packet const& p) noexcept {
    if (p.what != packet::kind::negative) return 0x1f;  // no end-to-end credits
    if (p.why == packet::refusal::not_ready)
        return static_cast<std::uint8_t>(0x20 | p.rnr_timer_code);
    switch (p.why) {
    case packet::refusal::sequence: return 0x60;
    case packet::refusal::invalid_request: return 0x61;
    case packet::refusal::remote_access: return 0x62;
    default: return 0x63;
    }
}

void put_transport(network_writer& w, packet const& p) {
    std::size_t const padding = (4 - p.payload.size() % 4) % 4;
    w.put(operation_of(p), 1);
    w.put((p.is_solicited ? 0x80U : 0U) | padding << 4, 1);
    w.put(0xffff, 2);  // partition
    w.put(p.target & 0xffffff, 4);
    bool const is_request = p.what <= packet::kind::atomic;
    bool const asks = is_request && p.wants_acknowledge;
    w.put((asks ? 0x8000'0000U : 0U) | (p.number & 0xffffff), 4);
    switch (p.what) {
    case packet::kind::write:
        if (!p.is_first) break;
        [[fallthrough]];
    case packet::kind::read_request:
        w.put(p.remote_address + (p.what == packet::kind::write ? 0 : p.offset), 8);
        w.put(p.rkey, 4);
        w.put(p.message_bytes - (p.what == packet::kind::write ? 0 : p.offset), 4);
        break;
    case packet::kind::atomic:
        w.put(p.remote_address, 8);
        w.put(p.rkey, 4);
        w.put(p.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? p.swap : p.compare_add, 8);
        w.put(p.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? p.compare_add : 0, 8);
        break;
    case packet::kind::acknowledge:
    case packet::kind::negative:
    case packet::kind::atomic_response:
        w.put(syndrome_of(p), 1);
        w.put(0, 3);
        break;
    case packet::kind::read_response:
        if (p.is_first || p.is_last) {
            w.put(syndrome_of(p), 1);
            w.put(0, 3);
        }
        break;
    default: break;
    }
    bool const is_whole = p.is_last;
    if (is_whole && (p.opcode == IBV_WR_SEND_WITH_IMM || p.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) &&
        (p.what == packet::kind::send || p.what == packet::kind::write)) {
        w.put(std::as_bytes(std::span{&p.immediate, 1}));  // in network byte order already
    }
    if (is_whole && p.what == packet::kind::send && p.opcode == IBV_WR_SEND_WITH_INV)
        w.put(p.immediate, 4);
    if (p.what == packet::kind::atomic_response) {
        std::uint64_t before = 0;  // in the byte order of this machine
        std::memcpy(&before, p.payload.data(), std::min(sizeof before, p.payload.size()));
        w.put(before, 8);
        return;
    }
    w.put(p.payload);
    w.put(0, static_cast<int>(padding));
}

// A number of an id as the 32 bits that messages have.
std::uint64_t short_id(std::uint64_t id) noexcept {
    return (id >> 32 & 0xff) << 24 | (id & 0xffffff);
}

std::uint16_t port_of(address const& a) noexcept {
    return ntohs(
        a.family() == AF_INET ? reinterpret_cast<sockaddr_in const&>(a.raw).sin_port
                              : reinterpret_cast<sockaddr_in6 const&>(a.raw).sin6_port
    );
}

// The content of a message of the connection manager. Source: InfiniBand specification, volume 1, "Communication
// management", 12.6; annex A11 (RDMA IP CM service) for the head of a request's private data.
std::uint16_t put_cm_content(
    network_writer& w, cm_message const& m, ibv_gid const& from, ibv_gid const& to
) {
    using kind = cm_message::kind;
    w.put(short_id(m.from_id), 4);
    if (m.what == kind::request) {
        bool const v4 = is_v4(from);
        w.put(0, 4);
        w.put(0x0000'0000'0106'0000U | port_of(m.to), 8);  // the service of RDMA_PS_TCP
        w.put(0, 8 + 4 + 4);  // GUID, key of unreliable datagrams
        w.put(std::uint64_t{m.with.qp_num} << 8 | m.with.responder_resources, 4);
        w.put(m.with.initiator_depth, 4);
        w.put(0x14U << 3 & 0xff, 4);  // how long the receiver may take; reliable connection
        w.put(0x14U << 3 | (m.with.retry_count & 7U), 4);  // the first packet has number 0
        w.put(0xffff, 2);  // partition
        w.put(
            std::uint64_t{mtu_code(m.with.path_mtu_bytes)} << 4 | (m.with.rnr_retry_count & 7U), 1
        );
        w.put(15U << 4, 1);  // how often it is sent
        w.put(0xffff'ffff, 4);  // no local identifiers, as on Ethernet
        w.put(std::as_bytes(std::span{from.raw}));
        w.put(std::as_bytes(std::span{to.raw}));
        w.put(0, 4);  // flow label, rate
        w.put(m.with.traffic_class, 1);
        w.put(64, 1);
        w.put(0, 1);
        w.put(19U << 3, 1);  // acknowledgement timeout
        for (int i = 0; i < 44; ++i) w.put(0, 1);  // no alternate path
        w.put(0, 1);
        w.put(v4 ? 0x40 : 0x60, 1);
        w.put(port_of(m.from), 2);
        for (ibv_gid const* const gid : {&from, &to}) {
            if (v4) w.put(0, 12);
            w.put(bytes_of(*gid, v4));
        }
        w.put(m.with.private_data);
        return 0x10;
    }
    w.put(short_id(m.to_id), 4);
    switch (m.what) {
    case kind::reply:
        w.put(0, 4);
        w.put(std::uint64_t{m.with.qp_num} << 8, 4);
        w.put(0, 8);  // end-to-end context; the first packet has number 0
        w.put(m.with.responder_resources, 1);
        w.put(m.with.initiator_depth, 1);
        w.put(0, 1);
        w.put(std::uint64_t{m.with.rnr_retry_count} << 5, 1);
        w.put(0, 8);
        w.put(m.with.private_data);
        return 0x13;
    case kind::ready: return 0x14;
    case kind::rejection:
        w.put(0, 2);
        w.put(static_cast<std::uint64_t>(m.reason), 2);
        for (int i = 0; i < 72; ++i) w.put(0, 1);  // no further information
        w.put(m.with.private_data);
        return 0x12;
    case kind::disconnect_request: w.put(0, 4); return 0x15;
    default: return 0x16;
    }
}

// A management datagram: an unreliable datagram from queue pair 1 to queue pair 1.
void put_management(
    network_writer& w, cm_message const& m, ibv_gid const& from, ibv_gid const& to
) {
    constexpr std::size_t content_bytes = 232;
    std::vector<std::byte> content;
    network_writer c{content};
    std::uint16_t const attribute = put_cm_content(c, m, from, to);
    content.resize(content_bytes);
    w.put(0x64, 1);  // SEND Only of an unreliable datagram
    w.put(0, 1);
    w.put(0xffff, 2);
    w.put(1, 4);
    w.put(0, 4);
    w.put(0x8001'0000, 4);  // the key of queue pair 1
    w.put(1, 4);
    w.put(0x0107'0203, 4);  // version, communication management, version, Send
    w.put(0, 4);
    w.put(short_id(m.what == cm_message::kind::request ? m.from_id : m.to_id), 8);
    w.put(attribute, 2);
    w.put(0, 2 + 4);
    w.put(content);
}

void put_checksum(std::span<std::byte> header) noexcept {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < header.size(); i += 2)
        sum += std::to_integer<std::uint32_t>(header[i]) << 8 |
               std::to_integer<std::uint32_t>(header[i + 1]);
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    sum = ~sum;
    header[10] = static_cast<std::byte>(sum >> 8);
    header[11] = static_cast<std::byte>(sum);
}

// The invariant CRC: fields that change on the way count as ones.
std::uint32_t invariant_crc(std::span<std::byte const> frame, bool v4) {
    std::vector<std::byte> masked(8, std::byte{0xff});
    masked.insert(masked.end(), frame.begin() + mac_bytes, frame.end());
    std::span<std::byte> const ip = std::span{masked}.subspan(8);
    std::size_t const ip_bytes = v4 ? 20 : 40;
    if (v4) {
        for (std::size_t const i : {1U, 8U, 10U, 11U})
            ip[i] = std::byte{0xff};  // TOS, TTL, checksum
    } else {
        ip[0] |= std::byte{0x0f};  // traffic class, flow label, hop limit
        for (std::size_t const i : {1U, 2U, 3U, 7U}) ip[i] = std::byte{0xff};
    }
    for (std::size_t const i : {6U, 7U}) ip[ip_bytes + i] = std::byte{0xff};  // the checksum of UDP
    ip[ip_bytes + udp_bytes + 4] = std::byte{0xff};  // reserved
    boost::crc_32_type crc;
    crc.process_bytes(masked.data(), masked.size());
    return crc.checksum();
}

std::vector<std::byte> frame_of(
    std::span<std::byte const> transport,
    ibv_gid const& from,
    ibv_gid const& to,
    std::uint32_t source
) {
    constexpr std::size_t crc_bytes = 4;
    std::size_t const datagram_bytes = udp_bytes + transport.size() + crc_bytes;
    bool const v4 = is_v4(from);

    std::vector<std::byte> frame;
    network_writer w{frame};
    put_mac(w, to);
    put_mac(w, from);
    w.put(v4 ? 0x0800 : 0x86dd, 2);
    if (v4) {
        w.put(0x4500, 2);
        w.put(20 + datagram_bytes, 2);
        w.put(0, 2);
        w.put(0x4000, 2);  // not to be fragmented
        w.put(64, 1);
        w.put(17, 1);
        w.put(0, 2);
    } else {
        w.put(0x6000'0000, 4);
        w.put(datagram_bytes, 2);
        w.put(17, 1);
        w.put(64, 1);
    }
    w.put(bytes_of(from, v4));
    w.put(bytes_of(to, v4));
    if (v4) put_checksum(std::span{frame}.subspan(mac_bytes, 20));
    w.put(0xc000 | (source & 0x3fff), 2);
    w.put(roce_port, 2);
    w.put(datagram_bytes, 2);
    w.put(0, 2);
    w.put(transport);
    std::uint32_t const crc = invariant_crc(frame, v4);
    for (int i = 0; i < 4; ++i) frame.push_back(static_cast<std::byte>(crc >> (8 * i)));
    return frame;
}

struct record_head {
    std::uint32_t seconds;
    std::uint32_t nanoseconds;
    std::uint32_t kept_bytes;
    std::uint32_t bytes;
};

}  // namespace

std::vector<std::byte> roce_frame(packet const& p) {
    std::vector<std::byte> transport;
    network_writer w{transport};
    put_transport(w, p);
    return frame_of(transport, p.from, p.to, p.source);
}

std::vector<std::byte> roce_frame(cm_message const& m, ibv_gid const& from, ibv_gid const& to) {
    std::vector<std::byte> transport;
    network_writer w{transport};
    put_management(w, m, from, to);
    return frame_of(transport, from, to, 1);
}

void capture::create(std::string const& path) {
    descriptor const file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    // In the byte order of this machine, with nanoseconds; version 2.4; Ethernet.
    std::array<std::uint32_t, 6> const head{0xa1b23c4d, 4U << 16 | 2U, 0, 0, 65535, 1};
    std::array<std::uint32_t, 6> there{};
    ssize_t const size = file ? ::pread(file.get(), there.data(), sizeof there, 0) : -1;
    if (size < 0 || (size == 0 && ::write(file.get(), head.data(), sizeof head) != sizeof head))
        throw std::runtime_error{path + ": " + std::generic_category().message(errno)};
    if (size > 0 && there != head)
        throw std::runtime_error{path + ": no capture of rcverbs-fabric: name another file"};
}

capture::capture(std::string const& path)
    : file_{::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)} {
    if (!file_) throw std::runtime_error{path + ": " + std::generic_category().message(errno)};
}

void capture::write(std::vector<std::byte> const& frame, std::chrono::nanoseconds when)
    const noexcept {
    auto const size = static_cast<std::uint32_t>(frame.size());
    record_head head{
        static_cast<std::uint32_t>(when.count() / 1'000'000'000),
        static_cast<std::uint32_t>(when.count() % 1'000'000'000),
        size,
        size};
    iovec const parts[] = {
        {&head, sizeof head}, {const_cast<std::byte*>(frame.data()), frame.size()}};
    static_cast<void>(::writev(file_.get(), parts, 2));  // what cannot be written is missing
}

}  // namespace rcverbs::fabric::detail
