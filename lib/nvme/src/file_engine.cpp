#include "file_engine.hpp"

#include <fcntl.h>
#include <linux/falloc.h>

#include <array>
#include <cerrno>

namespace rcverbs::nvme::detail {

int fallocate_mode(store_operation zeroing) noexcept {
    bool const is_discard = zeroing == store_operation::discard;
    return (is_discard ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE) | FALLOC_FL_KEEP_SIZE;
}

bool lacks_fallocate(int error) noexcept { return error == EOPNOTSUPP || error == EINVAL; }

std::span<std::byte> zeros() noexcept {
    static std::array<std::byte, 65536> all{};
    return all;
}

}  // namespace rcverbs::nvme::detail
