#include "verbs/memory_window.hpp"

#include <utility>

#include "verbs/errno_map.hpp"
#include "verbs/region_record.hpp"
#include "verbs/rights.hpp"

namespace rcverbs::verbs {

memory_window::memory_window(std::shared_ptr<domain> in, void const* owner, error_code& ec)
    : domain_{std::move(in)},
      owner_{owner} {
    if (!domain_->on().limits().has_memory_windows) {
        ec = errc::windows_unsupported;
        return;
    }
    handle_.reset(ibv_alloc_mw(domain_->get(), IBV_MW_TYPE_2));
    ec = from_pointer(handle_.get());
    if (!ec) key_ = handle_->rkey;
}

errc memory_window::begin_bind(detail::plain_slice const& range, access_flags rights) noexcept {
    constexpr access_flags remote_all =
        access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;
    constexpr access_flags changes = access_flags::remote_write | access_flags::remote_atomic;
    if (!is_open()) return errc::not_connected;
    if (is_busy_) return errc::operation_in_progress;
    if (is_bound_) return errc::window_bound;
    if (range.size == 0) return errc::out_of_range;
    bool const is_remote = rights != access_flags::local_read && allows(remote_all, rights);
    // A window needs to know its region, which only slices with a record do.
    if (!is_remote || range.record == nullptr) return errc::access_denied;
    access_flags const needed = (rights & changes) != access_flags::local_read
                                    ? access_flags::bind_windows | access_flags::local_write
                                    : access_flags::bind_windows;
    if (errc const problem = detail::check(detail::access::mark_of(range), domain_.get(), needed);
        problem != errc{})
        return problem;
    // A new key even if the last one was never bound: the program may have sent it.
    key_ = ibv_inc_rkey(key_);
    was_invalidated_ = false;
    // Relaxed: the region is registered, and who has its slice has that behind open_record().
    region_ = range.record->handle.load(std::memory_order_relaxed);
    remote_ = {
        reinterpret_cast<std::uintptr_t>(range.data),  // the peer needs an integer
        range.size,
        remote_key{key_},
        rights};
    is_busy_ = true;
    return {};
}

errc memory_window::begin_invalidate() noexcept {
    if (!is_open()) return errc::not_connected;
    if (is_busy_) return errc::operation_in_progress;
    if (!is_bound_) return errc::window_unbound;
    is_busy_ = true;
    return {};
}

void memory_window::set_bound(bool is_bound) noexcept {
    is_bound_ = is_bound && !was_invalidated_;
    // A provider reads the key of the last binding here, as ibv_bind_mw(3) leaves it.
    if (is_bound && is_open()) handle_->rkey = key_;
}

void memory_window::fill_bind(ibv_send_wr& out) const noexcept {
    out.opcode = IBV_WR_BIND_MW;
    out.send_flags = 0;
    out.num_sge = 0;
    // SoftRoCE's provider refuses a binding with immediate data.
    out.imm_data = 0;
    out.bind_mw = {
        handle_.get(),
        key_,
        {region_,
         remote_.address(),
         remote_.size(),
         static_cast<unsigned>(to_ibv_access(remote_.rights()))}};
}

void memory_window::fill_invalidate(ibv_send_wr& out) const noexcept {
    out.opcode = IBV_WR_LOCAL_INV;
    out.send_flags = 0;
    out.num_sge = 0;
    out.invalidate_rkey = key_;
}

}  // namespace rcverbs::verbs
