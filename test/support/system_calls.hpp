// system_calls.hpp — stops a thread before its system calls.
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
#include <thread>
#include <vector>

namespace test {

/// Runs `work` on a thread, and `before` with the number of each of its system calls that has a path, and the path (the
/// first one), before the kernel starts it. Returns how many there were; 0 if the kernel does not stop them.
inline unsigned stop_before_paths(
    std::function<void()> const& work, std::function<void(unsigned, char const*)> const& before
) {
    constexpr std::array with_path{
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
    std::promise<int> made;
    std::thread worker{[&] {
        std::vector<sock_filter> rules{
            sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)}};
        for (std::size_t i = 0; i < with_path.size(); ++i) {
            auto const to_stop = static_cast<std::uint8_t>(with_path.size() - i);
            rules.push_back(
                {BPF_JMP | BPF_JEQ | BPF_K, to_stop, 0, static_cast<unsigned>(with_path[i])}
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
        bool is_first = call.data.nr == SYS_symlinkat;
#ifdef SYS_chmod
        is_first |= call.data.nr == SYS_chmod;
#endif
        auto const* const path = reinterpret_cast<char const*>(call.data.args[is_first ? 0 : 1]);
        before(calls++, path != nullptr ? path : "");
        seccomp_notif_resp const go_on{call.id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &go_on);
    }
    worker.join();
    if (listener >= 0) ::close(listener);
    return calls;
}

}  // namespace test
