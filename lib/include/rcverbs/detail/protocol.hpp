// protocol.hpp — what sessions and message channels have in common: a connection, and the compiled
// core of the protocol on it. Internal.
#pragma once

#include <boost/asio/async_result.hpp>

#include <concepts>
#include <utility>

#include <rcverbs/close_reason.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/failure.hpp>

namespace rcverbs::detail {

/// `Calls` are the functions of the compiled core, and the type core_ptr.
template <class Calls, class Executor>
class basic_protocol {
public:
    using executor_type = Executor;
    using next_layer_type = basic_connection<Executor>;

    basic_protocol(basic_protocol&&) noexcept = default;
    basic_protocol& operator=(basic_protocol&& other) noexcept {
        if (this != &other) {
            close();
            connection_ = std::move(other.connection_);
            core_ = std::move(other.core_);
        }
        return *this;
    }
    /// Closes.
    ~basic_protocol() { close(); }

    /// Ends at once, as connection::close().
    void close() noexcept {
        if (core_ != nullptr) Calls::close(core_);
    }

    /// The connection, for reads, writes and atomics. Neither send nor receive on it: the protocol
    /// does.
    next_layer_type& next_layer() noexcept { return connection_; }
    /// As above.
    next_layer_type const& next_layer() const noexcept { return connection_; }
    /// True from the end of connecting until the connection fails or is closed.
    bool is_open() const noexcept { return connection_.is_open(); }
    /// The connection's executor.
    executor_type get_executor() const noexcept { return connection_.get_executor(); }
    /// Why it ended; `completed` only if both sides ended it in order.
    close_reason reason() const { return Calls::reason(core_); }
    /// The first failure, of the protocol or its connection.
    failure last_failure() const { return Calls::last_failure(core_); }

protected:
    using core_ptr = typename Calls::core_ptr;

    basic_protocol() noexcept requires std::default_initializable<Executor>
    = default;
    template <class Options>
    basic_protocol(basic_connection<Executor> over, Options const& options)
        : connection_{std::move(over)},
          core_{Calls::make(
              access::make<connection>(
                  erase(connection_.get_executor()), access::core_of(connection_)
              ),
              options
          )} {}
    template <class Other>
    explicit basic_protocol(basic_protocol<Calls, Other>&& other)
        : connection_{std::move(other.connection_)},
          core_{std::move(other.core_)} {}

    // Starts an operation whose handler gets nothing but an error.
    template <class Start, class Token>
    auto control(Start start, Token&& token) {
        return boost::asio::async_initiate<Token, void(error_code)>(
            initiation{
                connection_.get_executor(),
                [](auto handler, core_ptr const& core, Start const& begin) {
                    begin(core, control_handler{std::move(handler)});
                }},
            token,
            core_,
            std::move(start)
        );
    }

    basic_connection<Executor> connection_;
    core_ptr core_;

private:
    template <class, class>
    friend class basic_protocol;
};

}  // namespace rcverbs::detail
