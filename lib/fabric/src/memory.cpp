// Memory regions and windows, and the access checks of their keys. Source: InfiniBand
// specification, volume 1, "Memory management".
#include "network.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace rcverbs::fabric::detail {

namespace {

constexpr int remote_changes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

bool contains(
    std::uint64_t start, std::uint64_t size, std::uint64_t at, std::uint64_t wanted
) noexcept {
    return at >= start && wanted <= size && at - start <= size - wanted;
}

// What a device answers to a region that is too large, or one too many. Source: mlx5_ib_reg_user_mr()
// in the kernel's drivers/infiniband/hw/mlx5, and ib_uverbs_reg_mr().
int refusal(device const& on, std::uint64_t size) noexcept {
    if (size > on.options.region_bytes_max) return EINVAL;
    return on.regions >= on.options.regions_max ? ENOMEM : 0;
}

// Work requests and packets carry addresses as integers.
std::uint64_t number_of(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }

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

int network::reg_mr(
    ibv_pd* pd, void* at, std::size_t size, std::uint64_t iova, int access, region*& out
) {
    auto const parent = domains_.find(pd);
    if (parent == domains_.end()) return EINVAL;
    if ((access & remote_changes) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
    if ((access & IBV_ACCESS_ON_DEMAND) != 0 &&
        !context_of(pd->context)->on->options.has_on_demand_paging) {
        return EOPNOTSUPP;
    }
    // A range that wraps around the address space cannot be pinned. Other I/O addresses than the
    // virtual address are not supported.
    if (number_of(at) + size < number_of(at) || iova != number_of(at)) return EINVAL;
    if (int const why = refusal(*context_of(pd->context)->on, size); why != 0) return why;
    auto made = std::make_unique<region>();
    made->context = pd->context;
    made->pd = pd;
    made->addr = at;
    made->length = size;
    made->access = access;
    made->iova = iova;
    made->bytes = static_cast<std::byte*>(at);
    add(*parent->second, std::move(made), out);
    return 0;
}

// A real device asks the exporter for the pages; any file that can be mapped stands in for one.
int network::reg_dmabuf_mr(
    ibv_pd* pd,
    std::uint64_t offset,
    std::size_t size,
    std::uint64_t iova,
    int fd,
    int access,
    region*& out
) {
    auto const parent = domains_.find(pd);
    if (parent == domains_.end()) return EINVAL;
    if (!context_of(pd->context)->on->options.has_dmabuf) return EOPNOTSUPP;
    if ((access & remote_changes) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
    // Source: the kernel's drivers/infiniband/core/uverbs_std_types_mr.c.
    constexpr int taken = IBV_ACCESS_LOCAL_WRITE | remote_changes | IBV_ACCESS_REMOTE_READ |
                          IBV_ACCESS_RELAXED_ORDERING;
    std::uint64_t const in_page = offset % 4096;
    if (int const why = refusal(*context_of(pd->context)->on, size); why != 0) return why;
    if ((access & ~taken) != 0 || iova % 4096 != in_page) return EINVAL;
    void* const mapping = ::mmap(
        nullptr,
        size + in_page,
        PROT_READ | PROT_WRITE,
        MAP_SHARED,
        fd,
        static_cast<off_t>(offset - in_page)
    );
    if (mapping == MAP_FAILED) return errno;
    auto made = std::make_unique<region>();
    made->context = pd->context;
    made->pd = pd;
    made->length = size;
    made->access = access;
    made->iova = iova;
    made->bytes = static_cast<std::byte*>(mapping) + in_page;
    made->mapping = mapping;
    add(*parent->second, std::move(made), out);
    return 0;
}

void network::add(domain& parent, std::unique_ptr<region> made, region*& out) {
    // Local and remote keys differ, so that using one for the other is detected.
    made->lkey = next_key_++;
    made->rkey = 0x80000000U | (next_key_++ << 8);
    out = made.get();
    local_keys_[out->lkey] = out;
    remote_keys_[out->rkey] = out;
    ++parent.users;
    ++context_of(made->context)->on->regions;
    regions_.emplace(out, std::move(made));
}

int network::dereg_mr(ibv_mr* raw) {
    auto const found = regions_.find(raw);
    if (found == regions_.end()) return EINVAL;
    if (found->second->windows > 0) return EBUSY;
    local_keys_.erase(raw->lkey);
    remote_keys_.erase(raw->rkey);
    --static_cast<domain*>(raw->pd)->users;
    --context_of(raw->context)->on->regions;
    region const& gone = *found->second;
    if (gone.mapping != nullptr)
        ::munmap(
            gone.mapping,
            gone.length +
                static_cast<std::size_t>(gone.bytes - static_cast<std::byte*>(gone.mapping))
        );
    regions_.erase(found);
    return 0;
}

int network::alloc_mw(ibv_pd* pd, ibv_mw_type type, window*& out) {
    auto const parent = domains_.find(pd);
    if (parent == domains_.end()) return EINVAL;
    bool const has_windows = context_of(pd->context)->on->options.has_memory_windows;
    if (type != IBV_MW_TYPE_2 || !has_windows) return EOPNOTSUPP;
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
    bool const is_allowed =
        is_own_key && (r.access & IBV_ACCESS_MW_BIND) != 0 && w.pd == qp.pd && r.pd == qp.pd &&
        w.to == nullptr && contains(r.iova, r.length, what.addr, what.length) &&
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
    if (found == window_keys_.end() || found->second->qp_num != qp.qp_num)
        return IBV_WC_LOC_ACCESS_ERR;
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
    bool const is_allowed = r.pd == pd &&
                            contains(r.iova, r.length, segment.addr, segment.length) &&
                            (!to_write || (r.access & IBV_ACCESS_LOCAL_WRITE) != 0);
    return is_allowed ? r.at(segment.addr) : nullptr;
}

std::byte* network::remote_bytes(
    queue_pair& qp, std::uint64_t at, std::uint64_t size, std::uint32_t rkey, int access
) {
    if ((qp.access & access) == 0) return nullptr;
    if (auto const found = window_keys_.find(rkey); found != window_keys_.end()) {
        window const& w = *found->second;
        bool const is_in_range = qp.on->options.checks_window_ranges
                                     ? contains(w.at, w.size, at, size)
                                     : contains(w.to->iova, w.to->length, at, size);
        bool const is_allowed = w.qp_num == qp.qp_num && (w.access & access) != 0 && is_in_range;
        return is_allowed ? w.to->at(at) : nullptr;
    }
    auto const found = remote_keys_.find(rkey);
    if (found == remote_keys_.end()) return nullptr;
    region const& r = *found->second;
    bool const is_allowed =
        r.pd == qp.pd && (r.access & access) != 0 && contains(r.iova, r.length, at, size);
    return is_allowed ? r.at(at) : nullptr;
}

bool network::scatter(
    ibv_pd* pd,
    std::span<ibv_sge const> segments,
    std::uint64_t offset,
    std::span<std::byte const> from
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

// The bytes from `offset` on, if they lie in one segment and its region is there.
std::optional<std::span<std::byte const>> network::find_whole(
    ibv_pd* pd, std::span<ibv_sge const> segments, std::uint64_t offset, std::size_t size
) {
    if (size == 0) return std::span<std::byte const>{};
    for (ibv_sge const& s : segments) {
        if (offset >= s.length) {
            offset -= s.length;
            continue;
        }
        std::byte const* const from =
            s.length - offset < size ? nullptr : local_bytes(pd, s, false);
        if (from == nullptr) return std::nullopt;
        return std::span{from + offset, size};
    }
    return std::nullopt;
}

bool network::gather(
    ibv_pd* pd, std::span<ibv_sge const> segments, std::uint64_t offset, std::span<std::byte> into
) {
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
