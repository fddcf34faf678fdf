#include <rcverbs/nvme/memory_store.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include <rcverbs/detail/option_check.hpp>
#include "identity.hpp"

namespace rcverbs::nvme {

memory_store::memory_store(std::uint64_t size_bytes, std::uint32_t block_bytes)
    : block_bytes_{block_bytes},
      uuid_{detail::random_uuid()} {
    rcverbs::detail::option_check check{"memory_store"};
    check.within("block_bytes", block_bytes, 512, 4096)
        .that(std::has_single_bit(block_bytes), "block_bytes", "is no power of two")
        .that(
            size_bytes > 0 && size_bytes % std::max(block_bytes, 1U) == 0,
            "size_bytes",
            "is not a multiple of block_bytes above 0"
        );
    rcverbs::detail::throw_if_refused(check.problem());
    void* const made =
        ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        throw boost::system::system_error{{errno, boost::system::system_category()}};
    memory_ = {static_cast<std::byte*>(made), size_bytes};
}

memory_store::~memory_store() { ::munmap(memory_.data(), memory_.size()); }

store_geometry memory_store::geometry() const {
    return {memory_.size(), block_bytes_, false, false};
}

// std::ranges::copy() and equal() of g++ 12 go byte by byte.
void memory_store::start(store_request& request) {
    auto const range =
        memory_.subspan(request.offset_bytes(), static_cast<std::size_t>(request.size_bytes()));
    switch (request.operation()) {
    case store_operation::read:
        std::copy(range.begin(), range.end(), request.data().begin());
        break;
    case store_operation::write:
        std::copy(request.data().begin(), request.data().end(), range.begin());
        break;
    case store_operation::compare:
        if (std::memcmp(range.data(), request.data().data(), range.size()) != 0)
            return request.complete_mismatch();
        break;
    case store_operation::write_zeroes:
    case store_operation::discard: std::ranges::fill(range, std::byte{0}); break;
    case store_operation::flush: break;
    }
    request.complete({});
}

}  // namespace rcverbs::nvme
