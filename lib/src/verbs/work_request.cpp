#include "verbs/work_request.hpp"

#include <algorithm>

namespace rcverbs::verbs {

using detail::operation_kind;

namespace {

// Advances `at` past the next piece and passes its parts to `take(slice, offset, size)`. Returns
// true at the end of the request.
template <class Take>
bool next_piece(
    detail::work_request const& what,
    detail::progress_mark& at,
    piece_limits const& limits,
    Take&& take
) noexcept {
    std::uint64_t room = limits.bytes_max;
    std::size_t const segments_max = what.kind == operation_kind::read
                                         ? std::min(limits.segments_max, limits.read_segments_max)
                                         : limits.segments_max;
    for (std::size_t taken = 0;
         at.slice_index < what.local.count() && taken < segments_max && room > 0;) {
        detail::plain_slice const& slice = what.local[at.slice_index];
        auto const size =
            static_cast<std::size_t>(std::min<std::uint64_t>(slice.size - at.slice_offset, room));
        if (size > 0) {
            take(slice, at.slice_offset, size);
            ++taken;
        }
        room -= size;
        at.size_bytes += size;
        at.slice_offset += size;
        if (at.slice_offset == slice.size) {
            ++at.slice_index;
            at.slice_offset = 0;
        }
    }
    return at.size_bytes == what.local.size();
}

}  // namespace

std::size_t count_segments(detail::work_request const& what) noexcept {
    std::size_t count = 0;
    for (detail::plain_slice const& each : what.local.all()) count += each.size > 0 ? 1 : 0;
    return count;
}

std::size_t count_pieces(detail::work_request const& what, piece_limits const& limits) noexcept {
    if (what.local.count() <= 1 && what.local.size() <= limits.bytes_max) return 1;
    detail::progress_mark at;
    std::size_t count = 1;
    while (!next_piece(what, at, limits, [](detail::plain_slice const&, std::size_t, std::size_t) {
    }))
        ++count;
    return count;
}

bool build(
    ibv_send_wr& out,
    ibv_sge* segments,
    detail::work_request const& what,
    detail::progress_mark& at,
    piece_limits const& limits
) noexcept {
    std::uint64_t const offset = at.size_bytes;
    int count = 0;
    bool const is_last = next_piece(
        what,
        at,
        limits,
        [&](detail::plain_slice const& slice, std::size_t from, std::size_t size) {
            segments[count++] = segment_of(slice, from, size);
        }
    );
    out.sg_list = segments;
    out.num_sge = count;
    fill(out, what, offset, is_last);
    return is_last;
}

void build(ibv_recv_wr& out, ibv_sge* segments, detail::work_request const& what) noexcept {
    out.sg_list = segments;
    out.num_sge = 0;
    for (detail::plain_slice const& each : what.local.all()) {
        // No message is longer than a segment, so none reaches what is left out.
        std::size_t const size = std::min<std::size_t>(each.size, segment_bytes_max);
        if (size > 0) segments[out.num_sge++] = segment_of(each, 0, size);
    }
}

receive_result read_arrival(ibv_wc const& completion) noexcept {
    receive_result arrival;
    arrival.size_bytes = completion.byte_len;
    arrival.is_write = completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    arrival.queue_pair_number = completion.qp_num;
    if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0)
        arrival.immediate = ntohl(completion.imm_data);
    if ((completion.wc_flags & IBV_WC_WITH_INV) != 0)
        arrival.invalidated = remote_key{completion.invalidated_rkey};
    return arrival;
}

}  // namespace rcverbs::verbs
