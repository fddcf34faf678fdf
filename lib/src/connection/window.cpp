#include <rcverbs/experimental/window.hpp>

#include <utility>

#include "connection/core.hpp"
#include "connection/window_core.hpp"

namespace rcverbs::detail {

window_core::~window_core() { connection->drop_window(window); }

// The window has one operation at a time, so nobody else uses it now.
remote_region bound_region(outcome const& o) noexcept {
    if (o.word == 0) return {};
    return reinterpret_cast<verbs::memory_window const*>(static_cast<std::uintptr_t>(o.word))
        ->remote();
}

}  // namespace rcverbs::detail

namespace rcverbs {

using detail::operation_kind;
using detail::window_core;
using detail::work_request;

window_base::window_base(std::shared_ptr<detail::connection_core> const& on, error_code& ec) {
    ec = {};
    core_ = on->make_window(ec);
}

window_base::window_base(std::shared_ptr<detail::connection_core> const& on) {
    error_code ec;
    core_ = on->make_window(ec);
    if (ec) throw boost::system::system_error{ec, "make a memory window"};
}

namespace {

work_request request_for(window_base const& w, operation_kind kind) noexcept {
    work_request what;
    what.kind = kind;
    // See window_of().
    what.operand = reinterpret_cast<std::uintptr_t>(&detail::access::core_of(w)->window);
    return what;
}

}  // namespace

op::bind_t op::bind(
    window_base const& w, mutable_slice const& range, access_flags rights
) noexcept {
    work_request what = request_for(w, operation_kind::bind_window);
    what.local = detail::slice_list::untransferred(detail::access::plain_of(range));
    what.immediate = static_cast<std::uint32_t>(rights);
    return detail::access::make<bind_t>([&] { return what; });
}

op::invalidate_t op::invalidate(window_base const& w) noexcept {
    work_request what = request_for(w, operation_kind::invalidate_window);
    what.local = detail::slice_list::untransferred({});
    return detail::access::make<invalidate_t>([&] { return what; });
}

std::shared_ptr<detail::connection_core> const& window_base::connection_of(window_core const& w
) noexcept {
    return w.connection;
}

remote_region window_base::remote() const noexcept {
    return core_->connection->with_window([&] { return core_->window.remote(); });
}

bool window_base::is_bound() const noexcept {
    return core_->connection->with_window([&] { return core_->window.is_bound(); });
}

void window_base::mark_invalidated() noexcept {
    core_->connection->with_window([&] { core_->window.mark_invalidated(); });
}

}  // namespace rcverbs
