#include <rcverbs/window.hpp>

#include <utility>

#include "connection/core.hpp"
#include "connection/window_core.hpp"

namespace rcverbs::detail {

window_core::~window_core() { connection->drop_window(window); }

std::shared_ptr<window_core> window_calls::make(std::shared_ptr<connection_core> const& on) {
    error_code ec;
    std::shared_ptr<window_core> made = on->make_window(ec);
    if (ec) throw boost::system::system_error{ec, "make a memory window"};
    return made;
}

work_request window_calls::bind_request(
    window_core& w, local_slice const& range, access_flags rights
) noexcept {
    work_request what;
    what.kind = operation_kind::bind_window;
    what.operand = reinterpret_cast<std::uintptr_t>(&w.window);  // see window_of()
    what.problem = w.connection->with_window([&] { return w.window.begin_bind(range, rights); });
    return what;
}

work_request window_calls::invalidate_request(window_core& w) noexcept {
    work_request what;
    what.kind = operation_kind::invalidate_window;
    what.operand = reinterpret_cast<std::uintptr_t>(&w.window);  // see window_of()
    what.problem = w.connection->with_window([&] { return w.window.begin_invalidate(); });
    return what;
}

void window_calls::not_started(window_core& w) noexcept {
    w.connection->with_window([&] { w.window.end_operation(); });
}

remote_region window_calls::remote(window_core const& w) noexcept {
    return w.connection->with_window([&] { return w.window.remote(); });
}

bool window_calls::is_bound(window_core const& w) noexcept {
    return w.connection->with_window([&] { return w.window.is_bound(); });
}

void window_calls::mark_invalidated(window_core& w) noexcept {
    w.connection->with_window([&] { w.window.mark_invalidated(); });
}

void window_calls::free(window_core& w) noexcept { w.connection->drop_window(w.window); }

// The window has one operation at a time, so nobody else uses it now.
remote_region window_calls::bound_region(outcome const& o) noexcept {
    if (o.word == 0) return {};
    return reinterpret_cast<verbs::memory_window const*>(static_cast<std::uintptr_t>(o.word))
        ->remote();
}

std::shared_ptr<connection_core> const& window_calls::connection_of(window_core const& w) noexcept {
    return w.connection;
}

}  // namespace rcverbs::detail
