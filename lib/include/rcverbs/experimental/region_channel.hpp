// region_channel.hpp — named regions that come and go, on a request channel. Experimental: it may
// change.
//
//     region_offers mine{io};
//     mine.offer("table", std::span{table}, access_flags::remote_read);
//     region_channel server{io, std::move(asked), {.offers = mine}};
//     co_await server.async_accept(use_awaitable);
//     co_await mine.async_withdraw("table", use_awaitable);  // now nobody can access it
//
// and on the other side:
//
//     region_channel c{io};
//     co_await c.async_connect({"192.168.0.1", 7471}, use_awaitable);
//     remote_memory const theirs = co_await c.async_find("table", 5s, use_awaitable);
//     co_await theirs.async_read(0, page.slice(), use_awaitable);
//
// A region is registered for a peer when that peer finds it, in the domain of that peer's connection,
// and deregistered when the peer does not use it any more. Withdrawing asks the peers that have it to
// stop: their libraries refuse new operations, wait for those that are under way, and confirm. A peer
// that does not confirm within withdraw_timeout loses its connection. Then the memory belongs to its
// owner alone.
//
// Both sides may offer and find. The program's own requests go over next_layer(), with operations
// below region_channel::operation_first; those of the peer come from async_next() of this class.
//
// Built on public parts: a request channel and the kit of protocol.hpp; docs/reference/region-format.md
// has its messages. Threads: any thread may start operations; handlers run on get_executor() by
// default, one at a time.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/deferred.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/connection_request.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/experimental/remote_memory.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/registration_limit.hpp>
#include <rcverbs/request_channel.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs {

namespace detail {

class offers_core;
class region_core;
class region_grants;

}  // namespace detail

class remote_allocator_base;
class remote_pool;

/// Options of a list of offers.
struct region_offers_options {
    /// Bytes that are registered at once; a longer range is registered in pieces, when a peer first
    /// uses each or asks for it by remote_memory::async_prepare(). 4096 to 2^40; reduced to the
    /// device's region_bytes_max.
    std::uint64_t piece_bytes = std::uint64_t{64} << 20;
    /// What registers the pieces, such as a boost::asio::thread_pool's executor. Registering is a
    /// system call that pins pages: 64 MiB take 10 to 300 ms. Empty: the thread that runs the
    /// channel, which does nothing else meanwhile.
    boost::asio::any_io_executor register_on = {};
    /// Pieces that are registered at a time for one channel, by register_on. 1 to 64.
    std::uint32_t registrations_max = 4;
    /// How long a peer may take to confirm that it does not use a region any more. Above 0.
    std::chrono::milliseconds withdraw_timeout{1000};
};

/// The regions that this process offers to its peers, by name. A handle: copies refer to the same list,
/// which is given to any number of channels.
///
/// Threads: any thread may offer and withdraw.
class RCVERBS_EXPORT region_offers {
public:
    using executor_type = boost::asio::any_io_executor;

    /// Bytes of a name, at most.
    static constexpr std::size_t name_bytes_max = 255;
    /// Ranges of a region, at most.
    static constexpr std::size_t ranges_max = 16;

    /// Nothing to offer; for a channel that only finds.
    region_offers() noexcept;
    /// An empty list.
    ///
    /// @param where    The executor of async_withdraw()'s handlers that have none.
    /// @param options  Pieces and timeout.
    /// @throws boost::system::system_error (errc::invalid_option).
    explicit region_offers(
        runs_on<boost::asio::any_io_executor> const& where,
        region_offers_options const& options = {}
    );

    /// True unless default-constructed.
    bool is_valid() const noexcept { return core_ != nullptr; }

    /// Offers memory under a name. Peers that look for it now, or wait for it, find it.
    ///
    /// @param name    1 to name_bytes_max bytes; not offered already, not being withdrawn, and without
    ///                remote_allocator::shared_prefix.
    /// @param memory  The program's; neither freed nor moved until async_withdraw() has completed, or
    ///                all channels with this list have ended.
    /// @param rights  Of remote_read, remote_write and remote_atomic, at least one.
    /// @throws boost::system::system_error: errc::invalid_option (name, memory or rights),
    ///         boost::system::errc::file_exists (the name). REQUIRES: is_valid().
    void offer(std::string_view name, std::span<std::byte> memory, access_flags rights);
    /// The same of several ranges, which a peer sees one behind the other.
    ///
    /// @param name    As above.
    /// @param memory  1 to ranges_max ranges, none of them empty.
    /// @param rights  As above.
    void offer(
        std::string_view name, std::vector<std::span<std::byte>> const& memory, access_flags rights
    );
    /// The same of memory that peers may only read.
    ///
    /// @param name    As above.
    /// @param memory  As above; rights are remote_read.
    void offer(std::string_view name, std::span<std::byte const> memory);
    /// The same of elements, which may be constant.
    template <class T, std::size_t N>
    requires std::is_trivially_copyable_v<T>
    void offer(std::string_view name, std::span<T, N> elements) {
        offer(name, std::span<std::byte const>{std::as_bytes(elements)});
    }
    /// The same of elements: `std::span{array}`, `std::span{vector}`.
    template <class T, std::size_t N>
    requires std::is_trivially_copyable_v<T> &&(!std::is_const_v<T>)void offer(
        std::string_view name, std::span<T, N> elements, access_flags rights
    ) {
        offer(name, std::span<std::byte>{std::as_writable_bytes(elements)}, rights);
    }

    /// Withdraws a region: nobody finds it any more, and those who have it stop.
    ///
    /// @param name   Of an offer.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`: no peer can access the memory any more.
    /// @par Cancellation          None: it completes within withdraw_timeout, or finish_timeout of a
    ///                            channel that finishes, and the time that the connection of a silent
    ///                            peer needs to end.
    /// @par Errors                channel_errc::no_such_region (nothing of this name, or it is being
    ///                            withdrawn). REQUIRES: is_valid().
    template <class Token = boost::asio::deferred_t>
    auto async_withdraw(std::string_view name, Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code)>(
            detail::initiation{
                executor(),
                [](auto handler, core_ptr const& core, std::string const& which) {
                    start_withdraw(core, which, detail::control_handler{std::move(handler)});
                }},
            token,
            core_,
            std::string{name}
        );
    }

    /// Number of offers, without those that are being withdrawn.
    std::size_t size() const;

private:
    friend class detail::region_grants;
    friend class remote_pool;
    using core_ptr = std::shared_ptr<detail::offers_core>;

    executor_type executor() const;
    static void start_withdraw(
        core_ptr const& core, std::string const& name, detail::control_handler handler
    );

    core_ptr core_;
};

/// A change of the peer's offers.
struct region_change {
    /// What has changed.
    enum class kind {
        /// It can be found now.
        offered,
        /// It cannot be found any more.
        withdrawn,
        /// More changes than changes_max have come since the last one was taken, and are lost.
        missed,
    };
    kind what = kind::offered;
    /// Empty for `missed`.
    std::string name;
};

/// Options of a region channel.
struct region_channel_options {
    /// What this side offers.
    region_offers offers = {};
    /// Options of the request channel, its messages and its connection.
    request_channel_options channel = {};
    /// Changes of the peer's offers that are kept for async_next_change(). 1 to 65536.
    std::uint32_t changes_max = 256;
};

/// Why the owner of memory has refused it.
struct region_refusal {
    /// An errno of the owner's.
    error_code code;
    /// The limit that registering the memory has met there.
    registration_limit limit;

    /// A sentence with the limit and both numbers; "the process" is the owner's.
    RCVERBS_EXPORT std::string message() const;
};

/// Counters of a region channel.
struct region_channel_statistics {
    /// Regions of the peer that this side has.
    std::size_t held = 0;
    /// Regions of this side that the peer has.
    std::size_t granted = 0;
    /// Registrations of this side's memory for the peer.
    std::size_t registrations = 0;
    /// Their bytes.
    std::uint64_t registered_bytes = 0;
    /// Memory windows for the peer, each for one allocation: see remote_pool_options::domain.
    std::size_t windows = 0;
};

/// The members of basic_region_channel that do not depend on its executor type.
class RCVERBS_EXPORT region_channel_base {
public:
    using options_type = region_channel_options;

    /// Operations of requests from here on belong to this class.
    static constexpr std::uint32_t operation_first = 0xffffff00;

    /// The options of a connection for a channel: as request_channel::needed().
    static connection_options needed(region_channel_options const& options = {});
    /// Ends at once, as connection::close().
    void close() noexcept;
    /// As request_channel::last_failure().
    failure last_failure() const;
    /// A snapshot of the counters.
    region_channel_statistics statistics() const;
    /// Why the peer has refused memory: the last time. Empty if it never has.
    std::optional<region_refusal> peer_refusal() const;
    /// Why this side has refused memory to the peer: the last time. Empty if it never has.
    std::optional<region_refusal> own_refusal() const;

protected:
    using core_ptr = std::shared_ptr<detail::region_core>;
    using find_handler = detail::erased_handler<error_code, remote_memory>;
    using change_handler = detail::erased_handler<error_code, region_change>;

    region_channel_base() noexcept = default;
    explicit region_channel_base(core_ptr core) noexcept : core_{std::move(core)} {}
    region_channel_base(request_channel over, region_channel_options const& options);
    region_channel_base(
        request_channel over, region_channel_options const& options, error_code& ec
    );
    region_channel_base(region_channel_base&&) noexcept = default;
    region_channel_base& operator=(region_channel_base&&) noexcept = default;
    ~region_channel_base() = default;
    core_ptr const& core() const noexcept { return core_; }

    /// The options of the request channel below.
    static request_channel_options below(region_channel_options const& options) {
        return options.channel;
    }
    static void start_connect(
        core_ptr const& core, endpoint const& peer, detail::control_handler handler
    );
    static void start_accept(core_ptr const& core, detail::control_handler handler);
    static void start_finish(core_ptr const& core, detail::control_handler handler);
    static void start_find(
        core_ptr const& core, std::string name, std::chrono::milliseconds wait, find_handler handler
    );
    static void start_next(core_ptr const& core, detail::next_handler handler);
    static void start_next_change(core_ptr const& core, change_handler handler);

private:
    friend struct detail::access;
    friend class remote_allocator_base;

    core_ptr core_;
};

/// A request channel whose sides find each other's regions. It takes a request channel that is idle, or
/// that is open and whose async_next() nobody has called. next_layer() is for requests of this side.
///
/// Outstanding operations: one connect or accept; any number of the others.
template <class Executor = boost::asio::any_io_executor>
class basic_region_channel
    : public protocol::handle<region_channel_base, Executor, basic_request_channel> {
    using base = protocol::handle<region_channel_base, Executor, basic_request_channel>;
    using core_ptr = typename base::core_ptr;

public:
    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_region_channel<Other>;
    };

    using base::base;

    /// Connects: see request_channel::async_connect().
    template <class Token = detail::default_token_t<Executor>>
    auto async_connect(endpoint const& peer, Token&& token = Token{}) {
        return this->template initiate<error_code>(
            [peer](core_ptr const& core, detail::control_handler handler) {
                base::start_connect(core, peer, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }
    /// Accepts: see request_channel::async_accept().
    template <class Token = detail::default_token_t<Executor>>
    auto async_accept(Token&& token = Token{}) {
        return this->template initiate<error_code>(&base::start_accept, std::forward<Token>(token));
    }
    /// Finishes: see request_channel::async_finish(). Both sides call it. When its handler runs
    /// without an error the connection has ended: the memory of the peer is withdrawn from this side,
    /// and this side's from the peer, which cannot access it any more.
    template <class Token = detail::default_token_t<Executor>>
    auto async_finish(Token&& token = Token{}) {
        return this->template initiate<error_code>(&base::start_finish, std::forward<Token>(token));
    }

    /// Finds a region of the peer's.
    ///
    /// @param name   1 to region_offers::name_bytes_max bytes.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, remote_memory)`
    /// @par Cancellation          total.
    /// @par Errors                channel_errc::no_such_region (the peer does not offer it), the peer's
    ///                            errno if it could not register the memory (peer_refusal() has the
    ///                            limit that it has met), errc::invalid_option (the
    ///                            name), channel_errc::version_mismatch, and those of
    ///                            request_channel::async_request().
    template <class Token = detail::default_token_t<Executor>>
    requires(!std::convertible_to<Token, std::chrono::milliseconds>) auto async_find(
        std::string_view name, Token&& token = Token{}
    ) {
        return async_find(name, std::chrono::milliseconds{0}, std::forward<Token>(token));
    }
    /// The same; waits until the peer offers it.
    ///
    /// @param name   As above.
    /// @param wait   How long; then channel_errc::no_such_region. Not below 0.
    /// @param token  As above.
    template <class Token = detail::default_token_t<Executor>>
    auto async_find(
        std::string_view name, std::chrono::milliseconds wait, Token&& token = Token{}
    ) {
        return this->template initiate<error_code, remote_memory>(
            [which = std::string{name}, wait](
                core_ptr const& core, typename base::find_handler handler
            ) { base::start_find(core, which, wait, std::move(handler)); },
            std::forward<Token>(token)
        );
    }
    /// Waits for the next change of the peer's offers.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, region_change)`
    /// @par Cancellation          total: the change remains for the next call.
    /// @par Errors                Those of async_next().
    template <class Token = detail::default_token_t<Executor>>
    auto async_next_change(Token&& token = Token{}) {
        return this->template initiate<error_code, region_change>(
            &base::start_next_change, std::forward<Token>(token)
        );
    }
    /// Waits for the next request, or notice, of the peer's program: see request_channel::async_next().
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, request)`
    /// @par Cancellation          total: the request remains for the next call.
    /// @par Errors                Those of request_channel::async_next().
    template <class Token = detail::default_token_t<Executor>>
    auto async_next(Token&& token = Token{}) {
        return this->template initiate<error_code, request>(
            &base::start_next, std::forward<Token>(token)
        );
    }
};

/// With executors of any type.
using region_channel = basic_region_channel<>;

}  // namespace rcverbs
