#include <rcverbs/registration_limit.hpp>

#include <rcverbs/protection_domain.hpp>

#include "error/detailed_error.hpp"
#include "error/process_status.hpp"
#include "error/symbols.hpp"
#include "verbs/domain.hpp"

namespace rcverbs {

namespace {

std::string kib(std::uint64_t bytes) { return std::to_string((bytes + 1023) / 1024) + " KiB"; }

}  // namespace

std::string registration_limit::message() const {
    switch (what) {
    case kind::unknown: return "";
    case kind::region_bytes:
        return "The region would have " + kib(needed) + ", and the device registers at most " +
               kib(allowed) + " at once: divide it";
    case kind::locked_bytes:
        return "Registered memory is locked: the process may lock " + kib(allowed) +
               " (RLIMIT_MEMLOCK), and would have locked " + kib(needed) +
               ": raise the limit with ulimit -l";
    case kind::regions:
        return "It would be region " + std::to_string(needed) +
               " of the process, and the device has " + std::to_string(allowed) +
               " for all: register fewer and larger ones";
    case kind::memory_bytes:
        return "The machine has " + kib(allowed) + " of memory left, and " + kib(needed) +
               " would be needed";
    }
    return "";
}

registration_limit limit_met(
    protection_domain const& domain, std::uint64_t size_bytes, error_code const& why
) {
    using kind = registration_limit::kind;
    if (!domain.is_open() || !why) return {};
    verbs::device const& on = detail::access::impl_of(domain)->on();
    if (size_bytes > on.limits().region_bytes_max)
        return {kind::region_bytes, size_bytes, on.limits().region_bytes_max};
    std::uint64_t const regions = on.open_regions().load(std::memory_order_relaxed) + 1;
    if (regions > on.limits().regions_max) return {kind::regions, regions, on.limits().regions_max};
    // With a limit of 0 the kernel fails with EPERM. Source: can_do_mlock() in mm/mlock.c.
    if (why != boost::system::errc::not_enough_memory &&
        why != boost::system::errc::operation_not_permitted)
        return {};
    constexpr std::uint64_t page_bytes = 4096;
    std::uint64_t const pages = (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
    std::uint64_t const locked = detail::pinned_bytes() + pages;
    std::uint64_t const lockable = detail::lockable_bytes_max();
    if (locked > lockable) return {kind::locked_bytes, locked, lockable};
    std::uint64_t const available =
        detail::status_field("/proc/meminfo", "MemAvailable:", 10) * 1024;
    if (available > 0 && pages > available) return {kind::memory_bytes, pages, available};
    return {};
}

void detail::throw_registration_failure(
    protection_domain const& domain, error_code const& ec, std::size_t size_bytes
) {
    std::string text =
        "registering " + std::to_string(size_bytes / 1024) + " KiB of memory: " + ec.message();
    std::string help = limit_met(domain, size_bytes, ec).message();
    if (help.empty()) help = memory_remedy(ec);
    if (!help.empty()) text += ". " + help + '.';
    throw detailed_error{ec, text + " [" + symbol_of(ec) + ' ' + std::to_string(ec.value()) + ']'};
}

}  // namespace rcverbs
