// null_device.hpp — a device that completes work at once without executing it: the remaining cost
// is that of the library, or of a loop in raw verbs, on the same device.
//
// Replaces the post and poll calls of the fabric's device for a while. One thread at a time uses
// the queue pair; other threads may poll the device's other completion queues meanwhile.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>

namespace bench {

class null_device {
public:
    /// Replaces the calls of this queue pair's device.
    explicit null_device(ibv_qp* qp) : context_{qp->context} {
        the_one = this;
        queue = qp->send_cq;
        device_post_send = context_->ops.post_send;
        device_poll_cq = context_->ops.poll_cq;
        context_->ops.poll_cq = poll;
        context_->ops.post_send = post;
    }
    null_device(null_device const&) = delete;
    null_device& operator=(null_device const&) = delete;
    ~null_device() {
        context_->ops.post_send = device_post_send;
        context_->ops.poll_cq = device_poll_cq;
    }

private:
    static constexpr std::uint32_t size = 256;

    static int post(ibv_qp*, ibv_send_wr* wr, ibv_send_wr**) {
        for (; wr != nullptr; wr = wr->next) {
            if ((wr->send_flags & IBV_SEND_SIGNALED) != 0)
                the_one->ids_[the_one->tail_++ % size] = wr->wr_id;
        }
        return 0;
    }
    static int poll(ibv_cq* of, int room, ibv_wc* into) {
        if (of != queue) return device_poll_cq(of, room, into);
        int count = 0;
        while (count < room && the_one->head_ != the_one->tail_) {
            into[count].wr_id = the_one->ids_[the_one->head_++ % size];
            into[count].status = IBV_WC_SUCCESS;
            into[count].opcode = IBV_WC_RDMA_WRITE;
            ++count;
        }
        return count;
    }

    static inline null_device* the_one = nullptr;
    // Another thread may still be in poll() when this object is destroyed.
    static inline ibv_cq* queue = nullptr;
    static inline int (*device_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
    static inline int (*device_poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;

    ibv_context* context_;
    std::array<std::uint64_t, size> ids_{};
    std::uint32_t head_ = 0;
    std::uint32_t tail_ = 0;
};

}  // namespace bench
