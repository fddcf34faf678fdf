// Regions and windows: what a key opens, and for whom. Source: InfiniBand specification, volume 1, "Memory management".
#include "network.hpp"

#include <cerrno>
#include <cstring>

namespace rcverbs::fabric::detail {

namespace {

constexpr int remote_changes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

bool contains(std::uint64_t start, std::uint64_t size, std::uint64_t at, std::uint64_t wanted) noexcept {
    return at >= start && wanted <= size && at - start <= size - wanted;
}

// Addresses travel as numbers.
std::uint64_t number_of(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
std::byte* pointer_of(std::uint64_t at) noexcept { return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(at)); }

}  // namespace

int network::alloc_pd(ibv_context* in, domain*& out) {
    auto made = std::make_unique<domain>();
    made->context = in;
    out = made.get();
    domains_.emplace(out, std::move(made));
    return 0;
}

int network::dealloc_pd(ibv_pd* raw) {
    auto const found = domains_.find(raw);
    if (found == domains_.end()) return EINVAL;
    if (found->second->users > 0) return EBUSY;
    domains_.erase(found);
    return 0;
}

int network::reg_mr(ibv_pd* pd, void* at, std::size_t size, std::uint64_t iova, int access, region*& out) {
    auto const parent = domains_.find(pd);
    if (parent == domains_.end()) return EINVAL;
    if ((access & remote_changes) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
    // Only what a program may address can be pinned; addresses that wrap cannot.
    if (number_of(at) + size < number_of(at) || iova != number_of(at)) return EINVAL;
    auto made = std::make_unique<region>();
    made->context = pd->context;
    made->pd = pd;
    made->addr = at;
    made->length = size;
    made->access = access;
    // Local and remote keys differ, so that one taken for the other is found.
    made->lkey = next_key_++;
    made->rkey = 0x80000000U | (next_key_++ << 8);
    out = made.get();
    local_keys_[out->lkey] = out;
    remote_keys_[out->rkey] = out;
    ++parent->second->users;
    regions_.emplace(out, std::move(made));
    return 0;
}

int network::dereg_mr(ibv_mr* raw) {
    auto const found = regions_.find(raw);
    if (found == regions_.end()) return EINVAL;
    if (found->second->windows > 0) return EBUSY;
    local_keys_.erase(raw->lkey);
    remote_keys_.erase(raw->rkey);
    --static_cast<domain*>(raw->pd)->users;
    regions_.erase(found);
    return 0;
}

int network::alloc_mw(ibv_pd* pd, ibv_mw_type type, window*& out) {
    auto const parent = domains_.find(pd);
    if (parent == domains_.end()) return EINVAL;
    if (type != IBV_MW_TYPE_2) return EOPNOTSUPP;
    auto made = std::make_unique<window>();
    made->context = pd->context;
    made->pd = pd;
    made->type = type;
    made->rkey = 0x80000000U | (next_key_++ << 8);
    made->created_rkey = made->rkey;
    out = made.get();
    ++parent->second->users;
    windows_.emplace(out, std::move(made));
    return 0;
}

int network::dealloc_mw(ibv_mw* raw) {
    auto const found = windows_.find(raw);
    if (found == windows_.end()) return EINVAL;
    window& w = *found->second;
    if (w.to != nullptr) --w.to->windows;
    if (w.to != nullptr) window_keys_.erase(w.bound_rkey);
    --static_cast<domain*>(w.pd)->users;
    windows_.erase(found);
    return 0;
}

ibv_wc_status network::bind_window(queue_pair& qp, ibv_send_wr const& wr) {
    auto const found = windows_.find(wr.bind_mw.mw);
    ibv_mw_bind_info const& what = wr.bind_mw.bind_info;
    auto const parent = regions_.find(what.mr);
    if (found == windows_.end() || parent == regions_.end()) return IBV_WC_MW_BIND_ERR;
    window& w = *found->second;
    region& r = *parent->second;
    auto const access = static_cast<int>(what.mw_access_flags);
    bool const is_own_key = (wr.bind_mw.rkey ^ w.created_rkey) >> 8 == 0;
    bool const is_allowed = is_own_key && (r.access & IBV_ACCESS_MW_BIND) != 0 && w.pd == qp.pd && r.pd == qp.pd && w.to == nullptr &&
                            contains(number_of(r.addr), r.length, what.addr, what.length) &&
                            ((access & remote_changes) == 0 || (r.access & IBV_ACCESS_LOCAL_WRITE) != 0);
    if (!is_allowed) return IBV_WC_MW_BIND_ERR;
    w.to = &r;
    w.at = what.addr;
    w.size = what.length;
    w.access = access;
    w.qp_num = qp.qp_num;
    w.bound_rkey = wr.bind_mw.rkey;
    window_keys_[w.bound_rkey] = &w;
    ++r.windows;
    return IBV_WC_SUCCESS;
}

ibv_wc_status network::invalidate(queue_pair& qp, std::uint32_t rkey) {
    auto const found = window_keys_.find(rkey);
    if (found == window_keys_.end() || found->second->qp_num != qp.qp_num) return IBV_WC_LOC_ACCESS_ERR;
    window& w = *found->second;
    --w.to->windows;
    w.to = nullptr;
    window_keys_.erase(found);
    return IBV_WC_SUCCESS;
}

std::byte* network::local_bytes(ibv_pd* pd, ibv_sge const& segment, bool to_write) {
    auto const found = local_keys_.find(segment.lkey);
    if (found == local_keys_.end()) return nullptr;
    region const& r = *found->second;
    bool const is_allowed = r.pd == pd && contains(number_of(r.addr), r.length, segment.addr, segment.length) &&
                            (!to_write || (r.access & IBV_ACCESS_LOCAL_WRITE) != 0);
    return is_allowed ? pointer_of(segment.addr) : nullptr;
}

std::byte* network::remote_bytes(
    queue_pair& qp, std::uint64_t at, std::uint64_t size, std::uint32_t rkey, int access
) {
    if ((qp.access & access) == 0) return nullptr;
    if (auto const found = window_keys_.find(rkey); found != window_keys_.end()) {
        window const& w = *found->second;
        bool const is_allowed = w.qp_num == qp.qp_num && (w.access & access) != 0 && contains(w.at, w.size, at, size);
        return is_allowed ? pointer_of(at) : nullptr;
    }
    auto const found = remote_keys_.find(rkey);
    if (found == remote_keys_.end()) return nullptr;
    region const& r = *found->second;
    bool const is_allowed =
        r.pd == qp.pd && (r.access & access) != 0 && contains(number_of(r.addr), r.length, at, size);
    return is_allowed ? pointer_of(at) : nullptr;
}

bool network::scatter(
    ibv_pd* pd, std::span<ibv_sge const> segments, std::uint64_t offset, std::span<std::byte const> from
) {
    for (ibv_sge const& s : segments) {
        if (from.empty()) return true;
        if (offset >= s.length) {
            offset -= s.length;
            continue;
        }
        std::byte* const to = local_bytes(pd, s, true);
        if (to == nullptr) return false;
        std::size_t const size = std::min<std::size_t>(s.length - offset, from.size());
        std::memcpy(to + offset, from.data(), size);
        from = from.subspan(size);
        offset = 0;
    }
    return from.empty();
}

bool network::gather(ibv_pd* pd, std::span<ibv_sge const> segments, std::uint64_t offset, std::span<std::byte> into) {
    for (ibv_sge const& s : segments) {
        if (into.empty()) return true;
        if (offset >= s.length) {
            offset -= s.length;
            continue;
        }
        std::byte const* const from = local_bytes(pd, s, false);
        if (from == nullptr) return false;
        std::size_t const size = std::min<std::size_t>(s.length - offset, into.size());
        std::memcpy(into.data(), from + offset, size);
        into = into.subspan(size);
        offset = 0;
    }
    return into.empty();
}

}  // namespace rcverbs::fabric::detail
