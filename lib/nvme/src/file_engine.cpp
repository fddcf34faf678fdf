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

void file_engine::start(store_request& r) noexcept {
    bool const only_reads =
        r.operation() == store_operation::read || r.operation() == store_operation::compare;
    if (!only_reads) {
        if (error_code const ec = sync_failure()) return r.complete(ec);
    }
    begin(r);
}

error_code file_engine::sync_failure() const noexcept {
    return {file_.sync_failure->load(), boost::system::system_category()};
}

void file_engine::keep_sync_failure(int error) noexcept {
    int none = 0;
    file_.sync_failure->compare_exchange_strong(none, error);
}

}  // namespace rcverbs::nvme::detail
