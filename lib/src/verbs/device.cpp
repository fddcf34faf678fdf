#include "verbs/device.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "error/detailed_error.hpp"
#include "verbs/errno_map.hpp"

namespace rcverbs::verbs {

namespace {

// The list is freed as soon as a device is open: an open device remains valid. Source:
// ibv_get_device_list(3), NOTES.
struct free_list {
    void operator()(ibv_device** list) const noexcept { ibv_free_device_list(list); }
};
using device_list = std::unique_ptr<ibv_device*, free_list>;

device_list list_devices(int& count, error_code& ec) {
    device_list list{ibv_get_device_list(&count)};
    ec = or_unavailable(from_pointer(list.get()));
    return list;
}

// One count for each device, by name, for as long as the process runs.
std::atomic<std::size_t>& count_of_regions(std::string const& name) {
    struct all_counts {
        std::mutex mutex;
        std::map<std::string, std::atomic<std::size_t>> by_name;
    };
    static auto& all = *new all_counts;  // never destroyed: regions may outlive statics
    std::lock_guard const lock{all.mutex};
    return all.by_name[name];
}

std::uint32_t positive(int value) noexcept {
    return value > 0 ? static_cast<std::uint32_t>(value) : 0;
}

}  // namespace

int worth_of(gid_bytes const& gid, bool is_roce_v1, std::optional<gid_bytes> const& peer) noexcept {
    enum class family { none, link_local, ipv6, ipv4 };
    auto const family_of = [](gid_bytes const& g) {
        auto const is_zero = [](std::uint8_t b) { return b == 0; };
        if (std::all_of(g.begin(), g.end(), is_zero)) return family::none;
        bool const is_mapped =
            std::all_of(g.begin(), g.begin() + 10, is_zero) && g[10] == 0xff && g[11] == 0xff;
        if (is_mapped) return family::ipv4;
        return g[0] == 0xfe && (g[1] & 0xc0U) == 0x80 ? family::link_local : family::ipv6;
    };
    family const own = family_of(gid);
    if (own == family::none) return 0;
    bool const is_of_peer = peer && family_of(*peer) == own;
    return (is_roce_v1 ? 0 : 8) + (is_of_peer ? 4 : 0) + static_cast<int>(own);
}

port_address find_address(ibv_context* context, wanted_address const& wanted, error_code& ec) {
    port_address found;
    ibv_device_attr device{};
    ec = from_returned_code(ibv_query_device(context, &device));
    int best = 0;
    std::uint8_t const ports = wanted.index ? 1 : device.phys_port_cnt;
    for (std::uint8_t number = 1; number <= ports && !ec; ++number) {
        ibv_port_attr port{};
        ec = from_returned_code(ibv_query_port(context, number, &port));
        int const count = ec ? 0 : std::min(port.gid_tbl_len, 256);
        for (int i = 0; i < count; ++i) {
            if (wanted.index && i != *wanted.index) continue;
            ibv_gid_entry entry{};
            bool const is_typed =
                ibv_query_gid_ex(context, number, static_cast<std::uint32_t>(i), &entry, 0) == 0;
            if (!is_typed && ibv_query_gid(context, number, i, &entry.gid) != 0) continue;
            gid_bytes gid{};
            std::copy(std::begin(entry.gid.raw), std::end(entry.gid.raw), gid.begin());
            if (wanted.exactly && gid != *wanted.exactly) continue;
            bool const is_roce_v1 = is_typed && entry.gid_type == IBV_GID_TYPE_ROCE_V1;
            int worth = worth_of(gid, is_roce_v1, wanted.peer);
            if (worth > 0 && port.state == IBV_PORT_ACTIVE) worth += 16;
            if (worth <= best) continue;
            best = worth;
            found = {
                gid,
                number,
                static_cast<std::uint8_t>(i),
                port.lid,
                static_cast<std::uint8_t>(port.active_mtu)};
        }
    }
    if (!ec && best == 0) ec = errc::invalid_option;
    return found;
}

std::uint8_t encode_mtu(std::uint32_t bytes) noexcept {
    std::uint8_t code = IBV_MTU_256;
    for (std::uint32_t each = 256; each <= 4096; each *= 2, ++code)
        if (each == bytes) return code;
    return 0;
}

std::optional<unsigned> path_mtu_max(ibv_context* context, std::uint32_t port, error_code& ec) {
    ibv_port_attr found{};
    ec = from_returned_code(ibv_query_port(context, static_cast<std::uint8_t>(port), &found));
    bool const has_own = context->device->transport_type == IBV_TRANSPORT_IB &&
                         found.link_layer == IBV_LINK_LAYER_ETHERNET;
    return !ec && has_own ? std::optional<unsigned>{found.active_mtu} : std::nullopt;
}

device device::query(device_context context, error_code& ec) {
    device d;
    d.context_ = std::move(context);
    d.read_limits(ec);
    return d;
}

device device::open(std::string const& name, error_code& ec) {
    device d;
    int count = 0;
    device_list const list = list_devices(count, ec);
    if (ec) return d;
    ibv_device** const end = list.get() + count;
    ibv_device** const found = std::find_if(list.get(), end, [&](ibv_device* candidate) {
        return name == ibv_get_device_name(candidate);
    });
    if (found == end) {
        ec = errc::no_rdma_device;
        return d;
    }
    device_handle opened{ibv_open_device(*found)};
    ec = from_pointer(opened.get());
    return ec ? d : query(std::move(opened), ec);
}

std::string device::name() const { return ibv_get_device_name(context_->device); }

void device::read_limits(error_code& ec) {
    ibv_device_attr_ex all{};
    ec = from_returned_code(ibv_query_device_ex(context_.get(), nullptr, &all));
    if (ec) return;
    ibv_device_attr const& attributes = all.orig_attr;
    ibv_port_attr port{};
    ec = from_returned_code(ibv_query_port(context_.get(), 1, &port));
    if (ec) return;
    open_regions_ = &count_of_regions(name());
    // Source: RXE_VENDOR_ID in drivers/infiniband/sw/rxe/rxe_param.h.
    forgets_posted_work_ = attributes.vendor_id == 0xFFFFFF;
    // Source: SIW_VENDOR_ID in drivers/infiniband/sw/siw/siw.h.
    is_soft_iwarp_ = attributes.vendor_id == 0x626d74;
    limits_.queue_depth_max = positive(attributes.max_qp_wr);
    limits_.completion_queue_depth_max = positive(attributes.max_cqe);
    limits_.segments_max = positive(attributes.max_sge);
    if (attributes.max_sge_rd > 0) read_segments_max_ = positive(attributes.max_sge_rd);
    limits_.initiator_depth_max = std::min(positive(attributes.max_qp_init_rd_atom), 255U);
    limits_.responder_resources_max = std::min(positive(attributes.max_qp_rd_atom), 255U);
    limits_.region_bytes_max = attributes.max_mr_size;
    limits_.regions_max = positive(attributes.max_mr);
    limits_.message_bytes_max = port.max_msg_sz;
    limits_.has_atomics = attributes.atomic_cap != IBV_ATOMIC_NONE;
    limits_.has_atomics_against_cpu = attributes.atomic_cap == IBV_ATOMIC_GLOB;
    limits_.has_immediate_data = !is_iwarp();
    // Source: ibv_query_device(3); the InfiniBand specification ties the operation to the base
    // memory management extensions.
    limits_.has_send_with_invalidate =
        (attributes.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS) != 0;
    // Source: ibv_query_device(3), ibv_alloc_mw(3).
    limits_.has_memory_windows =
        (attributes.device_cap_flags &
         (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
    constexpr std::uint32_t paged =
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
    limits_.has_on_demand_paging = (all.odp_caps.general_caps & IBV_ODP_SUPPORT) != 0 &&
                                   (all.odp_caps.per_transport_caps.rc_odp_caps & paged) == paged;
    limits_.completion_vectors = std::max(positive(context_->num_comp_vectors), 1U);
    limits_.shared_receive_depth_max = attributes.max_srq > 0 ? positive(attributes.max_srq_wr) : 0;
}

}  // namespace rcverbs::verbs

namespace rcverbs {

void prepare_for_fork(error_code& ec) noexcept {
    // If the kernel copies pinned pages, ibv_fork_init is not needed, and it would still remove
    // these pages from child processes.
    bool const is_needed = ibv_is_fork_initialized() != IBV_FORK_UNNEEDED;
    ec = is_needed ? verbs::from_returned_code(ibv_fork_init()) : error_code{};
}

void prepare_for_fork() {
    error_code ec;
    prepare_for_fork(ec);
    detail::throw_if(ec, "prepare_for_fork");
}

std::vector<device_info> devices() {
    error_code ec;
    int count = 0;
    std::vector<device_info> found;
    verbs::device_list const list = verbs::list_devices(count, ec);
    if (ec) throw boost::system::system_error{ec, "ibv_get_device_list"};
    for (int i = 0; i < count; ++i) {
        std::string name = ibv_get_device_name(list.get()[i]);
        verbs::device const opened = verbs::device::open(name, ec);
        // A device that cannot be opened (no permission, just unplugged) is not listed.
        if (!ec) found.push_back({std::move(name), opened.limits()});
    }
    return found;
}

}  // namespace rcverbs
