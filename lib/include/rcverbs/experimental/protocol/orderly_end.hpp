// orderly_end.hpp — the orderly end of a protocol: who waits for it, until when, and the disconnect.
// Experimental: it may change.
//
//     void finish(protocol::waiter<error_code> who) {
//         if (end_.begin(std::move(who), 1s, [this] { fail(…); })) send_end();  // then end_.said()
//     }
//     …  // the peer's end has arrived: end_.heard();
//     void on_end(failure const& why) override { end_.complete(why.code); }
//     protocol::orderly_end end_{*this};
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include <rcverbs/error.hpp>
#include <rcverbs/experimental/protocol/deadline.hpp>
#include <rcverbs/experimental/protocol/driver.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs::protocol {

/// A member of a driver, used inside.
class RCVERBS_EXPORT orderly_end final : private part {
public:
    explicit orderly_end(driver& owner);
    ~orderly_end();

    /// Adds a handler. The first one starts the deadline, and the driver is to say its end. A terminal
    /// cancellation closes. After complete() a handler gets that result.
    ///
    /// @param who      The handler.
    /// @param timeout  From the first call until complete().
    /// @param on_late  Runs inside when it has passed: fails.
    /// @return True for the first one.
    bool begin(
        waiter<error_code> who, std::chrono::milliseconds timeout, std::function<void()> on_late
    );
    /// True after begin().
    bool has_begun() const noexcept { return has_begun_; }
    /// This side has said its end, and the peer's device has it. disconnect() follows when the peer has
    /// said its own.
    void said();
    /// The peer has said its end.
    void heard();
    /// True after heard().
    bool is_heard() const noexcept { return is_heard_; }
    /// Both sides have said their end: records that they have finished, disconnects, and completes with
    /// the result. Without effect if the protocol has failed, or in a second call.
    void disconnect();
    /// True after disconnect().
    bool is_disconnecting() const noexcept { return is_disconnecting_; }
    /// Completes all handlers. The first result counts; of no effect before begin(), and while the
    /// connection is being disconnected in order, which has a result of its own.
    void complete(error_code result);

private:
    void abandon() noexcept override;
    void complete_all(error_code result);

    driver& owner_;
    deadline limit_;
    std::vector<waiter<error_code>> waiting_;
    std::optional<error_code> result_;
    bool has_begun_ = false;
    bool is_said_ = false;
    bool is_heard_ = false;
    bool is_disconnecting_ = false;
};

}  // namespace rcverbs::protocol
