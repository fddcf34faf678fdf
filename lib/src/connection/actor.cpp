#include <rcverbs/experimental/protocol/actor.hpp>

#include <boost/asio/steady_timer.hpp>

#include <thread>

#include <rcverbs/detail/timeouts.hpp>
#include <rcverbs/experimental/protocol/deadline.hpp>

#include "connection/actor_impl.hpp"
#include "connection/leaked_resources.hpp"

namespace rcverbs::protocol {

namespace asio = boost::asio;

// NOLINTNEXTLINE(performance-unnecessary-value-param): it is kept twice
actor::actor(asio::any_io_executor where)
    : actor{std::make_shared<impl>(std::make_shared<hosting::sequence>(where), where)} {}
actor::actor(std::shared_ptr<impl> made) noexcept : impl_{std::move(made)} {}
actor::~actor() = default;

void actor::attach() {
    impl_->owner = weak_from_this();
    impl_->membership.join(executor(), impl_, hosting::rank::above_connections);
}

std::shared_ptr<asio::any_io_executor const> actor::present_executor() const {
    hosting::light_lock const lock{impl_->mutex};
    return impl_->executor;
}

asio::any_io_executor actor::executor() const {
    auto const present = present_executor();
    return present != nullptr ? *present : asio::any_io_executor{};
}

asio::execution_context& actor::context() const noexcept { return *impl_->context; }

asio::execution_context& order_executor::query(asio::execution::context_t) const noexcept {
    return actor_->context();
}

void actor::abandon() noexcept {
    {
        std::shared_ptr<asio::any_io_executor const> gone;
        std::shared_ptr<actor> kept;
        hosting::light_lock const lock{impl_->mutex};
        gone.swap(impl_->executor);
        kept.swap(impl_->kept);
    }
    // Another thread may be inside, for a moment. Nothing starts any more.
    while (!try_enter()) std::this_thread::yield();
    if (!stop_device()) {
        impl_->inside.close();
        return detail::leak_memory(shared_from_this());
    }
    for (part* p = impl_->parts; p != nullptr; p = p->next_) p->abandon();
    impl_->drop_ready();
    on_abandoned();
    impl_->inside.close();
}

// --- being inside --------------------------------------------------------------------------------

bool actor::try_enter() noexcept { return impl_->inside.try_enter(); }

void actor::enter_later(task& what) noexcept {
    if (impl_->inside.hand_over(what)) return;
    // Whoever was inside has left.
    what.run(true);
    leave_gate();
}

void actor::post(task& what) noexcept {
    what.is_posted_ = true;
    try {
        impl_->order->post(what);
    } catch (...) {
        give_up();
    }
}

// In the order, or handed over to the thread that is inside.
void actor::task::run(bool is_wanted) {
    bool const was_posted = std::exchange(is_posted_, false);
    if (!is_wanted) return destroy();
    if (!was_posted) {
        call_inside();
        actor_->note_due();
        return destroy();
    }
    auto const keep = actor_;
    if (!keep->try_enter()) return keep->enter_later(*this);
    call_inside();
    destroy();
    keep->leave_and_deliver();
}

void actor::task::call_inside() noexcept {
    try {
        call();
    } catch (...) {
        // Nobody who waits for it would be told.
        actor_->give_up();
    }
}

void actor::leave() noexcept {
    note_due();
    leave_gate();
}

void actor::leave_gate() noexcept {
    for (;;) {
        bool const posts = std::exchange(impl_->is_delivery_wanted, false);
        if (impl_->inside.try_leave()) {
            if (posts) deliver_later();
            return;
        }
        impl_->is_delivery_wanted = posts;
        impl_->inside.run_handed_over();
    }
}

// --- handlers ------------------------------------------------------------------------------------

void actor::add_ready(hosting::order_task& what) noexcept { impl_->ready.push_back(what); }

bool actor::is_due() noexcept { return !impl_->ready.is_empty() || is_delivery_due(); }

// Who delivers looks again.
void actor::note_due() noexcept {
    if (impl_->is_delivering) return;
    publish_state();
    if (is_due()) impl_->is_delivering = impl_->is_delivery_wanted = true;
}

void actor::refresh() noexcept {
    if (!try_enter()) return;
    publish_state();
    leave_gate();
}

void actor::deliver_later() noexcept {
    try {
        impl_->deliver_later.post(shared_from_this(), *impl_->order);
    } catch (...) {
        give_up();
    }
}

void actor::leave_and_deliver() {
    note_due();
    if (!std::exchange(impl_->is_delivery_wanted, false)) return leave_gate();
    go_on_delivering();
}

// In the order; not inside.
void actor::deliver_posted() {
    if (try_enter()) return go_on_delivering();
    auto again = [this] { impl_->is_delivery_wanted = true; };
    enter_later(keep(std::move(again)));
}

// Inside, which is left.
void actor::go_on_delivering() {
    // What an exception of a handler leaves is delivered later.
    struct cleanup {
        actor& of;
        bool is_done = false;
        ~cleanup() {
            if (!is_done) of.deliver_later();
        }
    } on_return{*this};
    while (is_due() && deliver_next()) {
        if (try_enter()) continue;
        on_return.is_done = true;
        return deliver_posted();
    }
    on_return.is_done = true;
    on_delivered();
    impl_->is_delivering = false;
    leave();
}

bool actor::deliver_next() {
    if (impl_->ready.is_empty()) return deliver_one();
    hosting::order_task* const first = impl_->ready.pop_front();
    leave_gate();
    first->run(true);
    return true;
}

// --- its parts -----------------------------------------------------------------------------------

part::part(actor& owner) : owner_{owner}, next_{owner.impl_->parts} { owner.impl_->parts = this; }

part::~part() {
    part** at = &owner_.impl_->parts;
    while (*at != this) at = &(*at)->next_;
    *at = next_;
}

std::shared_ptr<actor> part::owner() const { return owner_.shared_from_this(); }
error_code part::end_code() const noexcept { return owner_.impl_->end_code; }
void part::give_up(actor& which) noexcept { which.give_up(); }

struct deadline::state {
    hosting::light_mutex mutex;
    // Guarded by it. The timer calls nothing of a program's.
    std::optional<asio::steady_timer> timer;
    std::function<void()> function;
    std::uint64_t round = 0;

    std::function<void()> take(std::uint64_t of_round) {
        hosting::light_lock const lock{mutex};
        return round == of_round ? std::exchange(function, nullptr) : nullptr;
    }
};

deadline::deadline(actor& owner) : part{owner}, state_{std::make_shared<state>()} {}
deadline::~deadline() = default;

void deadline::start(std::chrono::milliseconds after, std::function<void()> function) {
    auto const keep = owner();
    auto const io = keep->executor();
    if (!io) return;
    hosting::light_lock const lock{state_->mutex};
    if (!state_->timer) state_->timer.emplace(io);
    std::swap(state_->function, function);
    state_->timer->expires_after(detail::bounded(after));
    state_->timer->async_wait([owner = std::weak_ptr{keep},
                               mine = std::weak_ptr{state_},
                               round = ++state_->round](error_code const& ec) {
        auto const alive = owner.lock();
        if (ec || alive == nullptr) return;
        // It may be started or cancelled until it is its turn.
        in_order(*alive, [mine, round] {
            auto const now = mine.lock();
            if (now == nullptr) return;
            if (auto const run = now->take(round)) run();
        });
    });
}

void deadline::cancel() noexcept {
    std::function<void()> dropped;
    hosting::light_lock const lock{state_->mutex};
    ++state_->round;
    dropped.swap(state_->function);
    if (state_->timer) state_->timer->cancel();
}

void deadline::abandon() noexcept {
    std::function<void()> dropped;
    hosting::light_lock const lock{state_->mutex};
    dropped.swap(state_->function);
    state_->timer.reset();
}

}  // namespace rcverbs::protocol
