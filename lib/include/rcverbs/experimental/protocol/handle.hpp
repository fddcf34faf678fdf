// handle.hpp — what all handles of protocols have in common: how they are made, moved and closed, their
// executor, and the layer below. Experimental: it may change.
//
//     class echo_base {  // compiled once
//     public:
//         using options_type = echo_options;
//         static connection_options needed(options_type const& options = {});
//         void close() noexcept;
//         failure last_failure() const;
//     protected:
//         using core_ptr = std::shared_ptr<echo>;  // a protocol::driver
//         echo_base() noexcept = default;
//         echo_base(connection over, options_type const& options);
//         echo_base(connection over, options_type const& options, error_code& ec);
//         core_ptr const& core() const noexcept;
//     };
//     template <class Executor = boost::asio::any_io_executor>
//     class basic_echo : public protocol::handle<echo_base, Executor> {
//     public:
//         using protocol::handle<echo_base, Executor>::handle;
//         template <class Other> struct rebind_executor { using other = basic_echo<Other>; };
//     };
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <concepts>
#include <utility>

#include <rcverbs/connection.hpp>
#include <rcverbs/connection_request.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/detail/start.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs::detail {

// The connection below, at any depth.
template <class Executor>
basic_connection<Executor> const& connection_of(basic_connection<Executor> const& c) noexcept {
    return c;
}
template <class Handle>
requires requires(Handle const& h) { h.next_layer(); }
auto const& connection_of(Handle const& h) noexcept { return connection_of(h.next_layer()); }

// Another handle of the same object, for the compiled part of a layer above.
template <class Executor>
connection another(basic_connection<Executor> const& one) {
    return access::make<connection>(erase(one.get_executor()), access::core_of(one));
}
template <class Handle>
requires requires { typename Handle::next_layer_type; }
auto another(Handle const& one) {
    using erased = typename Handle::template rebind_executor<boost::asio::any_io_executor>::other;
    return access::make<erased>(access::core_of(one), another(one.next_layer()));
}

// Lets go of an object that its protocol closes.
template <class Executor>
void let_go(basic_connection<Executor>& what) noexcept {
    access::forget(what);
}
template <class Handle>
requires requires { typename Handle::next_layer_type; }
void let_go(Handle& what) noexcept {
    access::forget(what);
    let_go(what.next_layer());
}

// Calls `begin(core, handler)` with the erased handler.
template <class... Arguments>
inline constexpr auto start_erased = [](auto handler, auto const& core, auto const& begin) {
    begin(core, erased_handler<Arguments...>{std::move(handler)});
};

}  // namespace rcverbs::detail

namespace rcverbs::protocol {

/// Starts an operation of a handle with the completion signature `void(Arguments...)`: calls
/// `start(core, handler)` with the erased handler.
///
/// @param executor      The handle's, on which the handler is called by default.
/// @param core          Passed to `start`.
/// @param start         Starts the operation.
/// @param token         Completion token.
/// @param last_failure  Nothing, or what gives the handle's last_failure().
template <
    class... Arguments,
    class Executor,
    class Core,
    class Start,
    class Token,
    class Failure = detail::no_failure>
auto initiate(
    Executor const& executor,
    Core const& core,
    Start start,
    Token&& token,
    Failure last_failure = {}
) {
    return detail::initiate_checked<Token, void(Arguments...)>(
        detail::initiation{executor, detail::start_erased<Arguments...>, std::move(last_failure)},
        token,
        core,
        std::move(start)
    );
}

/// A handle of a protocol. Its operations belong to the class derived from it.
///
/// @tparam Base      What does not depend on the executor, compiled once: see above. Its constructors
///                   take the layer below with boost::asio::any_io_executor.
/// @tparam Executor  The type of the executor.
/// @tparam Below     The handle of the layer below. One that is no basic_connection is made with the
///                   options that `Base::below(options)` gives.
template <class Base, class Executor, template <class> class Below = basic_connection>
class handle : public Base {
    static constexpr bool is_on_connection =
        std::same_as<Below<Executor>, basic_connection<Executor>>;

public:
    using executor_type = Executor;
    using next_layer_type = Below<Executor>;
    using options_type = typename Base::options_type;

    /// Makes nothing; only assignment and destruction are useful.
    handle() noexcept = default;
    /// Makes an idle object, for async_connect(), and its connection: `session s{io};`.
    ///
    /// @param where    The executor, or the thread, that runs it.
    /// @param options  Of the protocol, and of its connection.
    /// @throws boost::system::system_error (errc::invalid_option); std::system_error if a thread is
    ///         asked for and cannot be started.
    explicit handle(runs_on<Executor> where, options_type const& options = {})
        : handle{next_layer_type{std::move(where), below(options)}, options} {}
    /// Makes an object of a peer's request, for async_accept().
    ///
    /// @param where    As above.
    /// @param request  From acceptor::async_get_request().
    /// @param options  As above.
    /// @throws boost::system::system_error: as above, and errc::peer_disconnected (the request was
    ///         withdrawn), errc::timed_out (answer_timeout has passed), errno.
    handle(runs_on<Executor> where, connection_request request, options_type const& options = {})
        : handle{next_layer_type{std::move(where), std::move(request), below(options)}, options} {}
    /// The same; after an error only assignment and destruction are useful.
    ///
    /// @param where    As above.
    /// @param request  As above.
    /// @param options  As above.
    /// @param ec       The errors above.
    handle(
        runs_on<Executor> where,
        connection_request request,
        options_type const& options,
        error_code& ec
    )
        : handle{
              next_layer_type{std::move(where), std::move(request), below(options), ec},
              options,
              ec} {}
    /// Takes the layer below: an idle one, for async_connect(), or one made of a request, for
    /// async_accept(). A connection was made with the options that needed() gives.
    ///
    /// @throws boost::system::system_error: errc::invalid_option; errc::not_connected (a
    ///         default-constructed one).
    explicit handle(next_layer_type over, options_type const& options = {})
        : Base{detail::another(over), options},
          next_{std::move(over)} {}
    /// Takes a connection for itself and for the layers between.
    ///
    /// @throws as above.
    explicit handle(basic_connection<Executor> over, options_type const& options = {}) requires(
        !is_on_connection
    )
        : handle{next_layer_type{std::move(over), below(options)}, options} {}
    /// Converts a handle with another executor type.
    template <class Other>
    requires(!std::same_as<Other, Executor> && std::convertible_to<Other, Executor>)
        handle(handle<Base, Other, Below>&& other)
        : Base{static_cast<Base&&>(other)},
          next_{std::move(other.next_)} {}

    handle(handle&&) noexcept = default;
    handle& operator=(handle&& other) noexcept {
        if (this != &other) {
            end();
            next_ = std::move(other.next_);
            Base::operator=(std::move(other));
        }
        return *this;
    }
    /// Closes.
    ~handle() { end(); }

    /// The layer below, for operations that the protocol leaves to the program: reads, writes and
    /// atomics on a connection. The protocol's own it must not call: sends, receives and writes with
    /// immediate there. Its cancel() and close() end the protocol's operations, too.
    next_layer_type& next_layer() noexcept { return next_; }
    /// As above.
    next_layer_type const& next_layer() const noexcept { return next_; }
    /// True from the end of connecting until the connection fails or is closed.
    bool is_open() const noexcept { return next_.is_open(); }
    /// The connection's protection domain: `registered_buffer page{s, 4096};`. Known when the connection is
    /// resolved, or made of a request.
    protection_domain domain() const { return next_.domain(); }
    /// The connection's executor.
    executor_type get_executor() const noexcept { return next_.get_executor(); }

protected:
    /// As protocol::initiate(), without a copy of the executor: the core keeps the connection.
    template <class... Arguments, class Start, class Token>
    auto initiate(Start start, Token&& token) {
        return detail::initiate_checked<Token, void(Arguments...)>(
            detail::initiation_of<Executor>(
                detail::access::core_of(detail::connection_of(next_)).get(),
                detail::start_erased<Arguments...>,
                detail::failure_of{this}
            ),
            token,
            this->core(),
            std::move(start)
        );
    }

private:
    template <class, class, template <class> class>
    friend class handle;
    friend struct detail::access;

    handle(typename Base::core_ptr core, next_layer_type next)
        : Base{std::move(core)},
          next_{std::move(next)} {}
    handle(next_layer_type over, options_type const& options, error_code& ec)
        : Base{ec ? Below<boost::asio::any_io_executor>{} : detail::another(over), options, ec},
          next_{std::move(over)} {}

    // The protocol closes the layers below, at once or in order.
    void end() noexcept {
        this->close();
        if (this->core() != nullptr) detail::let_go(next_);
    }
    static auto below(options_type const& options) {
        if constexpr (is_on_connection) return Base::needed(options);
        else return Base::below(options);
    }

    next_layer_type next_;
};

/// A handle of an object that makes its connections itself, such as a request_client. Its constructors
/// and operations belong to the class derived from it.
///
/// @tparam Base      What does not depend on the executor, compiled once: as for handle, but it is made with a
///                   runs_on<boost::asio::any_io_executor> and what else its object needs.
/// @tparam Executor  The type of the executor.
template <class Base, class Executor>
class service_handle : public Base {
public:
    using executor_type = Executor;

    /// Makes nothing; only assignment and destruction are useful.
    service_handle() noexcept = default;
    /// Converts a handle with another executor type.
    template <class Other>
    requires(!std::same_as<Other, Executor> && std::convertible_to<Other, Executor>)
        service_handle(service_handle<Base, Other>&& other)
        : Base{static_cast<Base&&>(other)},
          executor_{other.get_executor()} {}
    service_handle(service_handle&&) noexcept = default;
    service_handle& operator=(service_handle&& other) noexcept {
        if (this != &other) {
            this->close();
            Base::operator=(std::move(other));
            executor_ = std::move(other.executor_);
        }
        return *this;
    }
    /// Closes.
    ~service_handle() { this->close(); }

    /// The executor that it was made with.
    executor_type get_executor() const noexcept { return executor_.get(); }

protected:
    template <class... Arguments>
    service_handle(std::in_place_t, runs_on<Executor> const& where, Arguments&&... arguments)
        : Base{runs_on<boost::asio::any_io_executor>{where}, std::forward<Arguments>(arguments)...},
          executor_{where.get_executor()} {}

    /// As protocol::initiate().
    template <class... Arguments, class Start, class Token>
    auto initiate(Start start, Token&& token) {
        return protocol::initiate<Arguments...>(
            get_executor(),
            this->core(),
            std::move(start),
            std::forward<Token>(token),
            detail::failure_of{this}
        );
    }

private:
    detail::stored_executor<Executor> executor_;
};

}  // namespace rcverbs::protocol
