// operation_list.hpp — a list of operations, and the functions that store and call their handlers;
// for a connection's own queues and for shared receive queues.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <memory>
#include <utility>

#include <rcverbs/detail/operation.hpp>
#include <rcverbs/detail/start.hpp>

#include "probes/probe.hpp"

namespace rcverbs::detail {

/// An intrusive first-in-first-out list of operations.
class operation_list {
public:
    bool empty() const noexcept { return first_ == nullptr; }
    operation* front() const noexcept { return first_; }
    operation* back() const noexcept { return last_; }
    void push_back(operation& op) noexcept {
        op.next = nullptr;
        (last_ != nullptr ? last_->next : first_) = &op;
        last_ = &op;
    }
    void push_front(operation& op) noexcept {
        op.next = first_;
        first_ = &op;
        if (last_ == nullptr) last_ = &op;
    }
    operation* pop_front() noexcept {
        operation* const op = first_;
        if (op == nullptr) return nullptr;
        first_ = op->next;
        if (first_ == nullptr) last_ = nullptr;
        return op;
    }
    /// Removes one operation; false if it is not on the list.
    bool remove(operation& op) noexcept;
    /// Appends another list's operations and leaves it empty.
    void append(operation_list& other) noexcept {
        if (other.first_ == nullptr) return;
        (last_ != nullptr ? last_->next : first_) = other.first_;
        last_ = other.last_;
        other = {};
    }
    /// Removes and returns this operation and all behind it. REQUIRES: it is on the list.
    operation_list split_from(operation& op) noexcept;

private:
    operation* first_ = nullptr;
    operation* last_ = nullptr;
};

/// Has a cancellation signal call `owner.cancel(op, use, type)`, as long as the owner exists. As with
/// Asio's own operations, the slot is not cleared when the operation completes: the owner ignores a
/// signal for an earlier use of the operation.
template <class Owner>
[[gnu::noinline]] void connect_slot(
    boost::asio::cancellation_slot slot, operation& op, Owner& owner
) {
    slot.assign(
        [owner = owner.weak_from_this(), &op, use = op.use](boost::asio::cancellation_type type) {
            if (auto const self = owner.lock()) self->cancel(op, use, type);
        }
    );
}

/// Stores a handler in the operation, and connects its cancellation slot.
template <class Owner>
void place_handler(
    handler_source const& source,
    operation& op,
    boost::asio::any_io_executor const& io,
    Owner& owner
) {
    // Read before the handler is moved.
    boost::asio::cancellation_slot slot;
    if (source.actions->slot != nullptr) slot = source.actions->slot(source.handler);
    source.actions->place(source.handler, op, io);
    if (slot.is_connected()) connect_slot(slot, op, owner);
}

/// An operation that is refused, with its handler: for complete_refused(), in the order of the other
/// handlers. Null if the handler has an executor of its own, to which it is posted.
///
/// @param io  The executor of the other handlers.
std::unique_ptr<operation> refused_operation(
    boost::asio::any_io_executor const& io, handler_source const& source, error_code why
);
void complete_refused(operation& op);

/// Calls the handlers of completed operations, then `end(called, left)`. If a handler throws,
/// `left` holds the operations whose handlers are still to be called. An operation may have no
/// handler, and a handler may destroy the other handlers. Handlers of other executors are sent
/// there.
template <class End>
void call_handlers(operation_list done, End const& end) {
    outgoing_parcels outgoing;
    struct calling {
        operation_list done;
        operation* next;
        End const& end;

        ~calling() {
            operation_list left;
            if (next != nullptr) left = done.split_from(*next);
            end(done, left);
        }
    };
    calling c{done, done.front(), end};
    while (c.next != nullptr) {
        operation& op = *std::exchange(c.next, c.next->next);
        RCVERBS_PROBE1(operation_done, &op);
        if (op.is_pending()) op.complete(outgoing);
    }
    outgoing.send();
}

}  // namespace rcverbs::detail
