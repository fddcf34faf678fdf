#include <rcverbs/memory_region.hpp>

#include "error/detailed_error.hpp"
#include "verbs/domain.hpp"
#include "verbs/errno_map.hpp"
#include "verbs/handles.hpp"
#include "verbs/region_record.hpp"
#include "verbs/rights.hpp"

#include <functional>
#include <utility>

namespace rcverbs {

namespace {

// REMOTE_WRITE and REMOTE_ATOMIC are refused without LOCAL_WRITE. Source: ibv_reg_mr(3).
access_flags with_implied(access_flags rights) noexcept {
    if ((rights & (access_flags::remote_write | access_flags::remote_atomic)) !=
        access_flags::local_read) {
        return rights | access_flags::local_write;
    }
    return rights;
}

}  // namespace

struct memory_region::registration {
    registration() = default;
    registration(registration const&) = delete;
    registration& operator=(registration const&) = delete;
    ~registration() {
        detail::close_record(mark);
        // Relaxed, here and below: a number for texts.
        if (handle) domain->on().open_regions().fetch_sub(1, std::memory_order_relaxed);
    }

    // The domain is declared first: it outlives the region.
    std::shared_ptr<verbs::domain> domain;
    verbs::region_handle handle;
    detail::region_mark mark;
};

memory_region::memory_region() noexcept = default;
memory_region::memory_region(memory_region&& other) noexcept
    : registration_{std::move(other.registration_)},
      bytes_{std::exchange(other.bytes_, {})},
      rights_{other.rights_} {}
memory_region& memory_region::operator=(memory_region&& other) noexcept {
    registration_ = std::move(other.registration_);
    bytes_ = std::exchange(other.bytes_, {});
    rights_ = other.rights_;
    return *this;
}
memory_region::~memory_region() = default;

// `register_with(pd, access)` makes the verbs object.
template <class Register>
void memory_region::open(
    protection_domain const& domain,
    std::span<std::byte> bytes,
    access_flags rights,
    error_code& ec,
    Register const& register_with
) noexcept {
    ec.clear();
    if (!domain.is_open()) {
        ec = errc::not_connected;
        return;
    }
    if (bytes.empty()) {
        ec = boost::system::errc::make_error_code(boost::system::errc::invalid_argument);
        return;
    }
    rights = with_implied(rights);
    if (allows(rights, access_flags::on_demand) && !domain.limits().has_on_demand_paging) {
        ec = errc::on_demand_paging_unsupported;
        return;
    }
    std::unique_ptr<registration> made{new (std::nothrow) registration};
    if (made == nullptr) {
        ec = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
        return;
    }
    made->domain = detail::access::impl_of(domain);
    made->handle.reset(
        register_with(detail::access::impl_of(domain)->get(), verbs::to_ibv_access(rights))
    );
    ec = verbs::from_pointer(made->handle.get());
    if (ec) return;
    detail::access::impl_of(domain)->on().open_regions().fetch_add(1, std::memory_order_relaxed);
    try {
        made->mark =
            detail::open_record(detail::access::impl_of(domain).get(), rights, made->handle.get());
    } catch (std::bad_alloc const&) {
        ec = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
        return;
    }
    registration_ = std::move(made);
    bytes_ = bytes;
    rights_ = rights;
}

memory_region::memory_region(
    protection_domain const& domain, std::span<std::byte> bytes, access_flags rights, error_code& ec
) noexcept {
    open(domain, bytes, rights, ec, [&](ibv_pd* in, int access) {
        return ibv_reg_mr(in, bytes.data(), bytes.size(), access);
    });
}

memory_region memory_region::from_dmabuf(
    protection_domain const& domain,
    int fd,
    std::uint64_t offset_bytes,
    std::span<std::byte> bytes,
    access_flags rights,
    error_code& ec
) noexcept {
    memory_region made;
    made.open(domain, bytes, rights, ec, [&](ibv_pd* in, int access) {
        auto const address = reinterpret_cast<std::uintptr_t>(bytes.data());  // for work requests
        return ibv_reg_dmabuf_mr(in, offset_bytes, bytes.size(), address, fd, access);
    });
    // A provider without the call, a kernel without it, and a device without it.
    if (ec == boost::system::errc::function_not_supported ||
        ec == boost::system::errc::operation_not_supported ||
        ec == boost::system::errc::protocol_not_supported) {
        ec = errc::dmabuf_unsupported;
    }
    return made;
}

memory_region memory_region::from_dmabuf(
    protection_domain const& domain,
    int fd,
    std::uint64_t offset_bytes,
    std::span<std::byte> bytes,
    access_flags rights
) {
    error_code ec;
    memory_region made = from_dmabuf(domain, fd, offset_bytes, bytes, rights, ec);
    if (ec) detail::throw_registration_failure(domain, ec, bytes.size());
    return made;
}

memory_region::memory_region(
    protection_domain const& domain, std::span<std::byte> bytes, access_flags rights
) {
    error_code ec;
    *this = memory_region{domain, bytes, rights, ec};
    if (ec) detail::throw_registration_failure(domain, ec, bytes.size());
}

const_memory_region::const_memory_region(
    protection_domain const& domain,
    std::span<std::byte const> bytes,
    access_flags rights,
    error_code& ec
) noexcept {
    if ((rights | access_flags::remote_read) != access_flags::remote_read) {
        ec = boost::system::errc::make_error_code(boost::system::errc::invalid_argument);
        return;
    }
    // The cast is safe: the device writes only where rights allow it, and these allow no writes.
    std::span<std::byte> const as_registered{const_cast<std::byte*>(bytes.data()), bytes.size()};
    region_ = memory_region{domain, as_registered, rights, ec};
}

const_memory_region::const_memory_region(
    protection_domain const& domain, std::span<std::byte const> bytes, access_flags rights
) {
    error_code ec;
    *this = const_memory_region{domain, bytes, rights, ec};
    if (ec) detail::throw_registration_failure(domain, ec, bytes.size());
}

local_key memory_region::key() const noexcept {
    return {registration_ != nullptr ? registration_->handle->lkey : 0};
}

mutable_slice memory_region::slice(std::size_t offset_bytes, std::size_t size_bytes) const {
    detail::check_range(size(), offset_bytes, size_bytes);
    return detail::access::make<mutable_slice>(
        bytes_.subspan(offset_bytes, size_bytes), key(), mark()
    );
}

detail::region_mark memory_region::mark() const noexcept {
    return registration_ != nullptr ? registration_->mark : detail::region_mark{};
}

mutable_slice memory_region::slice_of(std::span<std::byte const> part) const {
    // std::less also orders pointers into different objects.
    if (!part.empty() && std::less<>{}(part.data(), bytes_.data())) {
        throw boost::system::system_error{errc::out_of_range, "slice of a memory region"};
    }
    return part.empty() ? mutable_slice{}
                        : slice(static_cast<std::size_t>(part.data() - bytes_.data()), part.size());
}

remote_region memory_region::remote() const noexcept {
    if (registration_ == nullptr) return {};
    auto const address =
        reinterpret_cast<std::uintptr_t>(bytes_.data());  // the peer needs an integer
    return {address, bytes_.size(), remote_key{registration_->handle->rkey}, rights_};
}

ibv_mr* memory_region::native_handle() const noexcept {
    return registration_ != nullptr ? registration_->handle.get() : nullptr;
}

}  // namespace rcverbs
