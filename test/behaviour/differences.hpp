// differences.hpp — where SoftRoCE and the fabric are known to behave differently. Everything else that the behaviour
// tests show holds for both. The specification and hardware side with the fabric, unless a row says otherwise.
#pragma once

#include <infiniband/verbs.h>

#include <set>

namespace test {

/// True if the tests were linked with the fabric.
bool is_on_fabric() noexcept;

struct differences {
    // Places in the send queue come back when the peer has acknowledged, polled or not. (Hardware: when polled.)
    bool frees_unpolled_work;
    // Queues are larger than was asked for. (Hardware: often. The fabric: never, a program must not count on it.)
    bool rounds_queues_up;
    // A misaligned or wrongly sized atomic fails when it is posted. (Hardware: it completes with an error.)
    bool refuses_odd_atomics_when_posted;
    // A read with a negotiated depth of 0 never completes.
    bool forgets_reads_without_depth;
    // The longest message is not enforced.
    bool takes_longer_messages;
    // After an overrun the queue gives what it has for ever, and the queue pair goes on.
    bool survives_overrun;
    // A window opens the whole region that it is bound to.
    bool ignores_bounds_of_windows;
    // A completion does not say that it came with an invalidation.
    bool hides_invalidation;
    // What a wrong local key, or a receive that is too short, is called.
    std::set<ibv_wc_status> wrong_local_key;
    std::set<ibv_wc_status> short_receive;
    std::set<ibv_wc_status> sent_to_short_receive;
};

inline differences const& here() {
    static differences const softroce{
        .frees_unpolled_work = true,
        .rounds_queues_up = true,
        .refuses_odd_atomics_when_posted = true,
        .forgets_reads_without_depth = true,
        .takes_longer_messages = true,
        .survives_overrun = true,
        .ignores_bounds_of_windows = true,
        .hides_invalidation = true,
        .wrong_local_key = {IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR},
        .short_receive = {IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_LEN_ERR},
        .sent_to_short_receive = {IBV_WC_REM_OP_ERR, IBV_WC_REM_INV_REQ_ERR},
    };
    static differences const fabric{
        .frees_unpolled_work = false,
        .rounds_queues_up = false,
        .refuses_odd_atomics_when_posted = false,
        .forgets_reads_without_depth = false,
        .takes_longer_messages = false,
        .survives_overrun = false,
        .ignores_bounds_of_windows = false,
        .hides_invalidation = false,
        .wrong_local_key = {IBV_WC_LOC_PROT_ERR},
        .short_receive = {IBV_WC_LOC_LEN_ERR},
        .sent_to_short_receive = {IBV_WC_REM_INV_REQ_ERR},
    };
    return is_on_fabric() ? fabric : softroce;
}

}  // namespace test
