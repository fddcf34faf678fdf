#include "cm/id.hpp"

#include <endian.h>
#include <infiniband/ib.h>
#include <netinet/in.h>

#include <boost/asio/ip/tcp.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "cm/event_channel.hpp"
#include "verbs/errno_map.hpp"

namespace rcverbs::cm {

using verbs::from_minus_one;

namespace {

int as_int(std::chrono::milliseconds t) noexcept {
    constexpr std::chrono::milliseconds most{std::numeric_limits<int>::max()};
    return static_cast<int>(std::min(t, most).count());
}

// An endpoint as the kernel's sockaddr. Source: rdma_cma.h, infiniband/ib.h.
class socket_address {
public:
    explicit socket_address(endpoint const& e) {
        if (!e.is_infiniband()) {
            // Asio's TCP endpoint is a sockaddr of the right family and size; the RDMA port space
            // uses the same structures. It knows no IPv4 addresses in IPv6 form, which sockets that
            // accept both report.
            auto const& a = e.address();
            bool const is_mapped = a.is_v6() && a.to_v6().is_v4_mapped();
            if (is_mapped) ip_ = {make_address_v4(boost::asio::ip::v4_mapped, a.to_v6()), e.port()};
            else ip_ = {a, e.port()};
            return;
        }
        ib_.sib_family = AF_IB;
        ib_.sib_pkey = 0xffff;
        auto const gid = e.address().to_v6().to_bytes();
        std::memcpy(&ib_.sib_addr, gid.data(), gid.size());
        ib_.sib_sid = htobe64(std::uint64_t{RDMA_PS_TCP} << 16 | e.port());
        ib_.sib_sid_mask = ~std::uint64_t{0};
    }
    sockaddr* get() noexcept {
        return ib_.sib_family == AF_IB ? reinterpret_cast<sockaddr*>(&ib_)
                                       : ip_.data();  // sockaddr_ib is used through sockaddr
    }

private:
    boost::asio::ip::tcp::endpoint ip_;
    sockaddr_ib ib_{};
};

// Maps the errors that the kernel returns for devices without InfiniBand addresses to
// errc::address_family_unsupported.
error_code name_family(endpoint const& e, error_code ec) noexcept {
    using namespace boost::system::errc;
    bool const is_unknown =
        ec == no_such_device || ec == invalid_argument || ec == address_family_not_supported;
    return e.is_infiniband() && is_unknown ? make_error_code(errc::address_family_unsupported) : ec;
}

// The network interface of a link-local address of a device; 0 if it has no such address. The kernel
// does not report the scope of a connection that was accepted. Source: ibv_query_gid_ex(3).
std::uint32_t interface_of(rdma_cm_id const& id, in6_addr const& local) {
    ibv_port_attr port{};
    if (id.verbs == nullptr || ibv_query_port(id.verbs, id.port_num, &port) != 0) return 0;
    for (int i = 0; i < port.gid_tbl_len; ++i) {
        ibv_gid_entry entry{};
        auto const index = static_cast<std::uint32_t>(i);
        if (ibv_query_gid_ex(id.verbs, id.port_num, index, &entry, 0) != 0) continue;
        if (std::memcmp(entry.gid.raw, local.s6_addr, sizeof entry.gid.raw) == 0)
            return entry.ndev_ifindex;
    }
    return 0;
}

// With the scope of a link-local address, so that it can be connected to.
endpoint with_scope(endpoint const& e, rdma_cm_id& id) {
    if (!e.address().is_v6()) return e;
    boost::asio::ip::address_v6 address = e.address().to_v6();
    if (!address.is_link_local() || address.scope_id() != 0) return e;
    sockaddr const* const local = rdma_get_local_addr(&id);
    if (local == nullptr || local->sa_family != AF_INET6) return e;
    sockaddr_in6 here{};
    std::memcpy(&here, local, sizeof here);
    address.scope_id(
        here.sin6_scope_id != 0 ? here.sin6_scope_id : interface_of(id, here.sin6_addr)
    );
    return {address, e.port()};
}

endpoint from_sockaddr(sockaddr const* address) {
    boost::asio::ip::tcp::endpoint e;
    switch (address != nullptr ? address->sa_family : AF_UNSPEC) {
    case AF_INET: std::memcpy(e.data(), address, sizeof(sockaddr_in)); break;
    case AF_INET6: std::memcpy(e.data(), address, sizeof(sockaddr_in6)); break;
    default: return {};
    }
    return {e.address(), e.port()};
}

rdma_conn_param to_c(connection_parameters const& p) noexcept {
    rdma_conn_param out{};
    out.private_data = p.private_data.empty() ? nullptr : p.private_data.data();
    out.private_data_len = static_cast<std::uint8_t>(p.private_data.size());
    out.initiator_depth = p.initiator_depth;
    out.responder_resources = p.responder_resources;
    out.retry_count = p.retry_count;
    out.rnr_retry_count = p.rnr_retry_count;
    return out;
}

}  // namespace

id::~id() { channel_->destroy(*this); }

void id::set_sink(std::weak_ptr<event_sink> sink) { channel_->set_sink(*this, std::move(sink)); }

error_code id::bind(endpoint const& local) {
    auto const lock = channel_->lock();
    socket_address address{local};
    error_code ec = name_family(local, from_minus_one(rdma_bind_addr(raw_, address.get())));
    // The kernel's error for an address without a device.
    if (ec == boost::system::errc::no_such_device) ec = errc::no_rdma_device;
    return verbs::or_out_of_descriptors(ec);
}

error_code id::listen(int backlog) {
    auto const lock = channel_->lock();
    return from_minus_one(rdma_listen(raw_, backlog));
}

error_code id::resolve_address(
    boost::asio::ip::address const* source, endpoint const& peer, std::chrono::milliseconds timeout
) {
    auto const lock = channel_->lock();
    socket_address to{peer};
    socket_address from{source != nullptr ? endpoint{*source, 0} : endpoint{}};
    sockaddr* const from_address = source != nullptr ? from.get() : nullptr;
    int const result = rdma_resolve_addr(raw_, from_address, to.get(), as_int(timeout));
    error_code const ec = name_family(peer, from_minus_one(result));
    // iWARP refuses the loopback address, and RoCE finds no device when it resolves the route.
    bool const is_loopback = !peer.is_infiniband() && peer.address().is_loopback();
    if (is_loopback && ec == boost::system::errc::invalid_argument) return errc::no_rdma_device;
    return verbs::or_out_of_descriptors(ec);
}

error_code id::resolve_route(std::chrono::milliseconds timeout) {
    auto const lock = channel_->lock();
    return from_minus_one(rdma_resolve_route(raw_, as_int(timeout)));
}

error_code id::set_ack_timeout(std::uint8_t code) {
    auto const lock = channel_->lock();
    return from_minus_one(
        rdma_set_option(raw_, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, sizeof code)
    );
}

error_code id::set_type_of_service(std::uint8_t type) {
    auto const lock = channel_->lock();
    return from_minus_one(
        rdma_set_option(raw_, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &type, sizeof type)
    );
}

error_code id::connect(connection_parameters const& parameters) {
    auto const lock = channel_->lock();
    rdma_conn_param c = to_c(parameters);
    return from_minus_one(rdma_connect(raw_, &c));
}

error_code id::accept(connection_parameters const& parameters) {
    auto const lock = channel_->lock();
    rdma_conn_param c = to_c(parameters);
    return from_minus_one(rdma_accept(raw_, &c));
}

bool id::is_withdrawn() {
    auto const lock = channel_->lock();
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    int mask = 0;
    // The kernel returns EINVAL if the connection request no longer exists. Source:
    // cm_init_qp_init_attr() in drivers/infiniband/core/cm.c.
    return from_minus_one(rdma_init_qp_attr(raw_, &attributes, &mask)) ==
           boost::system::errc::invalid_argument;
}

unsigned id::asked_path_mtu() {
    auto const lock = channel_->lock();
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    int mask = 0;
    error_code const ec = from_minus_one(rdma_init_qp_attr(raw_, &attributes, &mask));
    return ec || (mask & IBV_QP_PATH_MTU) == 0 ? 0 : attributes.path_mtu;
}

error_code id::reject(std::span<std::byte const> private_data) {
    auto const lock = channel_->lock();
    return from_minus_one(rdma_reject(
        raw_,
        private_data.empty() ? nullptr : private_data.data(),
        static_cast<std::uint8_t>(private_data.size())
    ));
}

error_code id::disconnect() {
    auto const lock = channel_->lock();
    return from_minus_one(rdma_disconnect(raw_));
}

endpoint id::local() const {
    auto const lock = channel_->lock();
    return with_scope(from_sockaddr(rdma_get_local_addr(raw_)), *raw_);
}
endpoint id::peer() const {
    auto const lock = channel_->lock();
    return with_scope(from_sockaddr(rdma_get_peer_addr(raw_)), *raw_);
}

}  // namespace rcverbs::cm
