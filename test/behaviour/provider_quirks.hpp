// provider_quirks.hpp — the known differences between the fabric and SoftRoCE of two kernels. All
// other behaviour in the behaviour tests is the same on all three. The specification and hardware
// agree with the fabric, unless a row says otherwise.
#pragma once

#include <infiniband/verbs.h>

#include <sys/utsname.h>

#include <cstdlib>

namespace test {

/// True if the device is one of the fabric.
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
    // After an overrun, the completion queue delivers its entries for ever, and the queue pair
    // continues.
    bool survives_overrun;
    // A memory window grants access to its whole region.
    bool ignores_bounds_of_windows;
    // A completion lacks the flag for a remote invalidation.
    bool hides_invalidation;
    // The access flags of a queue pair can be modified in the error state.
    bool modifies_access_in_error_state;
    // A mapping that is shared and read-only can be registered for reading. (Linux since 6.2.)
    bool registers_shared_read_only_mappings;
    // The completion statuses of a wrong local key, of a message longer than the device's longest,
    // and of both ends of a receive that is too short.
    ibv_wc_status wrong_local_key;
    ibv_wc_status too_long_message;
    ibv_wc_status short_receive;
    ibv_wc_status sent_to_short_receive;
};

/// True if the running kernel is Linux 6.12 or newer. The tests have run on 6.1 and on 6.12; the
/// kernels between them are taken for 6.1.
inline bool is_linux_6_12_or_newer() noexcept {
    utsname running{};
    ::uname(&running);
    char* rest = nullptr;
    long const major = std::strtol(running.release, &rest, 10);
    long const minor = *rest == '.' ? std::strtol(rest + 1, nullptr, 10) : 0;
    return major > 6 || (major == 6 && minor >= 12);
}

inline provider_quirks const& here() {
    static provider_quirks const linux_6_1{
        .frees_unpolled_work = true,
        .rounds_queues_up = true,
        .refuses_odd_atomics_when_posted = true,
        .forgets_reads_without_depth = true,
        .survives_overrun = true,
        .ignores_bounds_of_windows = true,
        .hides_invalidation = true,
        .modifies_access_in_error_state = false,
        .registers_shared_read_only_mappings = false,
        .wrong_local_key = IBV_WC_LOC_QP_OP_ERR,
        .too_long_message = IBV_WC_SUCCESS,  // the longest message is not enforced
        .short_receive = IBV_WC_LOC_QP_OP_ERR,
        .sent_to_short_receive = IBV_WC_REM_OP_ERR,
    };
    static provider_quirks const linux_6_12 = [] {
        provider_quirks q = linux_6_1;
        q.modifies_access_in_error_state = true;
        q.registers_shared_read_only_mappings = true;
        // Errors that the sender finds itself are reported as a flush, without a first error.
        q.wrong_local_key = IBV_WC_WR_FLUSH_ERR;
        q.too_long_message = IBV_WC_WR_FLUSH_ERR;
        return q;
    }();
    static provider_quirks const fabric{
        .frees_unpolled_work = false,
        .rounds_queues_up = false,
        .refuses_odd_atomics_when_posted = false,
        .forgets_reads_without_depth = false,
        .survives_overrun = false,
        .ignores_bounds_of_windows = false,
        .hides_invalidation = false,
        .modifies_access_in_error_state = false,
        .registers_shared_read_only_mappings = true,
        .wrong_local_key = IBV_WC_LOC_PROT_ERR,
        .too_long_message = IBV_WC_LOC_LEN_ERR,
        .short_receive = IBV_WC_LOC_LEN_ERR,
        .sent_to_short_receive = IBV_WC_REM_INV_REQ_ERR,
    };
    if (is_on_fabric()) return fabric;
    return is_linux_6_12_or_newer() ? linux_6_12 : linux_6_1;
}

}  // namespace test
