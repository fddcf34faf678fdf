// waiting_request.hpp — an unanswered connection request of a peer, with its permit.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <rcverbs/detail/timeouts.hpp>

#include "cm/id.hpp"
#include "connection/connection_limiter.hpp"
#include "hosting/members.hpp"

namespace rcverbs::detail {

// The sizes of the connection manager's private data, in bytes. Source: rdma_connect(3),
// rdma_accept(3), rdma_reject(3); measured.
inline constexpr std::size_t connect_data_max = 56;
inline constexpr std::size_t accept_data_max = 196;
inline constexpr std::size_t reject_data_max = 148;

class waiting_request final : public hosting::member,
                              public std::enable_shared_from_this<waiting_request> {
public:
    /// The parts that a connection takes over.
    struct parts {
        cm::event event;
        std::shared_ptr<connection_limiter::permit> admitted;
    };

    explicit waiting_request(parts what)
        : what_{std::move(what)},
          private_data_{what_.event.private_data},
          initiator_depth_{what_.event.initiator_depth},
          responder_resources_{what_.event.responder_resources},
          remote_{what_.event.incoming->peer()},
          local_{what_.event.incoming->local()} {}
    waiting_request(waiting_request const&) = delete;
    waiting_request& operator=(waiting_request const&) = delete;

    endpoint const& remote() const noexcept { return remote_; }
    endpoint const& local() const noexcept { return local_; }
    std::span<std::byte const> private_data() const noexcept { return private_data_; }
    std::uint8_t initiator_depth() const noexcept { return initiator_depth_; }
    std::uint8_t responder_resources() const noexcept { return responder_resources_; }
    std::chrono::steady_clock::time_point arrived() const noexcept { return arrived_; }

    bool is_withdrawn() {
        std::lock_guard const lock{mutex_};
        return what_.event.incoming == nullptr || what_.event.incoming->is_withdrawn();
    }
    error_code reject(std::span<std::byte const> private_data) {
        if (private_data.size() > reject_data_max) return errc::private_data_too_large;
        std::lock_guard const lock{mutex_};
        if (what_.event.incoming != nullptr)
            static_cast<void>(what_.event.incoming->reject(private_data));
        return {};
    }
    /// Rejects the request after `time`, or when the context of `on` is destroyed, unless it has
    /// been answered.
    void wait_on(boost::asio::any_io_executor const& on, std::chrono::milliseconds time) {
        if (!std::exchange(has_context_, true))
            membership_.join(on, weak_from_this(), hosting::rank::object);
        std::lock_guard const lock{mutex_};
        timer_.emplace(on, bounded(time));
        timer_->async_wait([weak = weak_from_this()](error_code const& ec) {
            auto const self = weak.lock();
            if (ec || self == nullptr) return;
            self->has_expired_ = true;
            self->take();
        });
    }
    /// Ends wait_on(): it is not the program's any more.
    void stop_waiting() {
        std::lock_guard const lock{mutex_};
        timer_.reset();
    }
    bool has_expired() const noexcept { return has_expired_; }
    /// Takes the parts. They have no id if they were taken, the request has expired, or its context
    /// was destroyed.
    parts take() {
        std::lock_guard const lock{mutex_};
        timer_.reset();
        return std::exchange(what_, {});
    }

private:
    void context_is_going(boost::asio::execution_context const&) noexcept override { take(); }

    hosting::membership membership_;
    bool has_context_ = false;
    std::mutex mutex_;
    parts what_;
    std::optional<boost::asio::steady_timer> timer_;
    std::atomic<bool> has_expired_{false};
    std::vector<std::byte> const private_data_;
    std::uint8_t const initiator_depth_;
    std::uint8_t const responder_resources_;
    endpoint const remote_;
    endpoint const local_;
    std::chrono::steady_clock::time_point const arrived_ = std::chrono::steady_clock::now();
};

}  // namespace rcverbs::detail
