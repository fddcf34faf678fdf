// Whether a device checks the range of a memory window.
#include <rcverbs/experimental/window.hpp>

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <rcverbs/queue_pair_address.hpp>

#include "verbs/device.hpp"
#include "verbs/domain.hpp"
#include "verbs/errno_map.hpp"
#include "verbs/handles.hpp"
#include "verbs/memory_window.hpp"
#include "verbs/queue_pair.hpp"

namespace rcverbs::verbs {

namespace {

using std::chrono::steady_clock;

constexpr std::size_t half_bytes = 4096;

using window_handle = memory_window::handle;

// Two queue pairs of one domain, connected to each other. Members parents first.
class loop {
public:
    loop(device const& on, error_code& ec) : domain_{ibv_alloc_pd(on.context().get())} {
        ec = from_pointer(domain_.get());
        if (ec) return;
        events_.reset(ibv_create_comp_channel(on.context().get()));
        ec = from_pointer(events_.get());
        if (ec) return;
        completions_.reset(ibv_create_cq(on.context().get(), 16, nullptr, events_.get(), 0));
        ec = from_pointer(completions_.get());
        if (ec) return;
        constexpr int access =
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;
        region_.reset(ibv_reg_mr(domain_.get(), memory_.data(), memory_.size(), access));
        ec = from_pointer(region_.get());
        for (queue_pair* const qp : {&writer_, &target_}) {
            if (ec) return;
            queue_sizes sizes{4, 1, 1, 1, 0, nullptr};
            *qp = queue_pair{nullptr, domain_.get(), completions_.get(), sizes, ec};
        }
        if (!ec) connect(on, ec);
        if (ec) return;
        window_.reset(ibv_alloc_mw(domain_.get(), IBV_MW_TYPE_2));
        ec = from_pointer(window_.get());
    }

    // Opens the first half to the other queue pair.
    bool bind(steady_clock::time_point until) {
        key_ = ibv_inc_rkey(window_->rkey);
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.bind_mw = {
            window_.get(), key_, {region_.get(), address(0), half_bytes, IBV_ACCESS_REMOTE_WRITE}};
        return execute(target_, wr, until) == IBV_WC_SUCCESS;
    }
    // Writes eight bytes at an offset of the memory.
    std::optional<ibv_wc_status> write(std::size_t offset, steady_clock::time_point until) {
        ibv_sge from{address(memory_.size() - 8), 8, region_->lkey};
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.sg_list = &from;
        wr.num_sge = 1;
        wr.wr.rdma = {address(offset), key_};
        return execute(writer_, wr, until);
    }

private:
    std::uint64_t address(std::size_t offset) noexcept {
        return reinterpret_cast<std::uintptr_t>(memory_.data()) + offset;
    }

    void connect(device const& on, error_code& ec) {
        port_address const port = find_address(on.context().get(), {}, ec);
        for (queue_pair* const qp : {&writer_, &target_})
            if (!ec) ec = qp->initialise(port.port);
        if (ec) return;
        auto const address_of = [&](queue_pair const& qp) {
            queue_pair_address a;
            a.queue_pair_number = qp.get()->qp_num;
            a.gid = port.gid;
            a.lid = port.lid;
            a.mtu = port.mtu;
            a.initiator_depth = a.responder_resources = 1;
            return a;
        };
        path_terms terms;
        terms.port = port.port;
        terms.gid_index = port.gid_index;
        terms.initiator_depth = terms.responder_resources = 1;
        terms.ack_timeout_code = encode_ack_timeout(std::chrono::milliseconds{16});
        terms.retry_count = 7;
        ec = writer_.connect(address_of(writer_), address_of(target_), terms);
        if (!ec) ec = target_.connect(address_of(target_), address_of(writer_), terms);
    }

    std::optional<ibv_wc_status> execute(
        queue_pair& by, ibv_send_wr& wr, steady_clock::time_point until
    ) {
        ibv_send_wr* bad = nullptr;
        if (by.post_send(&wr, &bad) != 0) return {};
        while (steady_clock::now() < until) {
            // Armed before it is polled, so that no completion is missed.
            if (ibv_req_notify_cq(completions_.get(), 0) != 0) return {};
            ibv_wc wc{};
            int const count = ibv_poll_cq(completions_.get(), 1, &wc);
            if (count < 0) return {};
            if (count > 0) return wc.status;
            await_event();
            by.kick_send_queue();
        }
        return {};
    }

    // At most a millisecond.
    void await_event() noexcept {
        pollfd which{events_->fd, POLLIN, 0};
        if (::poll(&which, 1, 1) <= 0) return;
        ibv_cq* from = nullptr;
        void* context = nullptr;
        if (ibv_get_cq_event(events_.get(), &from, &context) == 0) ibv_ack_cq_events(from, 1);
    }

    alignas(half_bytes) std::array<std::byte, 2 * half_bytes> memory_{};
    domain_handle domain_;
    channel_handle events_;
    cq_handle completions_;
    region_handle region_;
    queue_pair writer_;
    queue_pair target_;
    // Destroyed first: SoftRoCE takes 50 s to destroy a queue pair with a bound window.
    window_handle window_;
    std::uint32_t key_ = 0;
};

}  // namespace

}  // namespace rcverbs::verbs

namespace rcverbs {

bool checks_window_range(protection_domain const& on) noexcept {
    constexpr std::chrono::seconds patience{1};
    verbs::device const& device = detail::access::impl_of(on)->on();
    if (!device.limits().has_memory_windows) return false;
    try {
        error_code ec;
        auto const trial = std::make_unique<verbs::loop>(device, ec);
        auto const until = std::chrono::steady_clock::now() + patience;
        if (ec || !trial->bind(until)) return false;
        // A window that opens nothing would prove nothing.
        if (trial->write(0, until) != IBV_WC_SUCCESS) return false;
        return trial->write(verbs::half_bytes, until) == IBV_WC_REM_ACCESS_ERR;
    } catch (...) {
        return false;  // no memory
    }
}

}  // namespace rcverbs
