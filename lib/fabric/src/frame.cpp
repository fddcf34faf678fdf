#include "frame.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace rcverbs::fabric::detail {

namespace {

constexpr std::uint32_t hello_magic = 0x76637231;  // the last digit is the version

// Collects the fields of a frame, and appends them at the end.
class writer {
public:
    writer(std::vector<std::byte>& to, frame_type what) : to_{to} {
        put(std::uint32_t{0});
        put(static_cast<std::uint8_t>(what));
    }
    ~writer() {
        auto const size = static_cast<std::uint32_t>(size_ + rest_.size() - sizeof(std::uint32_t));
        for (std::size_t i = 0; i < sizeof size; ++i)
            fields_[i] = static_cast<std::byte>(size >> (8 * i));
        to_.insert(
            to_.end(), fields_.begin(), fields_.begin() + static_cast<std::ptrdiff_t>(size_)
        );
        to_.insert(to_.end(), rest_.begin(), rest_.end());
    }
    writer(writer const&) = delete;
    writer& operator=(writer const&) = delete;

    template <class Integer>
    void put(Integer value) {
        for (std::size_t i = 0; i < sizeof value; ++i)
            fields_[size_++] = static_cast<std::byte>(std::uint64_t{value} >> (8 * i));
    }
    void put(ibv_gid const& gid) {
        std::memcpy(&fields_[size_], gid.raw, sizeof gid.raw);
        size_ += sizeof gid.raw;
    }
    /// The last field. It must live as long as the writer.
    void put_rest(std::span<std::byte const> bytes) { rest_ = bytes; }

private:
    std::vector<std::byte>& to_;
    std::array<std::byte, 160> fields_;  // more than any frame has before its last field
    std::size_t size_ = 0;
    std::span<std::byte const> rest_;
};

// Reads past the end give 0 and make the frame malformed.
class reader {
public:
    explicit reader(std::span<std::byte const> from) : left_{from} {}

    template <class Integer>
    Integer get() {
        std::uint64_t value = 0;
        std::span<std::byte const> const bytes = get_bytes(sizeof(Integer));
        for (std::size_t i = 0; i < bytes.size(); ++i)
            value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
        return static_cast<Integer>(value);
    }
    std::span<std::byte const> get_bytes(std::size_t size) {
        if (size > left_.size()) {
            is_bad_ = true;
            return {};
        }
        std::span<std::byte const> const bytes = left_.first(size);
        left_ = left_.subspan(size);
        return bytes;
    }
    ibv_gid get_gid() {
        ibv_gid gid{};
        std::span<std::byte const> const bytes = get_bytes(sizeof gid.raw);
        if (!bytes.empty()) std::memcpy(gid.raw, bytes.data(), sizeof gid.raw);
        return gid;
    }
    /// A value of an enumeration up to `last`.
    template <class Enum>
    Enum get_enum(Enum last) {
        auto const value = get<std::uint8_t>();
        if (value <= static_cast<std::uint8_t>(last)) return static_cast<Enum>(value);
        is_bad_ = true;
        return {};
    }
    std::span<std::byte const> rest() { return get_bytes(left_.size()); }
    bool is_good() const noexcept { return !is_bad_ && left_.empty(); }

private:
    std::span<std::byte const> left_;
    bool is_bad_ = false;
};

void put(writer& w, address const& a) {
    bool const is_v4 = a.family() == AF_INET;
    auto const& v4 = reinterpret_cast<sockaddr_in const&>(a.raw);
    auto const& v6 = reinterpret_cast<sockaddr_in6 const&>(a.raw);
    w.put(static_cast<std::uint8_t>(is_v4 ? 4 : 6));
    w.put(ntohs(is_v4 ? v4.sin_port : v6.sin6_port));
    w.put(gid_of(a));
}

std::optional<address> get_address(reader& r) {
    auto const version = r.get<std::uint8_t>();
    auto const port = r.get<std::uint16_t>();
    ibv_gid const gid = r.get_gid();
    address a;
    if (version == 4) {
        auto& v4 = reinterpret_cast<sockaddr_in&>(a.raw);
        v4.sin_family = AF_INET;
        v4.sin_port = htons(port);
        std::memcpy(&v4.sin_addr, gid.raw + 12, 4);
    } else if (version == 6) {
        auto& v6 = reinterpret_cast<sockaddr_in6&>(a.raw);
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(port);
        std::memcpy(&v6.sin6_addr, gid.raw, 16);
    } else {
        return std::nullopt;
    }
    return a;
}

bool fits(packet::kind what, ibv_wr_opcode opcode) noexcept {
    switch (what) {
    case packet::kind::send:
        return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
               opcode == IBV_WR_SEND_WITH_INV;
    case packet::kind::write:
        return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    case packet::kind::read_request: return opcode == IBV_WR_RDMA_READ;
    case packet::kind::atomic:
        return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    default: return true;
    }
}

std::optional<frame> read_packet(reader& r) {
    packet p;
    p.what = r.get_enum(packet::kind::atomic_response);
    p.opcode = r.get_enum(IBV_WR_SEND_WITH_INV);
    auto const flags = r.get<std::uint8_t>();
    p.is_first = (flags & 1) != 0;
    p.is_last = (flags & 2) != 0;
    p.wants_acknowledge = (flags & 4) != 0;
    p.is_solicited = (flags & 8) != 0;
    p.why = r.get_enum(packet::refusal::remote_operation);
    p.rnr_timer_code = r.get<std::uint8_t>() & 31;
    p.from = r.get_gid();
    p.to = r.get_gid();
    p.source = r.get<std::uint32_t>();
    p.target = r.get<std::uint32_t>();
    p.number = r.get<std::uint64_t>();
    p.number_end = r.get<std::uint64_t>();
    p.message_bytes = r.get<std::uint64_t>();
    p.offset = r.get<std::uint64_t>();
    p.remote_address = r.get<std::uint64_t>();
    p.rkey = r.get<std::uint32_t>();
    p.immediate = r.get<std::uint32_t>();
    p.compare_add = r.get<std::uint64_t>();
    p.swap = r.get<std::uint64_t>();
    p.payload = packet_payload{r.rest()};
    if (!r.is_good() || !fits(p.what, p.opcode)) return std::nullopt;
    return p;
}

std::optional<frame> read_message(reader& r) {
    cm_message m;
    m.what = r.get_enum(cm_message::kind::disconnect_reply);
    std::optional<address> const from = get_address(r);
    std::optional<address> const to = get_address(r);
    m.from_id = r.get<std::uint64_t>();
    m.to_id = r.get<std::uint64_t>();
    m.reason = r.get<std::uint16_t>();
    m.with.qp_num = r.get<std::uint32_t>();
    m.with.responder_resources = r.get<std::uint8_t>();
    m.with.initiator_depth = r.get<std::uint8_t>();
    m.with.retry_count = r.get<std::uint8_t>() & 7;
    m.with.rnr_retry_count = r.get<std::uint8_t>() & 7;
    m.with.traffic_class = r.get<std::uint8_t>();
    // As a code, so that no other value is possible. Source: enum ibv_mtu.
    auto const mtu = r.get<std::uint8_t>();
    std::span<std::byte const> const data = r.rest();
    m.with.private_data.assign(data.begin(), data.end());
    bool const has_mtu = mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096;
    if (!r.is_good() || !from || !to || !has_mtu || data.size() > private_data_max)
        return std::nullopt;
    m.with.path_mtu_bytes = 128U << mtu;
    m.from = *from;
    m.to = *to;
    return m;
}

}  // namespace

void append(std::vector<std::byte>& to, hello const& h) {
    writer w{to, frame_type::hello};
    w.put(hello_magic);
    w.put(h.node);
    w.put(h.slot);
}

void append(std::vector<std::byte>& to, packet const& p) {
    writer w{to, frame_type::packet};
    w.put(static_cast<std::uint8_t>(p.what));
    w.put(static_cast<std::uint8_t>(p.opcode));
    w.put(static_cast<std::uint8_t>(
        (p.is_first ? 1 : 0) | (p.is_last ? 2 : 0) | (p.wants_acknowledge ? 4 : 0) |
        (p.is_solicited ? 8 : 0)
    ));
    w.put(static_cast<std::uint8_t>(p.why));
    w.put(p.rnr_timer_code);
    w.put(p.from);
    w.put(p.to);
    w.put(p.source);
    w.put(p.target);
    w.put(p.number);
    w.put(p.number_end);
    w.put(p.message_bytes);
    w.put(p.offset);
    w.put(p.remote_address);
    w.put(p.rkey);
    w.put(p.immediate);
    w.put(p.compare_add);
    w.put(p.swap);
    w.put_rest(p.payload);
}

void append(std::vector<std::byte>& to, cm_message const& m) {
    writer w{to, frame_type::cm_message};
    w.put(static_cast<std::uint8_t>(m.what));
    put(w, m.from);
    put(w, m.to);
    w.put(m.from_id);
    w.put(m.to_id);
    w.put(static_cast<std::uint16_t>(m.reason));
    w.put(m.with.qp_num);
    w.put(m.with.responder_resources);
    w.put(m.with.initiator_depth);
    w.put(m.with.retry_count);
    w.put(m.with.rnr_retry_count);
    w.put(m.with.traffic_class);
    w.put(static_cast<std::uint8_t>(mtu_code(m.with.path_mtu_bytes)));
    w.put_rest(m.with.private_data);
}

std::optional<frame> take_frame(std::span<std::byte const>& from) {
    reader outer{from};
    auto const size = outer.get<std::uint32_t>();
    if (size == 0 || size > frame_bytes_max || size > from.size() - sizeof size)
        return std::nullopt;
    reader r{from.subspan(sizeof size, size)};
    from = from.subspan(sizeof size + size);
    switch (static_cast<frame_type>(r.get<std::uint8_t>())) {
    case frame_type::hello: {
        auto const magic = r.get<std::uint32_t>();
        hello h;
        h.node = r.get<std::uint32_t>();
        h.slot = r.get<std::uint32_t>();
        if (!r.is_good() || magic != hello_magic) return std::nullopt;
        return h;
    }
    case frame_type::packet: return read_packet(r);
    case frame_type::cm_message: return read_message(r);
    case frame_type::control: {
        std::span<std::byte const> const text = r.rest();
        return control{{reinterpret_cast<char const*>(text.data()), text.size()}};
    }
    }
    return std::nullopt;
}

}  // namespace rcverbs::fabric::detail
