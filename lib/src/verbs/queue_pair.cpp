#include "verbs/queue_pair.hpp"

#include <rdma/rdma_cma.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "verbs/errno_map.hpp"

namespace rcverbs::verbs {

queue_pair::queue_pair(
    rdma_cm_id* id, ibv_pd* domain, ibv_cq* completions, queue_sizes& sizes, error_code& ec
) {
    for (;;) {
        ec = create(id, domain, completions, sizes, qp_);
        if (!ec) id_ = id;
        if (ec != boost::system::errc::invalid_argument || sizes.inline_bytes == 0) return;
        // A device does not report its inline limit; the only indication is EINVAL. Less than 16
        // bytes are not worth requesting.
        sizes.inline_bytes = sizes.inline_bytes >= 32 ? sizes.inline_bytes / 2 : 0;
    }
}

error_code queue_pair::create(
    rdma_cm_id* id, ibv_pd* domain, ibv_cq* completions, queue_sizes const& sizes, ibv_qp*& made
) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = completions;
    attributes.recv_cq = completions;
    attributes.srq = sizes.shared_receives;
    attributes.qp_type = IBV_QPT_RC;
    attributes.sq_sig_all = 0;
    attributes.cap.max_send_wr = sizes.send_depth;
    attributes.cap.max_recv_wr = sizes.receive_depth;
    attributes.cap.max_send_sge = sizes.send_segments;
    attributes.cap.max_recv_sge = sizes.receive_segments;
    attributes.cap.max_inline_data = sizes.inline_bytes;
    if (id == nullptr) {
        made = ibv_create_qp(domain, &attributes);
        return from_pointer(made);
    }
    error_code const ec = from_minus_one(rdma_create_qp(id, domain, &attributes));
    if (!ec) made = id->qp;
    return ec;
}

error_code queue_pair::initialise(std::uint8_t port) noexcept {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.pkey_index = 0;
    attributes.port_num = port;
    attributes.qp_access_flags =
        IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    return from_returned_code(ibv_modify_qp(
        qp_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
    ));
}

void queue_pair::offer_enhancements(queue_pair_address& own) noexcept {
    ibv_ece offered{};
    if (ibv_query_ece(qp_, &offered) != 0) return;
    own.ece_vendor = offered.vendor_id;
    own.ece_options = offered.options;
}

error_code queue_pair::connect(
    queue_pair_address const& own, queue_pair_address const& peer, path_terms const& terms
) noexcept {
    // The device takes those that it has, too. One that refuses connects without them.
    if (own.ece_vendor != 0 && own.ece_vendor == peer.ece_vendor) {
        ibv_ece theirs{peer.ece_vendor, peer.ece_options, 0};
        static_cast<void>(ibv_set_ece(qp_, &theirs));
    }
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = static_cast<ibv_mtu>(std::min(own.mtu, peer.mtu));
    a.dest_qp_num = peer.queue_pair_number;
    a.rq_psn = peer.starting_psn;
    a.max_dest_rd_atomic = std::min(terms.responder_resources, peer.initiator_depth);
    a.min_rnr_timer = terms.min_rnr_timer_code;
    a.ah_attr.is_global = 1;
    std::memcpy(a.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    a.ah_attr.grh.sgid_index = terms.gid_index;
    a.ah_attr.grh.traffic_class = terms.traffic_class;
    a.ah_attr.grh.flow_label = terms.flow_label;
    a.ah_attr.grh.hop_limit = terms.hop_limit;
    a.ah_attr.sl = terms.service_level;
    a.ah_attr.dlid = peer.lid;
    a.ah_attr.port_num = terms.port;
    error_code const ec = from_returned_code(ibv_modify_qp(
        qp_,
        &a,
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
    ));
    if (ec) return ec;
    a.qp_state = IBV_QPS_RTS;
    a.timeout = terms.ack_timeout_code;
    a.retry_cnt = terms.retry_count;
    a.rnr_retry = peer.rnr_retry_count;
    a.sq_psn = own.starting_psn;
    a.max_rd_atomic = std::min(terms.initiator_depth, peer.responder_resources);
    return from_returned_code(ibv_modify_qp(
        qp_,
        &a,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
            IBV_QP_MAX_QP_RD_ATOMIC
    ));
}

error_code queue_pair::move_to_error() noexcept {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    return from_returned_code(ibv_modify_qp(qp_, &attributes, IBV_QP_STATE));
}

void queue_pair::kick_send_queue() noexcept {
    ibv_sge more_than_fits{0, std::numeric_limits<std::int32_t>::max(), 0};
    ibv_send_wr refused{};
    refused.opcode = IBV_WR_RDMA_WRITE;
    refused.send_flags = IBV_SEND_INLINE;
    refused.sg_list = &more_than_fits;
    refused.num_sge = 1;
    ibv_send_wr* bad = nullptr;
    static_cast<void>(post_send(&refused, &bad));
}

error_code queue_pair::set_min_rnr_timer(std::uint8_t code) noexcept {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.min_rnr_timer = code;
    return from_returned_code(ibv_modify_qp(qp_, &attributes, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER));
}

error_code queue_pair::set_remote_access(int ibv_access) noexcept {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.qp_access_flags = static_cast<unsigned>(ibv_access);
    return from_returned_code(ibv_modify_qp(qp_, &attributes, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
}

bool queue_pair::has_gid(std::uint8_t const* gid) noexcept {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    // A failed query is no reason to end a connection.
    if (from_returned_code(ibv_query_qp(qp_, &attributes, IBV_QP_AV | IBV_QP_PORT, &initial)))
        return true;
    ibv_gid now{};
    int const index = attributes.ah_attr.grh.sgid_index;
    if (ibv_query_gid(qp_->context, attributes.port_num, index, &now) != 0) return false;
    return std::memcmp(now.raw, gid, sizeof now.raw) == 0;
}

queue_pair_state queue_pair::query(error_code& ec) const noexcept {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    int const wanted = IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC;
    ec = from_returned_code(ibv_query_qp(qp_, &attributes, wanted, &initial));
    return {
        attributes.max_rd_atomic,
        attributes.max_dest_rd_atomic,
        attributes.qp_state == IBV_QPS_ERR};
}

bool queue_pair::is_in_error_state() const noexcept {
    error_code ec;
    return qp_ != nullptr && query(ec).is_error && !ec;
}

error_code queue_pair::destroy() noexcept {
    if (qp_ == nullptr) return {};
    // rdma_destroy_qp reports no errors, so call the function that it wraps.
    rdma_cm_id* const id = std::exchange(id_, nullptr);
    error_code const ec = from_returned_code(ibv_destroy_qp(std::exchange(qp_, nullptr)));
    if (id != nullptr) id->qp = nullptr;
    return ec;
}

std::uint8_t encode_rnr_timer(std::chrono::nanoseconds delay) noexcept {
    // Codes 1 to 31 in units of 10 us; code 0 stands for 655.36 ms. Source: InfiniBand
    // specification, table of RNR NAK timer field encodings; ibv_modify_qp(3).
    constexpr std::array<std::uint32_t, 31> tens_of_us{
        1,    2,    3,    4,    6,     8,     12,    16,    24,   32,   48,
        64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    for (std::size_t i = 0; i < tens_of_us.size(); ++i) {
        if (std::chrono::microseconds{10} * tens_of_us[i] >= delay)
            return static_cast<std::uint8_t>(i + 1);
    }
    return 0;
}

std::chrono::nanoseconds decode_ack_timeout(std::uint8_t code) noexcept {
    return std::chrono::nanoseconds{4096} * (std::int64_t{1} << code);
}

std::uint8_t encode_ack_timeout(std::chrono::nanoseconds timeout) noexcept {
    std::uint8_t code = 1;
    // The field has 5 bits. Source: ibv_modify_qp(3).
    while (code < 31 && decode_ack_timeout(code) < timeout) ++code;
    return code;
}

std::uint8_t ack_timeout_within(std::chrono::nanoseconds timeout) noexcept {
    std::uint8_t code = 31;
    while (code > 1 && decode_ack_timeout(code) > timeout) --code;
    return code;
}

}  // namespace rcverbs::verbs
