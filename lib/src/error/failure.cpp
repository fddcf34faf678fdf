#include <rcverbs/failure.hpp>

#include <rcverbs/close_reason.hpp>

#include <sys/resource.h>

#include <cerrno>

namespace rcverbs {

char const* to_string(step s) noexcept {
    switch (s) {
    case step::open: return "open";
    case step::listen: return "listen";
    case step::resolve_address: return "resolve address";
    case step::resolve_route: return "resolve route";
    case step::create_queue_pair: return "create queue pair";
    case step::connect: return "connect";
    case step::accept: return "accept";
    case step::handshake: return "handshake";
    case step::exchange: return "exchange";
    case step::transfer: return "transfer";
    case step::finish: return "finish";
    case step::disconnect: return "disconnect";
    case step::drain: return "drain";
    }
    return "unknown step";
}

char const* to_string(close_reason reason) noexcept {
    switch (reason) {
    case close_reason::open: return "open";
    case close_reason::completed: return "completed";
    case close_reason::closed_locally: return "closed locally";
    case close_reason::peer_disconnected: return "peer disconnected";
    case close_reason::peer_closed_early: return "peer closed early";
    case close_reason::transport_error: return "transport error";
    case close_reason::timed_out: return "timed out";
    case close_reason::refused: return "refused";
    case close_reason::protocol_error: return "protocol error";
    }
    return "unknown reason";
}

namespace {

std::string memlock_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
    return std::to_string(limit.rlim_cur / 1024) + " KiB";
}

// What helps against an errno at a step; empty if nothing is known. The codes of ours and of the completions and events
// say it themselves.
std::string remedy(step where, int number) {
    switch (number) {
    case ENETUNREACH:
    case EHOSTUNREACH: return "no route leads there; check the address, and that an RDMA network interface is in its network";
    case ENODEV:
    case ENOENT:
        return "no RDMA device, or the kernel modules are not loaded; try: modprobe rdma_ucm, ls /dev/infiniband, rdma link";
    case EACCES:
    case EPERM: return "no right to use the device; check the files in /dev/infiniband";
    case EADDRINUSE: return "another program listens there; choose another port";
    case EADDRNOTAVAIL: return "that address is not of an RDMA network interface, or another program listens at its port";
    case ENOMEM:
        return "registered memory is locked: this process may lock " + memlock_limit() + "; raise it with ulimit -l";
    case EINVAL:
        return where == step::create_queue_pair ? "the device cannot make a queue pair that large; ask for less depth" : "";
    case EMFILE: return "too many open files; raise the limit with ulimit -n";
    default: return "";
    }
}

}  // namespace

std::string failure::message() const {
    std::string text = to_string(where);
    text += ' ';
    text += address.to_string();
    text += ": ";
    text += code.message();
    if (code.category() == boost::system::system_category()) {
        std::string const help = remedy(where, code.value());
        if (!help.empty()) text += " (" + help + ")";
    }
    text += " [";
    text += code.category().name();
    text += ' ';
    text += std::to_string(code.value());
    if (status != 0) text += ", status " + std::to_string(status);
    text += ']';
    return text;
}

}  // namespace rcverbs
