#include "messages/message_core.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <functional>
#include <utility>

namespace rcverbs::detail {

namespace asio = boost::asio;

void message_core::send(body_source const& body, std::uint64_t tag, control_handler handler) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    error_code refused;
    outgoing_message m = message_of(body, {}, refused);
    m.tag = tag;
    enter(
        [this, refused](outgoing_message& what, waiter& w) {
            channel_core::send(what, w, refused);
        },
        std::move(m),
        std::move(who)
    );
}

void message_core::receive(message_handler handler) {
    auto const own = present_executor();
    if (own == nullptr) return;
    enter(
        [this](receiver& who) {
            if (is_idle()) return deliver(std::move(who), errc::not_connected, {});
            std::weak_ptr<message_core> owner;
            if (who.can_be_cancelled()) owner = self();
            receivers_.add(std::move(who), std::move(owner), &message_core::cancel_receive);
        },
        receiver{std::move(handler), *own}
    );
}

bool message_core::deliver_result() {
    receiver who = receivers_.pop_first();
    message m;
    return_path<error_code, message> back;
    error_code const ec = !returned_.empty() || has_message() ? error_code{} : end_of_messages();
    // One whose context is gone leaves the message for the next.
    bool const is_wanted = static_cast<bool>(who);
    if (is_wanted && !ec) {
        returned next = take_first();
        make_message(m, std::move(next.what));
        back.number = next.number;
        // The message keeps it.
        back.owner = std::shared_ptr<void>{std::shared_ptr<void>{}, this};
        back.take_back = [](void* core, std::uint64_t number, error_code&&, message&& what
                         ) noexcept {
            auto const keep = static_cast<message_core*>(core)->self();
            keep->put_back(number, std::move(what));
        };
    }
    leave();
    if (is_wanted) who.hand_over_on_io(std::move(back), error_code{ec}, std::move(m));
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
        enter(
            [this, number](message& what) {
                auto const behind = std::ranges::upper_bound(
                    returned_, number, std::ranges::less{}, &returned::number
                );
                auto const place = returned_.insert(behind, returned{number, {}});
                place->what = unmake_message(what);
            },
            std::move(m)
        );
    } catch (...) {
        // Without memory the message would be lost unnoticed.
        close();
    }
}

void message_core::cancel_receive(std::uint64_t serial) {
    enter([this, serial] { abort(receivers_.take(serial)); });
}

void message_core::cancel() {
    enter([this] {
        take_back_all();
        abort(receivers_.take_all());
    });
}

// Handlers are destroyed uncalled, as Asio does with its own.
void message_core::on_abandoned() noexcept {
    channel_core::on_abandoned();
    static_cast<void>(receivers_.take_all());
    std::exchange(returned_, {}).clear();
}

}  // namespace rcverbs::detail
