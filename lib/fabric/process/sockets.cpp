// Sockets over RDMA (rsocket(7)): librdmacm's own, over this network. What they call of rdma_cm and verbs, they call as programs
// do, and so find it here; of an id they also read what insides_of_librdmacm has.
#include <rdma/rsocket.h>

#include <dlfcn.h>

#include <cerrno>
#include <cstdarg>

namespace {

// The library's name alone would find the empty one in this library's folder. It is needed by programs with such sockets only,
// and never unloaded, as it has threads.
void* find(char const* name) {
    static void* const library = ::dlopen(RCVERBS_LIBRDMACM, RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : ::dlsym(library, name);
}

template <class Result, class... Arguments, class... Given>
Result call(Result (*real)(Arguments...), Given... given) {
    if (real != nullptr) return real(given...);
    errno = ENOSYS;
    return static_cast<Result>(-1);
}

}  // namespace

// The function of librdmacm.
#define REAL(name)                                                                      \
    ([] {                                                                               \
        static auto* const function = reinterpret_cast<decltype(&::name)>(find(#name)); \
        return function;                                                                \
    }())

extern "C" {

int rsocket(int domain, int type, int protocol) {
    return call(REAL(rsocket), domain, type, protocol);
}
int rbind(int s, sockaddr const* a, socklen_t n) { return call(REAL(rbind), s, a, n); }
int rlisten(int s, int backlog) { return call(REAL(rlisten), s, backlog); }
int raccept(int s, sockaddr* a, socklen_t* n) { return call(REAL(raccept), s, a, n); }
int rconnect(int s, sockaddr const* a, socklen_t n) { return call(REAL(rconnect), s, a, n); }
int rshutdown(int s, int how) { return call(REAL(rshutdown), s, how); }
int rclose(int s) { return call(REAL(rclose), s); }

ssize_t rrecv(int s, void* to, size_t n, int flags) { return call(REAL(rrecv), s, to, n, flags); }
ssize_t rrecvfrom(int s, void* to, size_t n, int flags, sockaddr* a, socklen_t* size) {
    return call(REAL(rrecvfrom), s, to, n, flags, a, size);
}
ssize_t rrecvmsg(int s, msghdr* m, int flags) { return call(REAL(rrecvmsg), s, m, flags); }
ssize_t rsend(int s, void const* from, size_t n, int flags) {
    return call(REAL(rsend), s, from, n, flags);
}
ssize_t rsendto(int s, void const* from, size_t n, int flags, sockaddr const* a, socklen_t size) {
    return call(REAL(rsendto), s, from, n, flags, a, size);
}
ssize_t rsendmsg(int s, msghdr const* m, int flags) { return call(REAL(rsendmsg), s, m, flags); }
ssize_t rread(int s, void* to, size_t n) { return call(REAL(rread), s, to, n); }
ssize_t rreadv(int s, iovec const* to, int n) { return call(REAL(rreadv), s, to, n); }
ssize_t rwrite(int s, void const* from, size_t n) { return call(REAL(rwrite), s, from, n); }
ssize_t rwritev(int s, iovec const* from, int n) { return call(REAL(rwritev), s, from, n); }

// Programs poll other descriptors with these two, also without such a socket.
int rpoll(pollfd* all, nfds_t n, int timeout_ms) {
    auto* const real = REAL(rpoll);
    return real != nullptr ? real(all, n, timeout_ms) : ::poll(all, n, timeout_ms);
}
int rselect(int n, fd_set* in, fd_set* out, fd_set* others, timeval* timeout) {
    auto* const real = REAL(rselect);
    return real != nullptr ? real(n, in, out, others, timeout)
                           : ::select(n, in, out, others, timeout);
}

int rgetpeername(int s, sockaddr* a, socklen_t* n) { return call(REAL(rgetpeername), s, a, n); }
int rgetsockname(int s, sockaddr* a, socklen_t* n) { return call(REAL(rgetsockname), s, a, n); }
int rsetsockopt(int s, int level, int name, void const* value, socklen_t n) {
    return call(REAL(rsetsockopt), s, level, name, value, n);
}
int rgetsockopt(int s, int level, int name, void* value, socklen_t* n) {
    return call(REAL(rgetsockopt), s, level, name, value, n);
}
// Each of its commands takes an integer, or nothing.
int rfcntl(int s, int command, ...) {
    va_list rest;
    va_start(rest, command);
    int const argument = va_arg(rest, int);
    va_end(rest);
    auto* const real = REAL(rfcntl);
    if (real != nullptr) return real(s, command, argument);
    errno = ENOSYS;
    return -1;
}

off_t riomap(int s, void* memory, size_t n, int protection, int flags, off_t offset) {
    return call(REAL(riomap), s, memory, n, protection, flags, offset);
}
int riounmap(int s, void* memory, size_t n) { return call(REAL(riounmap), s, memory, n); }
size_t riowrite(int s, void const* from, size_t n, off_t offset, int flags) {
    return call(REAL(riowrite), s, from, n, offset, flags);
}
}
