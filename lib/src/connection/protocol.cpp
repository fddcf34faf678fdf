#include <rcverbs/experimental/protocol.hpp>

#include <rcverbs/detail/timeouts.hpp>

#include "connection/core.hpp"
#include "connection/leaked_resources.hpp"
#include "hosting/light_mutex.hpp"
#include "hosting/members.hpp"
#include "hosting/sequence.hpp"
#include "verbs/region_record.hpp"

namespace rcverbs::protocol {

namespace asio = boost::asio;

// --- the driver ----------------------------------------------------------------------------------

class driver::impl final : public hosting::member {
public:
    explicit impl(connection over)
        : lower{std::move(over)},
          order{detail::access::core_of(lower)->order()},
          context{&asio::query(lower.get_executor(), asio::execution::context)},
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
    for (part* p = impl_->parts; p != nullptr; p = p->next_) p->abandon();
    on_abandoned();
}

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

deadline::deadline(driver& owner) : part{owner} {}
deadline::~deadline() = default;

void deadline::start(std::chrono::milliseconds after, std::function<void()> function) {
    auto const keep = owner();
    auto const io = keep->executor();
    if (!io) return;
    if (!timer_) timer_.emplace(io);
    if (!round_) round_ = std::make_shared<std::uint64_t>(0);
    function_ = std::move(function);
    timer_->expires_after(detail::bounded(after));
    // What has expired waits for its turn in the order, and this may be destroyed before.
    timer_->async_wait([this,
                        weak = std::weak_ptr{keep},
                        current = std::weak_ptr{round_},
                        round = ++*round_](error_code const& ec) {
        auto const alive = weak.lock();
        if (ec || alive == nullptr) return;
        auto expire = [this, alive, current, round] {
            auto const now = current.lock();
            if (now != nullptr && *now == round) std::exchange(function_, {})();
        };
        part::post(*alive, *new hosting::owned_task<decltype(expire)>{std::move(expire)});
    });
}

void deadline::cancel() noexcept {
    if (round_) ++*round_;
    function_ = {};
    if (timer_) timer_->cancel();
}

void deadline::abandon() noexcept {
    timer_.reset();
    function_ = {};
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
