#include <rcverbs/experimental/protocol.hpp>

#include <rcverbs/detail/timeouts.hpp>

#include <boost/asio/steady_timer.hpp>

#include <thread>

#include "connection/core.hpp"
#include "connection/leaked_resources.hpp"
#include "hosting/gate.hpp"
#include "hosting/light_mutex.hpp"
#include "hosting/members.hpp"
#include "hosting/sequence.hpp"
#include "verbs/region_record.hpp"

namespace rcverbs::protocol {

namespace asio = boost::asio;

// --- the driver ----------------------------------------------------------------------------------

// Calls deliver_one() of a driver later.
class delivery final : public hosting::order_task {
public:
    using function = void (driver::*)();

    explicit delivery(function f) noexcept : function_{f} {}
    void post(std::shared_ptr<driver> to, hosting::sequence& order) {
        driver_ = std::move(to);
        order.post(*this);
    }

private:
    void run(bool is_wanted) override {
        auto const to = std::move(driver_);
        if (is_wanted) ((*to).*function_)();
    }

    std::shared_ptr<driver> driver_;  // while it is posted
    function function_;
};

class driver::impl final : public hosting::member {
public:
    explicit impl(connection over)
        : lower{std::move(over)},
          order{detail::access::core_of(lower)->order()},
          context{&asio::query(lower.get_executor(), asio::execution::context)},
          state_gate{detail::access::core_of(lower)->state_gate()},
          executor{std::make_shared<asio::any_io_executor const>(lower.get_executor())} {}

    void context_is_going(asio::execution_context const&) noexcept override {
        if (auto const self = owner.lock()) self->abandon();
    }

    connection lower;
    std::shared_ptr<hosting::sequence> const order;
    asio::execution_context* const context;
    std::weak_ptr<driver> owner;
    hosting::membership membership;
    part* parts = nullptr;
    error_code end_code;  // used in the order

    // Of the connection, which `lower` keeps.
    hosting::gate& state_gate;
    // Used inside. From when the delivery is posted, or begins, until nothing is due.
    bool is_delivering = false;
    delivery deliver_later{&driver::deliver};

    hosting::light_mutex mutex;
    // Guarded by the mutex, as any thread may read them. The executor, which may be the program's own,
    // is not copied under it.
    std::shared_ptr<asio::any_io_executor const> executor;
    failure found;
    // From close() to the end.
    std::shared_ptr<driver> kept;
    bool has_ended = false;
};

driver::driver(connection over) {
    if (!over.is_valid()) throw boost::system::system_error{errc::not_connected, "protocol"};
    impl_ = std::make_shared<impl>(std::move(over));
}

driver::~driver() = default;

void driver::keep_for_messages(std::size_t count) noexcept {
    detail::access::core_of(impl_->lower)->keep_for_messages(count);
}

void driver::attach() {
    impl_->owner = weak_from_this();
    impl_->membership.join(impl_->lower.get_executor(), impl_, hosting::rank::above_connections);
    detail::access::core_of(impl_->lower)->call_at_end([weak = weak_from_this()] {
        auto const self = weak.lock();
        if (self != nullptr) self->in_order([self] { self->end(); });
    });
}

void driver::end() {
    failure why = last_failure();
    if (!why.code) {
        why.code = why.reason == close_reason::completed ? error_code{asio::error::eof}
                   : why.reason == close_reason::peer_disconnected
                       ? error_code{errc::peer_disconnected}
                       : error_code{asio::error::operation_aborted};
    }
    {
        std::shared_ptr<driver> kept;
        hosting::light_lock const lock{impl_->mutex};
        impl_->has_ended = true;
        kept.swap(impl_->kept);
    }
    impl_->end_code = why.code;
    on_end(why);
}

void driver::keep_until_end() noexcept {
    auto const self = weak_from_this().lock();
    hosting::light_lock const lock{impl_->mutex};
    // The context, which would bring the end, is gone.
    if (!impl_->has_ended && impl_->executor != nullptr) impl_->kept = self;
}

void driver::abandon() noexcept {
    {
        std::shared_ptr<asio::any_io_executor const> gone;
        std::shared_ptr<driver> kept;
        hosting::light_lock const lock{impl_->mutex};
        gone.swap(impl_->executor);
        kept.swap(impl_->kept);
    }
    // Another thread may be inside, for a moment.
    while (!try_enter()) std::this_thread::yield();
    for (part* p = impl_->parts; p != nullptr; p = p->next_) p->abandon();
    on_abandoned();
    impl_->state_gate.leave();
}

// --- the use of its state ------------------------------------------------------------------------

bool driver::try_enter() noexcept { return impl_->state_gate.try_enter(); }

void driver::enter_later(entered& what) noexcept {
    if (impl_->state_gate.hand_over(what)) return;
    // Whoever was inside has left.
    auto const self = shared_from_this();
    what.run(true);
    self->impl_->state_gate.leave();
}

void driver::entered::run(bool is_wanted) {
    struct cleanup {
        entered& self;
        ~cleanup() { self.destroy(); }
    } const on_return{*this};
    if (!is_wanted) return;
    try {
        call();
    } catch (...) {
        // Nobody who has started it would be told.
        driver_->close();
    }
    driver_->post_delivery();
}

void driver::post_delivery() noexcept {
    if (!is_delivery_due() || impl_->is_delivering) return;
    impl_->is_delivering = true;
    deliver_later();
}

void driver::deliver_later() noexcept {
    try {
        impl_->deliver_later.post(shared_from_this(), *impl_->order);
    } catch (...) {
        // There is no memory for that.
        close();
    }
}

void driver::leave() noexcept {
    post_delivery();
    impl_->state_gate.leave();
}

void driver::leave_and_deliver() {
    if (!is_delivery_due() || impl_->is_delivering) return impl_->state_gate.leave();
    impl_->is_delivering = true;
    go_on_delivering();
}

void driver::deliver() {
    if (try_enter()) return go_on_delivering();
    auto again = [this] { deliver_later(); };
    enter_later(keep(std::move(again)));
}

// Inside; the state is left, unless a handler throws.
void driver::go_on_delivering() {
    // What an exception of a handler leaves is given out later.
    struct cleanup {
        driver& of;
        bool is_done = false;
        ~cleanup() {
            if (!is_done) of.deliver_later();
        }
    } on_return{*this};
    while (deliver_one()) {
        if (try_enter()) continue;
        on_return.is_done = true;
        return deliver();
    }
    on_return.is_done = true;
    on_delivered();
    impl_->is_delivering = false;
    leave();
}

// --- what else a driver does ---------------------------------------------------------------------

bool driver::is_undrained() const noexcept {
    return detail::access::core_of(impl_->lower)->is_queue_pair_left();
}

void driver::keep_if_undrained(registered_buffer& memory) {
    if (memory.size() > 0 && is_undrained())
        detail::leak_memory(std::make_shared<registered_buffer>(std::move(memory)));
}

connection& driver::lower() noexcept { return impl_->lower; }
connection const& driver::lower() const noexcept { return impl_->lower; }

asio::any_io_executor driver::executor() const {
    std::shared_ptr<asio::any_io_executor const> present;
    {
        hosting::light_lock const lock{impl_->mutex};
        present = impl_->executor;
    }
    return present != nullptr ? *present : asio::any_io_executor{};
}

void driver::post(hosting::order_task& what) const { impl_->order->post(what); }

void driver::close() noexcept {
    keep_until_end();
    impl_->lower.close();
}

error_code driver::fail(step where, error_code why, close_reason reason) noexcept {
    {
        failure const now{where, why, impl_->lower.remote_endpoint(), 0, reason};
        hosting::light_lock const lock{impl_->mutex};
        if (impl_->found.reason == close_reason::completed) return why;
        if (!impl_->found.code) impl_->found = now;
    }
    keep_until_end();
    if (reason == close_reason::protocol_error) impl_->lower.close(why);
    else impl_->lower.close();
    return why;
}

bool driver::complete() noexcept {
    hosting::light_lock const lock{impl_->mutex};
    if (impl_->found.code) return false;
    impl_->found.reason = close_reason::completed;
    return true;
}

failure driver::last_failure() const {
    failure const of_connection = impl_->lower.last_failure();
    hosting::light_lock const lock{impl_->mutex};
    // After a protocol that has completed, the disconnect by the peer is not a failure.
    bool const is_own = impl_->found.code || impl_->found.reason == close_reason::completed;
    failure all = is_own ? impl_->found : of_connection;
    if (all.reason == close_reason::open) all.reason = of_connection.reason;
    return all;
}

asio::execution_context& driver::context() const noexcept { return *impl_->context; }

asio::execution_context& order_executor::query(asio::execution::context_t) const noexcept {
    return driver_->context();
}

// --- its parts -----------------------------------------------------------------------------------

part::part(driver& owner) : owner_{owner}, next_{owner.impl_->parts} { owner.impl_->parts = this; }

part::~part() {
    part** at = &owner_.impl_->parts;
    while (*at != this) at = &(*at)->next_;
    *at = next_;
}

std::shared_ptr<driver> part::owner() const { return owner_.shared_from_this(); }
error_code part::end_code() const noexcept { return owner_.impl_->end_code; }
void part::post(hosting::order_task& what) const { post(owner_, what); }
void part::post(driver const& to, hosting::order_task& what) { to.post(what); }

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

deadline::deadline(driver& owner) : part{owner}, state_{std::make_shared<state>()} {}
deadline::~deadline() = default;

void deadline::start(std::chrono::milliseconds after, std::function<void()> function) {
    auto const keep = owner();
    auto const io = keep->executor();
    if (!io) return;
    hosting::light_lock const lock{state_->mutex};
    if (!state_->timer) state_->timer.emplace(io);
    std::swap(state_->function, function);
    state_->timer->expires_after(detail::bounded(after));
    state_->timer->async_wait([driver = std::weak_ptr{keep},
                               mine = std::weak_ptr{state_},
                               round = ++state_->round](error_code const& ec) {
        auto const alive = driver.lock();
        if (ec || alive == nullptr) return;
        // The driver may start or cancel it until it is its turn.
        auto expire = [alive, mine, round] {
            auto const now = mine.lock();
            if (now == nullptr) return;
            if (auto const run = now->take(round)) run();
        };
        part::post(*alive, *new hosting::owned_task<decltype(expire)>{std::move(expire)});
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

// --- memory for the peer -------------------------------------------------------------------------

remote_region expose(
    const_slice const& what, access_flags rights, connection const& on, error_code& ec
) noexcept {
    ec = detail::check(what.mark(), on.domain().impl().get(), rights);
    if (!ec && what.mark().record == nullptr) ec = errc::access_denied;
    return ec ? remote_region{} : what.remote(ec);
}

}  // namespace rcverbs::protocol
