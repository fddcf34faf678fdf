// A connection's operations that own their memory.
#include "connection/leased_operations.hpp"

#include <boost/asio/error.hpp>

#include <cassert>

#include "connection/core.hpp"
#include "connection/leaked_resources.hpp"

namespace rcverbs {

void memory_lease::release() noexcept {
    // The owner may end with this reference, after it has the memory back.
    std::shared_ptr<void> const owner = std::move(owner_);
    slice_ = {};
    if (owner != nullptr && give_back_ != nullptr) give_back_(owner.get(), index_);
    give_back_ = nullptr;
}

namespace detail {

namespace asio = boost::asio;

namespace {

// The whole outcome, for internal handlers.
struct whole_outcome {
    outcome const& operator()(outcome const& o) const noexcept { return o; }
};

}  // namespace

// The internal handler of the posted part. It belongs to the connection, which outlives it.
struct connection_core::owner_of_memory {
    connection_core* core;
    memory_lease memory;
    leased_waiter* waiter;  // null for a receive
    std::uint32_t use;

    owner_of_memory(
        connection_core* owner, memory_lease lease, leased_waiter* w, std::uint32_t use_of_waiter
    ) noexcept
        : core{owner},
          memory{std::move(lease)},
          waiter{w},
          use{use_of_waiter} {}
    owner_of_memory(owner_of_memory&&) noexcept = default;
    // It is destroyed without a call if the io_context is.
    ~owner_of_memory() {
        if (memory.is_valid() && core->is_queue_pair_left_) keep();
    }

    void operator()(error_code ec, outcome const& result) {
        // The device may still use it: nobody gets it back.
        if (ec == errc::not_drained && memory.is_valid()) keep();
        core->on_leased(ec, result, std::move(memory), waiter, use);
    }
    void keep() { leak_memory(std::make_shared<memory_lease>(std::move(memory))); }
};

void start_leased(
    std::shared_ptr<connection_core> const& core,
    work_request const& what,
    memory_lease memory,
    handler_source source
) {
    core->start_leased(what, std::move(memory), source);
}

void connection_core::start_leased(
    work_request const& what, memory_lease memory, handler_source source
) {
    leased_waiter& w = *seen([this] {
        assert(
            !is_context_gone_ && "an operation was started after its io_context had been destroyed"
        );
        if (leased_ == nullptr) leased_ = std::make_unique<leased_operations>();
        return &leased_->take();
    });
    try {
        put(source, w);
    } catch (...) {
        discard(w);
        throw;
    }
    bool is_started = false;
    {
        entry const inside{*this};
        if (!is_shut_down_) {
            is_started = true;
            w.stage = operation::stage::started;
            if (what.kind == operation_kind::receive) {
                start_leased_receive(what, memory, w);
            } else if (error_code const refused = post_leased(what, memory, &w)) {
                complete_later(w, refused, {}, std::move(memory));
            }
        }
    }
    if (!is_started) discard(w);
}

// Stores the program's handler, without the lock.
void connection_core::put(handler_source const& source, leased_waiter& w) {
    asio::cancellation_slot slot;
    if (source.actions->slot != nullptr) slot = source.actions->slot(source.handler);
    source.actions->place(source.handler, w, executor_);
    if (slot.is_connected()) {
        w.memory.is_cancelled =
            assign_noted(slot, [weak = weak_from_this(), &w, use = w.use](asio::cancellation_type) {
                if (auto const self = weak.lock()) self->cancel_leased(w, use);
            });
    }
    if (w.host == nullptr) return;
    guard const lock{mutex_};
    if (w.host != host_) become_guest(*w.host);
}

// Gives a waiter back whose handler must not be called.
void connection_core::discard(leased_waiter& w) noexcept {
    w.drop();
    guard const lock{mutex_};
    leased_->release(w);
}

// REQUIRES: the lock is held, as for the functions below. What is left of `memory` is destroyed
// without it.
void connection_core::start_leased_receive(
    work_request const& what, memory_lease& memory, leased_waiter& w
) {
    using start = machines::leased_receives::start;
    if (data_.has_borrowed_receives())
        return complete_later(w, errc::receives_mixed, {}, std::move(memory));
    start const action = leased_->receives.on_start();
    if (action == start::take_kept) {
        leased_operations::kept_message oldest = leased_->take_kept();
        outcome arrived;
        arrived.arrival = oldest.result;
        w.number = oldest.number;
        set_result(w, {}, arrived, std::move(oldest.memory));
        leased_->due.push_back(w);
        waiters_.run([self = shared_from_this()] { self->call_due_receivers(); });
        if (post_leased(what, memory, nullptr)) leased_->receives.on_refused(action);
        return;
    }
    leased_->receivers.push_back(w);
    if (action == start::adopt) return;
    if (error_code const refused = post_leased(what, memory, nullptr)) {
        leased_->receives.on_refused(action);
        leased_->receivers.remove(w);
        complete_later(w, refused, {}, std::move(memory));
    }
}

// Posts an operation that owns its memory; `memory` is unchanged if it is refused.
error_code connection_core::post_leased(
    work_request const& what, memory_lease& memory, leased_waiter* w
) {
    static_assert(sizeof(owner_of_memory) <= operation::handler_bytes_max);
    auto const [op, refused] =
        w == nullptr ? data_.reserve_leased_receive(what) : data_.reserve({&what, 1}, turn::wait);
    if (op == nullptr)
        return refused == errc::not_connected ? life_.refusal_code() : error_code{refused};
    if (w != nullptr) {
        w->posted = op;
        w->posted_use = op->use;
    }
    op->emplace<whole_outcome>(
        owner_of_memory{this, std::move(memory), w, w != nullptr ? w->use : 0}, executor_
    );
    static_cast<void>(start(*op, {&what, 1}));  // is not shut down
    return {};
}

// The posted part has completed. Called without the lock, in the connection's order.
void connection_core::on_leased(
    error_code ec, outcome const& result, memory_lease memory, leased_waiter* w, std::uint32_t use
) {
    using arrival = machines::leased_receives::arrival;
    {
        guard const lock{mutex_};
        if (w != nullptr) {
            if (w->use != use || w->stage != operation::stage::started) return;
            set_result(*w, ec, result, std::move(memory));
        } else {
            switch (leased_->receives.on_completion(ec.failed())) {
            case arrival::complete:
                complete_receiver(ec, ++leased_->arrived, result, std::move(memory));
                break;
            case arrival::keep: return leased_->keep(++leased_->arrived, result.arrival, memory);
            case arrival::drop: return;
            }
        }
    }
    if (w != nullptr) call_handler(*w);
    else call_due_receivers();
}

// REQUIRES: the lock is held, and a handler waits.
void connection_core::complete_receiver(
    error_code ec, std::uint64_t number, outcome const& result, memory_lease memory
) noexcept {
    auto& first = *static_cast<leased_waiter*>(leased_->receivers.pop_front());
    first.number = number;
    set_result(first, ec, result, std::move(memory));
    leased_->due.push_back(first);
}

// A handler that was cancelled, or destroyed, has not taken the message. Any thread.
void connection_core::take_back(
    std::uint64_t number, receive_result const& what, memory_lease memory
) noexcept {
    using arrival = machines::leased_receives::arrival;
    try {
        entry const inside{*this};
        if (is_shut_down_) return;
        if (leased_->receives.on_return() == arrival::keep)
            return leased_->keep(number, what, memory);
        outcome arrived;
        arrived.arrival = what;
        complete_receiver({}, number, arrived, std::move(memory));
        waiters_.run([self = shared_from_this()] { self->call_due_receivers(); });
    } catch (...) {
        // Without memory the message would be lost unnoticed.
        close();
    }
}

// Calls those who have got a message, in the order of their calls: one that took a kept message may
// still wait for its turn when the next message arrives. Called as on_leased().
void connection_core::call_due_receivers() {
    // A handler may throw; the others are called later.
    struct remainder {
        connection_core& self;
        bool is_done = false;
        ~remainder() {
            if (is_done) return;
            self.order()->call([again = self.shared_from_this()] { again->call_due_receivers(); });
        }
    } on_return{*this};
    for (;;) {
        leased_waiter* first = nullptr;
        {
            guard const lock{mutex_};
            first = static_cast<leased_waiter*>(leased_->due.pop_front());
        }
        if (first == nullptr) break;
        call_handler(*first);
    }
    on_return.is_done = true;
}

void connection_core::set_result(
    leased_waiter& w, error_code ec, outcome const& result, memory_lease memory
) noexcept {
    w.stage = operation::stage::done;
    w.code = ec;
    w.result = result;
    w.memory.lease = std::move(memory);
    w.result.memory = &w.memory;
}

void connection_core::complete_later(
    leased_waiter& w, error_code ec, outcome const& result, memory_lease memory
) {
    set_result(w, ec, result, std::move(memory));
    waiters_.run([self = shared_from_this(), &w] { self->call_handler(w); });
}

// Called without the lock, in the connection's order.
void connection_core::call_handler(leased_waiter& w) {
    struct cleanup {
        connection_core& self;
        leased_waiter& w;
        ~cleanup() {
            w.memory.lease.release();
            guard const lock{self.mutex_};
            self.leased_->release(w);
        }
    } const on_return{*this, w};
    if (!w.is_pending()) return;
    // Only such a handler can leave the message of a receive.
    bool const may_leave = w.memory.is_cancelled != nullptr || w.host != nullptr;
    if (w.posted == nullptr && !w.code && may_leave) {
        auto const back =
            [](void* core, std::uint64_t number, receive_result&& what, memory_lease&& memory
            ) noexcept {
                static_cast<connection_core*>(core)->take_back(number, what, std::move(memory));
            };
        w.memory.back = {shared_from_this(), back, w.number};
    }
    outgoing_parcels outgoing;
    w.complete(outgoing);
    outgoing.send();
}

void connection_core::cancel_leased(leased_waiter& w, std::uint32_t use) {
    entry const inside{*this};
    if (w.use == use && w.stage == operation::stage::started && !is_shut_down_) cancel_leased(w);
}

// REQUIRES: the lock is held, and the handler waits.
void connection_core::cancel_leased(leased_waiter& w) {
    if (w.posted == nullptr) {
        leased_->receivers.remove(w);
        leased_->receives.on_cancel();
    } else if (w.posted->use == w.posted_use && w.posted->stage == operation::stage::started && data_.take_back(*w.posted)) {
        // Nothing of it was posted: its handler gets the memory back.
        operation_list taken;
        taken.push_back(*w.posted);
        return waiters_.run([self = shared_from_this(), taken] { self->post_handlers(taken); });
    }
    complete_later(w, asio::error::operation_aborted, {}, {});
}

}  // namespace detail

}  // namespace rcverbs
