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

/// `Base` is the compiled part of the protocol: it has the core, the type core_ptr and core(), and
/// the members that do not depend on the executor type.
template <class Base, class Executor>
class basic_protocol : public Base {
public:
    using executor_type = Executor;
    using next_layer_type = basic_connection<Executor>;

    basic_protocol(basic_protocol&&) noexcept = default;
    basic_protocol& operator=(basic_protocol&& other) noexcept {
        if (this != &other) {
            this->close();
            connection_ = std::move(other.connection_);
            Base::operator=(std::move(other));
        }
        return *this;
    }
    /// Closes.
    ~basic_protocol() { this->close(); }

    /// The connection, for reads, writes and atomics. Neither send nor receive on it: the protocol
    /// does.
    next_layer_type& next_layer() noexcept { return connection_; }
    /// As above.
    next_layer_type const& next_layer() const noexcept { return connection_; }
    /// True from the end of connecting until the connection fails or is closed.
    bool is_open() const noexcept { return connection_.is_open(); }
    /// The connection's executor.
    executor_type get_executor() const noexcept { return connection_.get_executor(); }

protected:
    using core_ptr = typename Base::core_ptr;

    basic_protocol() noexcept requires std::default_initializable<Executor>
    = default;
    template <class Options>
    basic_protocol(basic_connection<Executor> over, Options const& options)
        : Base{access::make<connection>(erase(over.get_executor()), access::core_of(over)), options},
          connection_{std::move(over)} {}
    // After an error there is no core.
    template <class Options>
    basic_protocol(basic_connection<Executor> over, Options const& options, error_code& ec)
        : Base{ec ? connection{} : access::make<connection>(erase(over.get_executor()), access::core_of(over)), options, ec},
          connection_{std::move(over)} {}
    template <class Other>
    explicit basic_protocol(basic_protocol<Base, Other>&& other)
        : Base{static_cast<Base&&>(other)},
          connection_{std::move(other.connection_)} {}

    // Starts an operation whose handler gets nothing but an error.
    template <class Start, class Token>
    auto control(Start start, Token&& token) {
        return initiate_checked<Token, void(error_code)>(
            initiation{
                connection_.get_executor(),
                [](auto handler, core_ptr const& core, Start const& begin) {
                    begin(core, control_handler{std::move(handler)});
                }},
            token,
            this->core(),
            std::move(start)
        );
    }

    basic_connection<Executor> connection_;

private:
    template <class, class>
    friend class basic_protocol;
};

}  // namespace rcverbs::detail
