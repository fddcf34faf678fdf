// waiters.hpp — the handlers that wait for a step of a connection's setup, for its disconnect, or
// for any end; and the calls to make after the connection's lock is released.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_type.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "hosting/deferred_completions.hpp"
#include "machines/lifecycle.hpp"

namespace rcverbs::detail {

class waiters {
public:
    enum class kind : std::uint8_t { setup, disconnect, end };

    /// Called when a waiting handler's cancellation signal is emitted.
    using on_cancel =
        std::function<void(kind of, std::uint64_t serial, boost::asio::cancellation_type type)>;

    /// Adds a handler. If a handler of this kind waits already, completes the new one with
    /// errc::operation_in_progress and returns false.
    bool add(kind of, control_waiter& made, on_cancel const& cancelled) {
        if (of_[index(of)]) {
            completions_.complete(made, errc::operation_in_progress);
            return false;
        }
        made.serial = ++serial_;
        if (made.slot().is_connected()) {
            made.slot().assign([cancelled, of, serial = made.serial](
                                   boost::asio::cancellation_type type
                               ) { cancelled(of, serial, type); });
        }
        of_[index(of)] = std::move(made);
        return true;
    }

    /// True if the handler with this serial still waits.
    bool is_waiting(kind of, std::uint64_t serial) const noexcept {
        return of_[index(of)] && of_[index(of)].serial == serial;
    }

    /// Completes the handler of this kind, if there is one.
    void tell(kind of, error_code ec) { completions_.complete(of_[index(of)], ec); }

    /// Completes the handlers for which the lifecycle's answer has a code.
    void tell(machines::lifecycle::answer const& a) {
        if (a.setup) tell(kind::setup, *a.setup);
        if (a.disconnect) tell(kind::disconnect, *a.disconnect);
        if (a.end) tell(kind::end, *a.end);
        if (a.end) tell_layers();
    }

    /// Adds a function of a layer above, of which there may be several, for the end. It is no work of the
    /// context.
    void add_layer(std::function<void()> at_end) { layers_.push_back(std::move(at_end)); }
    /// Calls the functions of the layers, the lowest first.
    void tell_layers() {
        for (std::function<void()>& layer : std::exchange(layers_, {})) run(std::move(layer));
    }

    /// Adds a call of any function, after the completions that were added before.
    void run(std::function<void()> function) { completions_.run(std::move(function)); }

    bool has_completions() const noexcept { return !completions_.empty(); }
    /// Takes the calls to make after the lock is released.
    deferred_completions take_completions() noexcept { return std::exchange(completions_, {}); }

private:
    static constexpr std::size_t index(kind of) noexcept { return static_cast<std::size_t>(of); }

    std::array<control_waiter, 3> of_;
    std::vector<std::function<void()>> layers_;
    std::uint64_t serial_ = 0;
    deferred_completions completions_;
};

}  // namespace rcverbs::detail
