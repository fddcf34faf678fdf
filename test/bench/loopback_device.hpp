// loopback_device.hpp — a device whose sends arrive at once in the receives of the other queue pair: what
// remains is the cost of the library, or of a loop in raw verbs, on the same device.
//
// Replaces the post and poll calls of the fabric's device. One thread uses everything.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

namespace bench {

class loopback_device {
public:
    /// Replaces the calls of these contexts, before the queue pairs are made that join() names.
    loopback_device(ibv_context* a, ibv_context* b) : device_poll_cq_{a->ops.poll_cq} {
        the_one = this;
        replace(a);
        replace(b);
    }
    loopback_device(loopback_device const&) = delete;
    loopback_device& operator=(loopback_device const&) = delete;

    /// What one of the queue pairs sends arrives at the other one.
    void join(ibv_qp* a, ibv_qp* b) {
        side& one = side_of(a);
        side& other = side_of(b);
        one.peer = &other;
        other.peer = &one;
        sides_by_queue_.push_back(&one);
        sides_by_queue_.push_back(&other);
    }
    /// Calls `run` while this queue pair's completion queue is polled and empty, unless it returns false.
    void when_empty(ibv_qp* of, std::function<bool()> run) {
        side_of(of).when_empty = std::move(run);
    }

private:
    static constexpr std::uint32_t size = 256;

    struct receive {
        std::uint64_t id;
        std::byte* place;
    };
    // A queue pair with a completion queue of its own.
    struct side {
        ibv_qp* qp = nullptr;
        side* peer = nullptr;
        std::array<receive, size> receives;
        std::uint32_t first_receive = 0;
        std::uint32_t receive_count = 0;
        std::array<ibv_wc, size> completions;
        std::uint32_t head = 0;
        std::uint32_t tail = 0;
        std::function<bool()> when_empty;

        void complete(std::uint64_t id, ibv_wc_opcode what, std::uint32_t bytes) {
            ibv_wc& wc = completions[tail++ % size];
            wc.wr_id = id;
            wc.status = IBV_WC_SUCCESS;
            wc.opcode = what;
            wc.byte_len = bytes;
            wc.qp_num = qp->qp_num;
            wc.wc_flags = 0;
        }
    };

    static void replace(ibv_context* context) {
        context->ops.post_send = post_send;
        context->ops.post_recv = post_receive;
        context->ops.poll_cq = poll;
    }
    side& side_of(ibv_qp* qp) {
        for (auto const& each : sides_) {
            if (each->qp == qp) return *each;
        }
        sides_.push_back(std::make_unique<side>());
        sides_.back()->qp = qp;
        return *sides_.back();
    }

    static int post_receive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr**) {
        side& to = the_one->side_of(qp);
        for (; wr != nullptr; wr = wr->next) {
            std::uint32_t const at = to.first_receive + to.receive_count++;
            to.receives[at % size] = {wr->wr_id, reinterpret_cast<std::byte*>(wr->sg_list->addr)};
        }
        return 0;
    }
    static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr**) {
        side& from = the_one->side_of(qp);
        side& to = *from.peer;
        for (; wr != nullptr; wr = wr->next) {
            if (to.receive_count == 0) throw std::runtime_error{"no receive"};
            --to.receive_count;
            receive const& r = to.receives[to.first_receive++ % size];
            std::memcpy(r.place, reinterpret_cast<void*>(wr->sg_list->addr), wr->sg_list->length);
            to.complete(r.id, IBV_WC_RECV, wr->sg_list->length);
            if ((wr->send_flags & IBV_SEND_SIGNALED) != 0) from.complete(wr->wr_id, IBV_WC_SEND, 0);
        }
        return 0;
    }
    static int poll(ibv_cq* of, int room, ibv_wc* into) {
        for (side* const s : the_one->sides_by_queue_) {
            if (s->qp->send_cq != of) continue;
            while (s->head == s->tail && s->when_empty && s->when_empty()) {}
            int count = 0;
            while (count < room && s->head != s->tail)
                into[count++] = s->completions[s->head++ % size];
            return count;
        }
        return the_one->device_poll_cq_(of, room, into);
    }

    static inline loopback_device* the_one = nullptr;

    int (*device_poll_cq_)(ibv_cq*, int, ibv_wc*);
    std::vector<std::unique_ptr<side>> sides_;
    std::vector<side*> sides_by_queue_;
};

}  // namespace bench
