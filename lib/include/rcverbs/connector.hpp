// connector.hpp — connects, and connects again after a failure.
//
//     connector to_server{io, {"192.168.0.1", 7471}, options};
//     for (;;) {
//         session s = co_await to_server.async_connect(use_awaitable);
//         co_await work(s);  // until it is done, or fails
//     }
//
// async_connect() retries with backoff until there is a connection. Operations of a broken
// connection have failed: the connector repeats none of them (retry() does, for those that may be
// repeated), and keys are exchanged again. The protection domain survives, so that memory regions
// remain valid on the next connection.
//
// It connects any protocol that satisfies the concept connectable: a plain connection, a session,
// or a protocol of the program's. Threads: as for connection.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/async_result.hpp>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <rcverbs/backoff_options.hpp>
#include <rcverbs/detail/adapted_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/session.hpp>

namespace rcverbs {

/// No options, for a protocol without any.
struct no_options {};

namespace detail {

template <class Protocol>
struct options_of {
    using type = no_options;
};
template <class Protocol>
requires requires { typename Protocol::options_type; }
struct options_of<Protocol> {
    using type = typename Protocol::options_type;
};

}  // namespace detail

/// The type of a protocol's options: `Protocol::options_type`, or no_options.
template <class Protocol>
using protocol_options = typename detail::options_of<Protocol>::type;

namespace detail {

// A protocol whose options have those of its connections, as channels'.
template <class Protocol>
concept has_connection_options = requires(protocol_options<Protocol> const& o) {
    { Protocol::needed(o) } -> std::same_as<connection_options>;
};

}  // namespace detail

/// Options of a connector.
template <class Protocol = session>
struct connector_options {
    /// Options of the connections. With domain_sharing::isolated all of them share one domain of the
    /// connector.
    connection_options connection = {};
    /// Options of the protocol.
    protocol_options<Protocol> protocol = {};
    /// Delays between attempts.
    backoff_options backoff = {};
    /// Called when an attempt has failed and another follows, with the number of attempts so far
    /// and the value of last_failure(), on the connector's executor. Must not throw.
    std::function<void(std::uint64_t attempts, failure const& why)> on_retry = {};
};

/// Options of a connector of sessions or channels: those of the connections are in `protocol`. With
/// domain_sharing::isolated all of them share one domain of the connector.
template <detail::has_connection_options Protocol>
struct connector_options<Protocol> {
    /// As above.
    protocol_options<Protocol> protocol = {};
    /// As above.
    backoff_options backoff = {};
    /// As above.
    std::function<void(std::uint64_t attempts, failure const& why)> on_retry = {};
};

namespace detail {

template <class Protocol>
connection_options taken_from(connector_options<Protocol>& options) {
    if constexpr (has_connection_options<Protocol>) return Protocol::needed(options.protocol);
    else return std::move(options.connection);
}

/// Makes a protocol object for each attempt.
class connector_target {
public:
    using handler = boost::asio::any_completion_handler<void(error_code)>;

    virtual ~connector_target() = default;
    virtual void attempt(
        place const& where, connection_options options, endpoint const& peer, handler then
    ) = 0;
    virtual protection_domain domain() const = 0;
    virtual failure last_failure() const = 0;
    virtual void close() noexcept = 0;
};

template <class Protocol>
class target_of final : public connector_target {
public:
    using executor_type = typename Protocol::executor_type;
    using options_type = protocol_options<Protocol>;

    target_of(runs_on<executor_type> where, options_type options)
        : where_{std::move(where)},
          options_{std::move(options)} {}

    void attempt(place const&, connection_options options, endpoint const& peer, handler then)
        override {
        basic_connection<executor_type> over{where_, std::move(options)};
        if constexpr (std::same_as<Protocol, basic_connection<executor_type>>) {
            made_ = std::move(over);
        } else if constexpr (std::same_as<options_type, no_options>) {
            made_ = Protocol{std::move(over)};
        } else {
            made_ = Protocol{std::move(over), options_};
        }
        made_.async_connect(peer, std::move(then));
    }
    protection_domain domain() const override { return connection_of(made_).domain(); }
    failure last_failure() const override { return made_.last_failure(); }
    void close() noexcept override { made_.close(); }
    Protocol take() { return std::move(made_); }

private:
    runs_on<executor_type> where_;
    options_type options_;
    Protocol made_;
};

class connector_core;

/// The right of one handler to the connection. If the handler is destroyed uncalled, the connection is
/// closed, and the connector can connect again.
class RCVERBS_EXPORT connector_claim {
public:
    explicit connector_claim(std::shared_ptr<connector_core> core) noexcept;
    connector_claim(connector_claim const&) = delete;
    connector_claim& operator=(connector_claim const&) = delete;
    ~connector_claim();

    /// The connection is there, for the handler.
    void offer() noexcept { is_due_ = true; }
    /// The handler has taken it.
    void take() noexcept;

private:
    std::shared_ptr<connector_core> core_;
    std::atomic<bool> is_due_{false};
};

}  // namespace detail

/// The members of basic_connector that do not depend on its protocol.
class RCVERBS_EXPORT connector_base {
public:
    /// Cancels an outstanding async_connect(). Delivered connections are not affected. Does not
    /// block; idempotent.
    void cancel() noexcept;
    /// Shortens the present delay between attempts to backoff_options::delay_first: something wants
    /// the connection now. Without effect outside of a delay. Any thread.
    void shorten_delay() noexcept;

    /// The protection domain of the last connection, and of the next as long as the address leads
    /// to the same device. Not open before the first.
    protection_domain domain() const;
    /// Number of attempts so far, of all calls.
    std::uint64_t attempts() const noexcept;
    /// The failure of the last attempt.
    failure last_failure() const;

protected:
    connector_base() noexcept = default;
    connector_base(
        detail::place const& where,
        std::vector<endpoint> peers,
        connection_options connection,
        backoff_options const& backoff,
        std::function<void(std::uint64_t, failure const&)> on_retry,
        std::shared_ptr<detail::connector_target> target
    );
    connector_base(connector_base&&) noexcept = default;
    connector_base& operator=(connector_base&& other) noexcept;
    ~connector_base() { cancel(); }

    static void start(
        detail::connector_core& core,
        detail::control_handler handler,
        std::shared_ptr<detail::connector_claim> const& claim
    );

    std::shared_ptr<detail::connector_core> core_;
};

/// A protocol that a connector connects: a basic_connection, or a type that is made of one, and of
/// its options if it has any (protocol_options). Its destructor closes the connection.
template <class Protocol>
concept connectable = std::movable<Protocol> && std::default_initializable<Protocol> &&
    requires(Protocol& p, Protocol const& c, endpoint const& peer) {
    typename Protocol::executor_type;
    p.async_connect(peer, [](error_code) {});
    p.close();
    { c.last_failure() } -> std::same_as<failure>;
    detail::connection_of(c);
};

/// Connects to one peer, and again after failures.
///
/// Outstanding operations: one async_connect.
template <connectable Protocol = session>
class basic_connector : public connector_base {
public:
    using protocol_type = Protocol;
    using executor_type = typename Protocol::executor_type;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_connector<typename Protocol::template rebind_executor<Other>::other>;
    };

    /// Makes no connector; only assignment and destruction are useful.
    basic_connector() noexcept = default;
    /// Makes a connector to one peer.
    ///
    /// @param where    The executor, or the thread, that runs it and its connections; own_thread is
    ///                 one thread for all of them.
    /// @param peer     The endpoint to connect to.
    /// @param options  Backoff, connection and protocol.
    /// @throws boost::system::system_error: errc::invalid_option; std::system_error if a thread is
    ///                                      asked for and cannot be started.
    basic_connector(
        runs_on<executor_type> where, endpoint const& peer, connector_options<Protocol> options = {}
    )
        : basic_connector{std::move(where), std::vector{peer}, std::move(options)} {}
    /// Makes a connector to one peer with several addresses, such as all of its name: each attempt is
    /// for the next one, beginning with the one that has worked last; the delay follows the last of
    /// them.
    ///
    /// @param where    As above.
    /// @param peers    The endpoints. At least one.
    /// @param options  As above.
    /// @throws as above.
    basic_connector(
        runs_on<executor_type> where,
        std::vector<endpoint> peers,
        connector_options<Protocol> options = {}
    )
        : basic_connector{
              where,
              std::move(peers),
              options,
              detail::taken_from(options),
              std::make_shared<detail::target_of<Protocol>>(where, std::move(options.protocol))} {}

    basic_connector(basic_connector&&) noexcept = default;
    basic_connector& operator=(basic_connector&&) noexcept = default;
    /// Cancels.
    ~basic_connector() = default;

    /// Connects, and retries after errors for which is_transient() is true, of one of the endpoints.
    /// Interfaces come and go,
    /// so a bind_address that none has is such an error: backoff_options::attempts_max bounds it.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, Protocol)`
    /// @par Cancellation          total.
    /// @par Errors                Those of the protocol's async_connect, of the last attempt.
    ///                            asio::error::operation_aborted, errc::operation_in_progress,
    ///                            errc::foreign_domain (domain_sharing::isolated, and the address
    ///                            leads to another device now).
    template <class Token = detail::default_token_t<executor_type>>
    auto async_connect(Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code, Protocol)>(
            detail::initiation{
                get_executor(),
                []<class Handler>(
                    Handler handler,
                    std::shared_ptr<detail::connector_core> const& core,
                    std::shared_ptr<detail::target_of<Protocol>> const& target
                ) {
                    auto const claim = std::make_shared<detail::connector_claim>(core);
                    start(
                        *core,
                        detail::control_handler{detail::adapted_handler{
                            std::move(handler),
                            [claim, target](Handler own, error_code ec) {
                                Protocol made;
                                if (!ec) {
                                    made = target->take();
                                    claim->take();
                                }
                                std::move(own)(ec, std::move(made));
                            }}},
                        claim
                    );
                },
                detail::failure_of{this}},
            token,
            core_,
            target_
        );
    }

    /// The executor that it was made with.
    executor_type get_executor() const noexcept { return executor_.get(); }

private:
    // The rest of the constructor, with the target that both sides share.
    basic_connector(
        runs_on<executor_type> const& where,
        std::vector<endpoint> peers,
        connector_options<Protocol>& options,
        connection_options terms,
        std::shared_ptr<detail::target_of<Protocol>> target
    )
        : connector_base{detail::access::place_of(where), std::move(peers), std::move(terms), options.backoff, std::move(options.on_retry), target},
          target_{std::move(target)},
          executor_{where.get_executor()} {}

    std::shared_ptr<detail::target_of<Protocol>> target_;
    detail::stored_executor<executor_type> executor_;
};

/// Connects sessions.
using connector = basic_connector<session>;

}  // namespace rcverbs
