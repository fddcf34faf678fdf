#include <rcverbs/experimental/protocol/slots.hpp>

#include <numeric>

namespace rcverbs::protocol {

slots::slots(driver& owner) : part{owner}, owner_{owner} {}

slots::~slots() { owner_.keep_if_undrained(memory_); }

error_code slots::open(std::size_t receives, std::size_t sends, std::size_t slot_bytes) {
    error_code ec;
    std::size_t const size = (receives + sends) * slot_bytes;
    registered_buffer made{owner_.lower().domain(), size, access_flags::local_write, ec};
    if (ec) return ec;
    free_.resize(sends);
    std::iota(free_.rbegin(), free_.rend(), std::uint32_t{0});
    memory_ = std::move(made);
    all_ = memory_.slice();
    receives_ = receives;
    slot_bytes_ = slot_bytes;
    return {};
}

}  // namespace rcverbs::protocol
