// message_core.hpp — the state shared by message_channel handles: a channel's messages, and those who
// wait for them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "messages/channel_core.hpp"

#include <rcverbs/experimental/protocol.hpp>

namespace rcverbs::detail {

class message_core final : public channel_core {
public:
    message_core(connection over, message_channel_options const& options)
        : channel_core{std::move(over), options, 0} {}

    void send(body_source const& body, std::uint64_t tag, control_handler handler);
    void receive(message_handler handler);
    void cancel() override;
    message_channel_statistics statistics() { return message_statistics(); }

private:
    std::shared_ptr<message_core> self() {
        return std::static_pointer_cast<message_core>(shared_from_this());
    }
    using receiver = protocol::waiter<error_code, message>;

    // A message that a cancelled receive has left, with its number in the order of arrival.
    struct returned {
        std::uint64_t number = 0;
        arrival what;
    };

    void start_finishing() override { finish_sending(); }
    bool is_result_due() noexcept override {
        return (has_message() || !returned_.empty() || end_of_messages()) && !receivers_.empty();
    }
    bool deliver_result() override;
    void on_abandoned() noexcept override;
    void cancel_receive(std::uint64_t serial);
    returned take_first();
    void put_back(std::uint64_t number, message&& m) noexcept;

    std::uint64_t taken_ = 0;
    std::deque<returned> returned_;
    detail::wait_list<receiver> receivers_;
};

}  // namespace rcverbs::detail
