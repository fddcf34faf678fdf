// system_calls.hpp — a thread whose system calls are observed, or refused.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "support/catch.hpp"

namespace test {

/// Runs `work` on a thread, and `before` with each of its system calls that is one of these, before the kernel starts it.
/// Returns how many there were; 0 if the kernel does not stop them.
inline unsigned stop_before(
    std::vector<long> const& stopped,
    std::function<void()> const& work,
    std::function<void(seccomp_data const&)> const& before
) {
    std::promise<int> made;
    std::thread worker{[&] {
        std::vector<sock_filter> rules{
            sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)}};
        for (std::size_t i = 0; i < stopped.size(); ++i) {
            auto const to_stop = static_cast<std::uint8_t>(stopped.size() - i);
            rules.push_back(
                {BPF_JMP | BPF_JEQ | BPF_K, to_stop, 0, static_cast<unsigned>(stopped[i])}
            );
        }
        rules.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW});
        rules.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF});
        sock_fprog const program{static_cast<unsigned short>(rules.size()), rules.data()};
        bool const is_ready = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
        long const listener = is_ready ? ::syscall(
                                             SYS_seccomp,
                                             SECCOMP_SET_MODE_FILTER,
                                             SECCOMP_FILTER_FLAG_NEW_LISTENER,
                                             &program
                                         )
                                       : -1;
        made.set_value(static_cast<int>(listener));
        if (listener >= 0) work();
    }};
    int const listener = made.get_future().get();
    unsigned calls = 0;
    while (listener >= 0) {
        pollfd state{listener, POLLIN, 0};
        // The thread has ended: nobody has this filter any more.
        if (::poll(&state, 1, -1) < 0 || (state.revents & POLLIN) == 0) break;
        seccomp_notif call{};
        if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
        ++calls;
        before(call.data);
        seccomp_notif_resp const go_on{call.id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &go_on);
    }
    worker.join();
    if (listener >= 0) ::close(listener);
    return calls;
}

/// The same for those that have a path: `before` gets their number, and the path (the first one).
inline unsigned stop_before_paths(
    std::function<void()> const& work, std::function<void(unsigned, char const*)> const& before
) {
    std::vector<long> const with_path{
        SYS_openat,
        SYS_openat2,
        SYS_linkat,
        SYS_renameat2,
        SYS_unlinkat,
        SYS_newfstatat,
        SYS_fchownat,
        SYS_fchmodat,
        SYS_utimensat,
        SYS_mkdirat,
        SYS_symlinkat,
        SYS_readlinkat,
#ifdef SYS_renameat
        SYS_renameat,
        SYS_chmod,
#endif
    };
    unsigned number = 0;
    return stop_before(with_path, work, [&](seccomp_data const& call) {
        bool is_first = call.nr == SYS_symlinkat;
#ifdef SYS_chmod
        is_first |= call.nr == SYS_chmod;
#endif
        auto const* const path = reinterpret_cast<char const*>(call.args[is_first ? 0 : 1]);
        before(number++, path != nullptr ? path : "");
    });
}

/// Runs `what` on a thread for which this system call fails, as in a sandbox; if flags are named, only with these as that
/// argument.
inline void where_refused(
    long call,
    int error,
    std::function<void()> const& what,
    std::optional<unsigned> flags = {},
    unsigned argument = 3
) {
    bool is_filtered = false;
    auto const place_of_flags = static_cast<unsigned>(
        offsetof(seccomp_data, args) + argument * sizeof(seccomp_data::args[0])
    );
    std::thread{[&] {
        std::array<sock_filter, 7> rules{
            sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
            sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 4, static_cast<unsigned>(call)},
            sock_filter{BPF_JMP | BPF_JA, 0, 0, flags ? 0U : 2U},
            sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, place_of_flags},
            sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, flags.value_or(0)},
            sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)},
            sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
        sock_fprog const program{rules.size(), rules.data()};
        is_filtered = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
        if (is_filtered) what();
    }}.join();
    REQUIRE(is_filtered);
}

}  // namespace test
