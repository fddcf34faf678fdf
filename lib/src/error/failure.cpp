#include <rcverbs/failure.hpp>

#include <rcverbs/close_reason.hpp>

#include <sys/resource.h>

#include <cerrno>
#include <utility>

#include <rcverbs/detail/option_check.hpp>
#include <rcverbs/export.hpp>

#include "error/detailed_error.hpp"
#include "error/process_status.hpp"
#include "error/symbols.hpp"

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
    case close_reason::device_gone: return "device gone";
    }
    return "unknown reason";
}

namespace {

std::string memlock_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return "any amount";
    return std::to_string(limit.rlim_cur / 1024) + " KiB";
}

// With a limit of 0 the kernel fails with EPERM. Source: can_do_mlock() in mm/mlock.c.
bool may_lock_nothing() {
    rlimit limit{};
    return ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == 0;
}

// The remedy for an errno at a step, as a sentence; empty if none is known. The messages of the
// library's own codes contain theirs.
std::string remedy(step where, int number) {
    switch (number) {
    case ENETUNREACH:
    case EHOSTUNREACH:
        return "No route leads there: check the address, and that an RDMA network interface is in "
               "its network";
    case EFAULT:
        return "The memory is not mapped, or this kernel does not pin such a mapping: a shared "
               "read-only one before Linux 6.2 (map it with MAP_PRIVATE), that of a file for "
               "writing since 6.5 (use memory, tmpfs or hugetlbfs)";
    case EACCES: return "This user may not use the device: check the files in /dev/infiniband";
    case EPERM:
        if (may_lock_nothing())
            return "This process may lock no memory (RLIMIT_MEMLOCK is 0): raise it with ulimit -l";
        return "This user may not use the device: check the files in /dev/infiniband";
    case EAGAIN:
        return "No more threads can be started: raise the limit of processes (ulimit -u; of a "
               "service TasksMax; in a container pids.max), or let connections share a polling "
               "thread";
    case EADDRINUSE: return "Another program listens there: choose another port";
    case EADDRNOTAVAIL:
        return "The address belongs to no RDMA network interface, or another program listens on "
               "the "
               "port: see ip addr, or choose another port";
    case ENOMEM:
        return "Registered memory is locked: the process may lock " + memlock_limit() +
               " (RLIMIT_MEMLOCK) and has locked " + std::to_string(detail::pinned_bytes() / 1024) +
               " KiB"
               ". Raise it with ulimit -l; otherwise the device or the machine is out of memory";
    case ETIMEDOUT:
        return "No host answers at that address: check with ping that it is up and on the RDMA "
               "network";
    case EINVAL:
        return where == step::create_queue_pair
                   ? "The device cannot make a queue pair of that size: lower the depths"
                   : "";
    case EMFILE:
    case ENFILE: return "Raise the limit with ulimit -n";
    default: return "";
    }
}

}  // namespace

void detail::throw_if_refused(std::string const& problem) {
    if (problem.empty()) return;
    error_code const ec = errc::invalid_option;
    throw detailed_error{
        ec, ec.message() + ": " + problem + " [rcverbs:" + std::to_string(ec.value()) + ']'};
}

std::string detail::memory_remedy(error_code const& ec) {
    bool const is_known =
        ec == boost::system::errc::not_enough_memory || ec == boost::system::errc::bad_address;
    return is_known ? remedy(step::transfer, ec.value()) : "";
}

std::string failure::message() const {
    if (!code) return "no failure";
    std::string text = to_string(where);
    text += ' ';
    text += address.to_string();
    text += ": ";
    text += code.message();
    if (code.category() == boost::system::system_category()) {
        // Source: ipv6(7), sin6_scope_id.
        bool const lacks_scope = code.value() == EINVAL && address.address().is_v6() &&
                                 address.address().to_v6().is_link_local() &&
                                 address.address().to_v6().scope_id() == 0;
        std::string const help = lacks_scope
                                     ? "A link-local address needs its network interface: " +
                                           address.address().to_string() + "%eth0"
                                     : remedy(where, code.value());
        if (!help.empty()) text += ". " + help + ".";
    }
    text += " [";
    text += code.category().name();
    text += ' ';
    text += std::to_string(code.value());
    if (std::string const symbol = detail::symbol_of(code); !symbol.empty()) text += ' ' + symbol;
    if (std::string const more = detail::describe_status(code, status); !more.empty())
        text += ", " + more;
    text += ']';
    return text;
}

operation_failed::operation_failed(failure why)
    : system_error{why.code},
      why_{std::move(why)},
      text_{why_.message()} {}
operation_failed::~operation_failed() noexcept = default;

}  // namespace rcverbs
