#include <rcverbs/registered_buffer.hpp>

#include <sys/mman.h>

#include "error/detailed_error.hpp"
#include "verbs/errno_map.hpp"

namespace rcverbs {

namespace {

// Anonymous pages come zeroed and page-aligned.
detail::mapped_memory map(std::size_t size_bytes, error_code& ec) noexcept {
    void* const memory =
        ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        ec = verbs::from_minus_one(-1);
        return {};
    }
    return {static_cast<std::byte*>(memory), detail::unmap{size_bytes}};
}

}  // namespace

void detail::unmap::operator()(std::byte* memory) const noexcept {
    static_cast<void>(::munmap(memory, size_bytes));
}

registered_buffer::registered_buffer(
    protection_domain const& domain, std::size_t size_bytes, access_flags rights, error_code& ec
) noexcept {
    ec.clear();
    auto memory = map(size_bytes, ec);
    if (ec) return;
    memory_region region{domain, {memory.get(), size_bytes}, rights, ec};
    if (ec) return;
    memory_ = std::move(memory);
    region_ = std::move(region);
}

registered_buffer::registered_buffer(
    protection_domain const& domain, std::size_t size_bytes, access_flags rights
) {
    error_code ec;
    *this = registered_buffer{domain, size_bytes, rights, ec};
    if (ec) detail::throw_registration_failure(domain, ec, size_bytes);
}

}  // namespace rcverbs
