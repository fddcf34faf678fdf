// provider_quirks.hpp — the known differences between SoftRoCE and the fabric. All other behaviour
// in the behaviour tests is the same on both. The specification and hardware agree with the fabric,
// unless a row says otherwise.
#pragma once

#include <infiniband/verbs.h>

#include <set>

namespace test {

/// True if the tests were linked with the fabric.
bool is_on_fabric() noexcept;

struct provider_quirks {
    // Send queue slots are freed when the peer acknowledges, even without polling. (Hardware: when
    // the completion is polled.)
    bool frees_unpolled_work;
    // Queues are larger than requested. (Hardware: often. The fabric: never; a program must not
    // rely on it.)
    bool rounds_queues_up;
    // Posting a misaligned or wrongly sized atomic fails. (Hardware: it completes with an error.)
    bool refuses_odd_atomics_when_posted;
    // A read with a negotiated depth of 0 never completes.
    bool forgets_reads_without_depth;
    // The longest message is not enforced.
    bool takes_longer_messages;
    // After an overrun, the completion queue delivers its entries for ever, and the queue pair
    // continues.
    bool survives_overrun;
    // A memory window grants access to its whole region.
    bool ignores_bounds_of_windows;
    // A completion lacks the flag for a remote invalidation.
    bool hides_invalidation;
    // The completion statuses of a wrong local key and of a receive that is too short.
    std::set<ibv_wc_status> wrong_local_key;
    std::set<ibv_wc_status> short_receive;
    std::set<ibv_wc_status> sent_to_short_receive;
};

inline provider_quirks const& here() {
    static provider_quirks const softroce{
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
    static provider_quirks const fabric{
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
