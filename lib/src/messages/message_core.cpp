#include "messages/message_core.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <functional>
#include <utility>

namespace rcverbs::detail {

namespace asio = boost::asio;

template <class Body>
void message_core::send(Body const& body, std::uint64_t tag, control_handler handler) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    error_code refused;
    outgoing_message m = message_of(body, {}, refused);
    m.tag = tag;
    guard lock{mutex_};
    channel_core::send(lock, m, std::move(who), refused);
}

template void message_core::send(std::span<std::byte const> const&, std::uint64_t, control_handler);
template void message_core::send(const_slices const&, std::uint64_t, control_handler);

void message_core::receive(message_handler handler) {
    asio::any_io_executor const own = executor();
    if (!own) return;
    waiting_handler<error_code, message> who{std::move(handler), own};
    guard lock{mutex_};
    if (is_idle()) {
        lock.unlock();
        return in_order([w = std::move(who)]() mutable { w(errc::not_connected, {}); });
    }
    receivers_.add(std::move(who), std::weak_ptr{self()}, &message_core::cancel_receive);
    // A delivery that is under way takes it.
    if (is_delivering() || !is_result_due()) return;
    lock.unlock();
    in_order([self = self()] { self->complete_and_deliver(); });
}

bool message_core::deliver_one(guard& lock) {
    if (!is_delivery_due()) return false;
    {
        auto first = receivers_.take_first();
        auto& who = first.front().handler;
        message m;
        return_path<error_code, message> back;
        error_code const ec =
            !returned_.empty() || has_message() ? error_code{} : end_of_messages();
        // One whose context is gone leaves the message for the next.
        bool const is_wanted = static_cast<bool>(who);
        if (is_wanted && !ec) {
            returned next = take_first();
            make_message(m, std::move(next.what));
            back.number = next.number;
            back.owner = self();
            back.take_back = [](void* core, std::uint64_t number, error_code&&, message&& what
                             ) noexcept {
                static_cast<message_core*>(core)->put_back(number, std::move(what));
            };
        }
        lock.unlock();
        if (is_wanted) who.hand_over_on_io(std::move(back), ec, std::move(m));
    }
    lock.lock();
    return true;
}

message_core::returned message_core::take_first() {
    if (returned_.empty()) return {++taken_, take_message()};
    returned first = std::move(returned_.front());
    returned_.pop_front();
    return first;
}

// A receive that was cancelled, or whose handler was destroyed, has not taken the message.
void message_core::put_back(std::uint64_t number, message&& m) noexcept {
    try {
        guard const lock{mutex_};
        auto const behind =
            std::ranges::upper_bound(returned_, number, std::ranges::less{}, &returned::number);
        auto const place = returned_.insert(behind, returned{number, {}});
        place->what = unmake_message(m);
        if (is_delivery_due()) in_order([self = self()] { self->complete_and_deliver(); });
    } catch (...) {
        // Without memory the message would be lost unnoticed.
        close();
    }
}

void message_core::cancel_receive(std::uint64_t serial) {
    decltype(receivers_)::removed taken;
    {
        guard const lock{mutex_};
        taken = receivers_.take(serial);
    }
    abort(std::move(taken));
}

void message_core::cancel() {
    decltype(receivers_)::removed taken;
    {
        guard const lock{mutex_};
        take_back_all();
        taken = receivers_.take_all();
    }
    abort(std::move(taken));
}

void message_core::finish(control_handler handler) {
    begin_to_finish(std::move(handler));
    guard const lock{mutex_};
    finish_sending();
}

// Handlers are destroyed uncalled, as Asio does with its own, and not under the mutex.
void message_core::on_abandoned() noexcept {
    channel_core::on_abandoned();
    decltype(receivers_)::removed receivers;
    guard const lock{mutex_};
    receivers = receivers_.take_all();
    returned_.clear();
}

message_channel_statistics message_core::statistics() const {
    guard const lock{mutex_};
    return message_statistics();
}

}  // namespace rcverbs::detail
