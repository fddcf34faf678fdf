#include "verbs/atomic_results.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace rcverbs::verbs {

namespace {

// Two queue pairs do not share a cache line.
constexpr std::size_t line_bytes = 64;

}  // namespace

// A registration that is cut into places of one size.
class atomic_results::region {
public:
    region(
        protection_domain const& domain, std::size_t place_bytes, std::size_t count, error_code& ec
    )
        : place_bytes_{place_bytes},
          memory_{domain, place_bytes * count, access_flags::local_write, ec} {
        free_.reserve(count);
        for (std::size_t i = count; i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
    }

    std::size_t place_bytes() const noexcept { return place_bytes_; }
    std::optional<std::uint32_t> take() noexcept {
        std::lock_guard const lock{mutex_};
        if (free_.empty()) return std::nullopt;
        std::uint32_t const index = free_.back();
        free_.pop_back();
        return index;
    }
    // Has room for it: see the constructor.
    void give_back(std::uint32_t index) noexcept {
        std::lock_guard const lock{mutex_};
        free_.push_back(index);
    }
    mutable_slice slice(std::uint32_t index) const {
        return memory_.slice(index * place_bytes_, place_bytes_);
    }

private:
    std::size_t const place_bytes_;
    registered_buffer memory_;
    std::mutex mutex_;
    std::vector<std::uint32_t> free_;  // guarded by mutex_
};

atomic_results::place::~place() { region_->give_back(index_); }

mutable_slice atomic_results::place::slice() const { return region_->slice(index_); }

std::shared_ptr<atomic_results::place> atomic_results::take(
    protection_domain const& of, std::size_t size_bytes, error_code& ec
) {
    std::size_t const place_bytes = (size_bytes + line_bytes - 1) / line_bytes * line_bytes;
    std::size_t region_bytes = 0;
    {
        std::lock_guard const lock{mutex_};
        if (auto found = take_from_present(place_bytes)) return found;
        region_bytes = regions_.empty() ? 4096 : next_bytes_;
        next_bytes_ = std::min(2 * region_bytes, region_bytes_max);
    }
    // Without the lock: it is a system call. Another thread may register one as well.
    std::size_t const count = std::max<std::size_t>(region_bytes / place_bytes, 1);
    auto made = std::make_shared<region>(of, place_bytes, count, ec);
    if (ec) return nullptr;
    auto mine = std::make_shared<place>(made, *made->take());
    std::lock_guard const lock{mutex_};
    regions_.push_back(made);
    return mine;
}

// REQUIRES: the lock is held.
std::shared_ptr<atomic_results::place> atomic_results::take_from_present(std::size_t place_bytes) {
    std::erase_if(regions_, [](auto const& one) { return one.expired(); });
    for (auto const& one : regions_) {
        auto const present = one.lock();
        if (present == nullptr || present->place_bytes() != place_bytes) continue;
        if (auto const index = present->take()) return std::make_shared<place>(present, *index);
    }
    return nullptr;
}

}  // namespace rcverbs::verbs
