// signals_blocked.hpp — a thread of the library's own handles no signals: they are the program's.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace rcverbs::hosting {

/// While it lives, the thread blocks all signals; a thread that it starts inherits that.
class signals_blocked {
public:
    signals_blocked() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    signals_blocked(signals_blocked const&) = delete;
    signals_blocked& operator=(signals_blocked const&) = delete;
    ~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

}  // namespace rcverbs::hosting
