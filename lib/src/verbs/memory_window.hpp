// memory_window.hpp — a memory window of type 2, its keys, and its work requests.
//
// A window is bound and invalidated by work requests of one queue pair. Each binding has a key of
// its own: the low byte of the window's key counts. Source: ibv_alloc_mw(3), ibv_bind_mw(3).
// Guarded by the lock of the connection.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <infiniband/verbs.h>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/remote_region.hpp>

#include "verbs/domain.hpp"

namespace rcverbs::verbs {

class memory_window {
public:
    /// @param owner  What posts its operations.
    memory_window(std::shared_ptr<domain> in, void const* owner, error_code& ec);

    bool is_of(void const* poster) const noexcept { return owner_ == poster; }

    struct dealloc {
        // ibv_dealloc_mw is inline in the C header, so it cannot be a template argument as in
        // handles.hpp.
        void operator()(ibv_mw* window) const noexcept {
            static_cast<void>(ibv_dealloc_mw(window));
        }
    };
    using handle = std::unique_ptr<ibv_mw, dealloc>;

    /// Takes the handle, whose destruction frees the window and invalidates its key.
    handle release() noexcept { return std::move(handle_); }
    bool is_open() const noexcept { return handle_ != nullptr; }

    /// Makes the next binding known, gives it a key, and makes the window busy; or returns why it is
    /// refused.
    errc begin_bind(detail::plain_slice const& range, access_flags rights) noexcept;
    /// What the peer needs to know of the binding that was prepared last.
    remote_region const& remote() const noexcept { return remote_; }
    /// Makes the window busy, or returns why it cannot be invalidated.
    errc begin_invalidate() noexcept;
    /// The operation that made the window busy has ended.
    void end_operation() noexcept { is_busy_ = false; }

    /// Fill a work request, but for its id and flags. REQUIRES: is_open().
    void fill_bind(ibv_send_wr& out) const noexcept;
    void fill_invalidate(ibv_send_wr& out) const noexcept;

    /// Called when a work request has succeeded.
    void set_bound(bool is_bound) noexcept;
    /// The peer has invalidated the key, perhaps before the binding's completion was polled.
    void mark_invalidated() noexcept {
        is_bound_ = false;
        was_invalidated_ = is_busy_;
    }
    bool is_bound() const noexcept { return is_bound_ && is_open(); }

private:
    // Declared first: it outlives the window.
    std::shared_ptr<domain> domain_;
    void const* owner_;
    handle handle_;
    bool is_bound_ = false;
    bool is_busy_ = false;
    bool was_invalidated_ = false;
    std::uint32_t key_ = 0;
    ibv_mr* region_ = nullptr;
    remote_region remote_;
};

}  // namespace rcverbs::verbs
