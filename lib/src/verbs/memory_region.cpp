#include <rcverbs/memory_region.hpp>

#include "error/described.hpp"
#include "verbs/domain.hpp"
#include "verbs/errno_map.hpp"
#include "verbs/handles.hpp"
#include "verbs/region_record.hpp"
#include "verbs/rights.hpp"

#include <functional>

namespace rcverbs {

namespace {

// REMOTE_WRITE and REMOTE_ATOMIC are refused without LOCAL_WRITE. Source: ibv_reg_mr(3).
access_flags with_implied(access_flags rights) noexcept {
    if ((rights & (access_flags::remote_write | access_flags::remote_atomic)) != access_flags::local_read) {
        return rights | access_flags::local_write;
    }
    return rights;
}

}  // namespace

struct memory_region::registration {
    registration() = default;
    registration(registration const&) = delete;
    registration& operator=(registration const&) = delete;
    ~registration() { detail::close_record(mark); }

    // The domain is declared first: it outlives the region.
    std::shared_ptr<verbs::domain> domain;
    verbs::region_handle handle;
    detail::region_mark mark;
};

memory_region::memory_region() noexcept = default;
memory_region::memory_region(memory_region&&) noexcept = default;
memory_region& memory_region::operator=(memory_region&&) noexcept = default;
memory_region::~memory_region() = default;

memory_region::memory_region(
    protection_domain const& domain, std::span<std::byte> bytes, access_flags rights, error_code& ec
) noexcept {
    ec.clear();
    if (!domain.is_open() || bytes.empty()) {
        ec = boost::system::errc::make_error_code(boost::system::errc::invalid_argument);
        return;
    }
    rights = with_implied(rights);
    std::unique_ptr<registration> made{new (std::nothrow) registration};
    if (made == nullptr) {
        ec = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
        return;
    }
    made->domain = domain.impl();
    made->handle.reset(ibv_reg_mr(domain.impl()->get(), bytes.data(), bytes.size(), verbs::to_ibv_access(rights)));
    ec = verbs::from_pointer(made->handle.get());
    if (ec) return;
    try {
        made->mark = detail::open_record(domain.impl().get(), rights);
    } catch (std::bad_alloc const&) {
        ec = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
        return;
    }
    registration_ = std::move(made);
    bytes_ = bytes;
    rights_ = rights;
}

memory_region::memory_region(protection_domain const& domain, std::span<std::byte> bytes, access_flags rights) {
    error_code ec;
    *this = memory_region{domain, bytes, rights, ec};
    if (ec) detail::throw_registration_failure(ec, bytes.size());
}

local_key memory_region::key() const noexcept {
    return {registration_ != nullptr ? registration_->handle->lkey : 0};
}

local_slice memory_region::slice(std::size_t offset_bytes, std::size_t size_bytes) const {
    if (offset_bytes > size() || size_bytes > size() - offset_bytes) {
        throw boost::system::system_error{errc::out_of_range, "slice of a memory region"};
    }
    return {bytes_.subspan(offset_bytes, size_bytes), key(), mark()};
}

detail::region_mark memory_region::mark() const noexcept {
    return registration_ != nullptr ? registration_->mark : detail::region_mark{};
}

local_slice memory_region::slice_of(std::span<std::byte> part) const {
    // By std::less, which orders pointers into different objects, too.
    if (!part.empty() && std::less<>{}(part.data(), bytes_.data())) {
        throw boost::system::system_error{errc::out_of_range, "slice of a memory region"};
    }
    return part.empty() ? local_slice{} : slice(static_cast<std::size_t>(part.data() - bytes_.data()), part.size());
}

remote_region memory_region::remote() const noexcept {
    if (registration_ == nullptr) return {};
    auto const address = reinterpret_cast<std::uintptr_t>(bytes_.data());  // the peer names it by address
    return {address, bytes_.size(), remote_key{registration_->handle->rkey}, rights_};
}

ibv_mr* memory_region::native_handle() const noexcept {
    return registration_ != nullptr ? registration_->handle.get() : nullptr;
}

}  // namespace rcverbs
