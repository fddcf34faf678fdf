// driver.hpp — the state of a protocol on a connection. Experimental: it may change.
//
//     class echo final : public protocol::driver {
//     public:
//         explicit echo(connection over) : driver{std::move(over)} {}
//         void ask(protocol::waiter<error_code, std::uint64_t> who) { waiting_.add(std::move(who)); }
//     private:
//         void on_end(failure const& why) override { waiting_.fail_all(why.code); }  // never empty
//         protocol::wait_list<error_code, std::uint64_t> waiting_{*this};
//     };
//     auto core = protocol::make<echo>(connection{io});
//     std::uint64_t answer = co_await protocol::initiate<error_code, std::uint64_t>(
//         core, [](echo& e, auto who) { e.ask(std::move(who)); }, use_awaitable);
//
// A driver is an actor in the order of its connection: its functions and the handlers of the connection's
// operations run one at a time, so that the state needs no lock. The kit has what every protocol needs
// beside its own messages: the order, handlers that wait, the end of the connection (also while nothing
// is posted), violations, deadlines, and memory for the peer. apps/examples/own_protocol.cpp is a protocol
// made with it; sessions are, too.
//
// Handlers that wait are destroyed uncalled with their execution context, as in Asio. Any thread may
// start operations with initiate().
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/experimental/protocol/actor.hpp>
#include <rcverbs/experimental/protocol/handle.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/remote_region.hpp>
#include <rcverbs/slice.hpp>

namespace rcverbs::protocol {

/// The state of a protocol on a connection; a base class. Made by make().
class RCVERBS_EXPORT driver : public actor {
public:
    /// Ends the connection at once, as connection::close(). The driver exists until on_end() has
    /// returned, so the destructor of a handle calls this. Any thread, any state.
    virtual void close() noexcept;
    /// Why the protocol ended: its own failure, otherwise the connection's. Any thread.
    failure last_failure() const;

protected:
    /// Takes an idle connection, or one of a peer's request.
    ///
    /// @throws boost::system::system_error (errc::not_connected) for a default-constructed one.
    explicit driver(connection over);
    /// Takes part in the connection of another protocol, for a layer above it: has the same order, and
    /// hears the same end. The layer keeps the handle below, and closes with it.
    ///
    /// @param below  Any handle that has next_layer(), or a reference to one.
    /// @throws as above.
    template <class Below>
    requires requires(Below& b) { b.next_layer(); }
    explicit driver(Below& below) : driver{detail::another(detail::connection_of(below))} {}
    ~driver() override;

    /// The connection. Handlers of its data operations are passed through held(), those of connecting,
    /// disconnecting and waiting through ordered().
    connection& lower() noexcept;
    /// As above.
    connection const& lower() const noexcept;
    /// Keeps places in the queues for this protocol's sends, writes with immediate and receives, so that a
    /// program that fills them with operations of its own, which are then refused with errc::queue_full,
    /// does not have the protocol's refused. Once the queue pair is made.
    ///
    /// @param count  Sends and writes with immediate, and likewise receives, that the protocol has
    ///               outstanding at a time, at most as many as the connection's options allow.
    void keep_for_messages(std::size_t count) noexcept;

    /// True if the queue pair could not be destroyed, as errc::not_drained says: the device may still
    /// use the memory of what was posted. Any thread.
    bool is_undrained() const noexcept;
    /// Keeps memory until the process ends if is_undrained(). The destructor of a driver calls it for
    /// the memory that it has posted.
    void keep_if_undrained(registered_buffer& memory);

    /// A handler of a data operation of lower() that runs `function` with its arguments inside, and holds
    /// the driver until that has returned, at no cost beside the call.
    template <class Function>
    auto held(Function function) {
        return [this, self = shared_from_this(), f = std::move(function)](auto&&... all) mutable {
            this->enter_in_order(
                [g = std::move(f)](auto&... each) mutable { g(std::move(each)...); },
                std::forward<decltype(all)>(all)...
            );
        };
    }

    /// Ends the connection because the protocol has failed. Only the first call records its
    /// arguments.
    ///
    /// @param where   The step that failed.
    /// @param why     The error.
    /// @param reason  close_reason::protocol_error: the peer is to blame, and the acceptor counts a
    ///                violation of its address. close_reason::open: as the connection has ended.
    /// @return `why`.
    error_code fail(step where, error_code why, close_reason reason) noexcept;
    /// Records that both sides have finished: last_failure() then has close_reason::completed and no
    /// code. Without effect after fail(); then false.
    bool complete() noexcept;

private:
    friend class slots;
    friend class orderly_end;
    class impl;

    /// The connection has ended, and everything posted has completed. Called once,
    /// inside, also if nothing was posted, or if close() was called and nothing else refers to the
    /// driver any more.
    ///
    /// @param why  As last_failure(), but with a code in any case: asio::error::operation_aborted
    ///             after close(), asio::error::eof after complete(), errc::peer_disconnected if the
    ///             peer has left.
    virtual void on_end(failure const& why) = 0;
    void attach() final;
    void give_up() noexcept final { close(); }
    bool stop_device() noexcept final;
    void end();
    void keep_until_end() noexcept;

    std::shared_ptr<impl> impl_;
};

/// The slice as a region for the peer of a connection, if it may use it so: the memory is registered
/// in the connection's domain, with that right.
///
/// @param what    Local memory.
/// @param rights  What the peer is to do: remote_read, remote_write or remote_atomic.
/// @param on      The connection.
/// @param ec      errc::region_gone, errc::foreign_domain or errc::access_denied; then the result is
///                empty.
RCVERBS_EXPORT remote_region
expose(const_slice const& what, access_flags rights, connection const& on, error_code& ec) noexcept;

}  // namespace rcverbs::protocol
