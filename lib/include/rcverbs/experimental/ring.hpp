// ring.hpp — records of any size, written into the reader's memory. Experimental: it may change.
//
//     ring_writer w{io};
//     co_await w.async_connect({"192.168.0.1", 7471}, use_awaitable);
//     co_await w.async_write(record, use_awaitable);
//     co_await w.async_finish(use_awaitable);  // the reader has released everything
//
// and on the other side:
//
//     ring_reader r{io, co_await door.async_get_request(use_awaitable), {.ring_bytes = 1 << 20}};
//     co_await r.async_accept(use_awaitable);
//     for (;;) {
//         auto [ec, record] = co_await r.async_read(as_tuple(use_awaitable));
//         if (ec) break;  // asio::error::eof: the writer has finished
//         use(record.bytes());
//     }
//
// One writer, one reader, a connection of their own; either side may connect. The writer knows where
// there is room, so a record is one write, and neither side waits for the other while there is room.
// A record stays in the ring until it is released. Room is given back in the order of the records, so
// one that is kept keeps all behind it, and the bytes in front of it that no record fitted into: a
// program that waits for another record while it keeps one may wait for ever. For requests with answers, or messages larger than half a
// ring, use channels; docs/guides/peer-memory.md compares them.
//
// Made with the kit of protocol.hpp; docs/reference/ring-format.md has its messages. Threads: any
// thread may start operations and release records; handlers run on get_executor() by default, one at
// a time.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <rcverbs/authentication.hpp>
#include <rcverbs/connection_request.hpp>
#include <rcverbs/experimental/protocol/handle.hpp>
#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/options.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs {

namespace detail {

class ring_reader_core;
class ring_writer_core;

}  // namespace detail

/// Options of one side of a ring.
struct ring_options {
    /// Memory of the ring. The writer has as much, and refuses a reader with more. A power of two,
    /// 4096 to 2^30.
    std::uint32_t ring_bytes = std::uint32_t{1} << 20;
    /// Receives of the reader: at most records - 2 records may be unreleased, whatever their sizes. 16
    /// to 65536. Ignored by a writer.
    std::uint32_t records = 256;
    /// How long ring_writer::async_finish() waits for a reader that reports no released record; it
    /// reports a quarter of the ring or of `records` at a time, and the last one. Above 0; empty: no
    /// limit. Ignored by a reader.
    std::optional<std::chrono::milliseconds> finish_timeout = {};
    /// Who may connect. Without encrypts_messages, as records are written to memory. Empty: everybody.
    authentication_options authentication = {};
    /// Options of the connection. Its queues are made large enough.
    connection_options connection = {};
};

/// Counters of one side of a ring.
struct ring_statistics {
    /// Records that were written, or have arrived; modulo 2^32.
    std::uint32_t records = 0;
    /// Bytes of the ring that hold records, or are left out at its end.
    std::uint64_t used_bytes = 0;
    /// How often the writer had to ask for room.
    std::uint32_t waits = 0;
};

namespace detail {

/// What both sides of a ring have: `Base` is that of one.
template <class Base, class Executor>
class basic_ring : public protocol::handle<Base, Executor> {
    using base = protocol::handle<Base, Executor>;

protected:
    using typename base::core_ptr;

public:
    using base::base;

    /// Connects to the other side.
    ///
    /// @param peer   Its endpoint.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                channel_errc::foreign_peer (no ring), channel_errc::version_mismatch,
    ///                            channel_errc::mode_mismatch (it is on the same side),
    ///                            boost::system::errc::value_too_large (of a writer: the ring is larger
    ///                            than its ring_bytes), errc::immediate_unsupported (iWARP), and those
    ///                            of connection::async_connect() and of registering memory.
    template <class Token = default_token_t<Executor>>
    auto async_connect(endpoint const& peer, Token&& token = Token{}) {
        return this->template initiate<error_code>(
            [peer](core_ptr const& core, control_handler handler) {
                base::start_connect(core, peer, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }
    /// Accepts the other side: see async_connect(). A writer that refuses the ring, because it has less
    /// memory, ends the connection afterwards: async_read() reports that.
    ///
    /// @param token  Completion token.
    template <class Token = default_token_t<Executor>>
    auto async_accept(Token&& token = Token{}) {
        return this->template initiate<error_code>(&base::start_accept, std::forward<Token>(token));
    }
};

}  // namespace detail

/// The members of basic_ring_writer that do not depend on its executor type.
class RCVERBS_EXPORT ring_writer_base {
public:
    using options_type = ring_options;

    /// The options of a connection for a writer: `options.connection` with queues that are deep enough.
    static connection_options needed(ring_options const& options = {});
    /// The longest record in bytes: half of the ring, less 8. 0 before it is open.
    std::size_t record_bytes_max() const noexcept;
    /// Ends at once; records that the reader does not have are lost.
    void close() noexcept;
    /// Why the ring ended.
    failure last_failure() const;
    /// The identity that the peer has proved: see authentication_options. Empty on the connecting side,
    /// and without authentication. Any thread.
    std::string peer_identity() const;
    /// A snapshot of the counters.
    ring_statistics statistics() const;

protected:
    using core_ptr = std::shared_ptr<detail::ring_writer_core>;

    ring_writer_base() noexcept = default;
    explicit ring_writer_base(core_ptr core) noexcept : core_{std::move(core)} {}
    ring_writer_base(connection over, ring_options const& options);
    ring_writer_base(connection over, ring_options const& options, error_code& ec);
    ring_writer_base(ring_writer_base&&) noexcept = default;
    ring_writer_base& operator=(ring_writer_base&&) noexcept = default;
    ~ring_writer_base() = default;
    core_ptr const& core() const noexcept { return core_; }

    static void start_connect(
        core_ptr const& core, endpoint const& peer, detail::control_handler handler
    );
    static void start_accept(core_ptr const& core, detail::control_handler handler);
    static void start_write(
        core_ptr const& core, std::span<std::byte const> record, detail::control_handler handler
    );
    static void start_finish(core_ptr const& core, detail::control_handler handler);

private:
    friend struct detail::access;

    core_ptr core_;
};

/// The side of a ring that writes.
///
/// Outstanding operations: one connect or accept, one finish, any number of writes, which are carried
/// out in the order of the calls.
template <class Executor = boost::asio::any_io_executor>
class basic_ring_writer : public detail::basic_ring<ring_writer_base, Executor> {
    using base = detail::basic_ring<ring_writer_base, Executor>;
    using core_ptr = typename base::core_ptr;

public:
    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_ring_writer<Other>;
    };

    using base::base;

    /// Writes a record; waits until there is room.
    ///
    /// @param record  At most record_bytes_max() bytes, any memory. Must not change until the handler
    ///                runs.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code)`: it was copied, and is under way. Whether the
    ///                            reader got it says async_finish().
    /// @par Cancellation          total, while it waits for room: nothing was written.
    /// @par Errors                errc::out_of_range (too long), errc::not_connected,
    ///                            errc::operation_in_progress (after async_finish()), and the reason
    ///                            of the connection's end.
    template <class Token = detail::default_token_t<Executor>>
    auto async_write(std::span<std::byte const> record, Token&& token = Token{}) {
        return this->template initiate<error_code>(
            [record](core_ptr const& core, detail::control_handler handler) {
                base::start_write(core, record, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }
    /// Writes what waits, and waits until the reader has released all records. Then the connection
    /// shuts down gracefully.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                As for async_write(), and channel_errc::peer_not_received
    ///                            (finish_timeout has passed): the ring is closed.
    template <class Token = detail::default_token_t<Executor>>
    auto async_finish(Token&& token = Token{}) {
        return this->template initiate<error_code>(&base::start_finish, std::forward<Token>(token));
    }
};

/// With executors of any type.
using ring_writer = basic_ring_writer<>;

/// A record in the ring; releases it when it is destroyed.
///
/// One thread at a time uses it.
class RCVERBS_EXPORT ring_record {
public:
    /// No record.
    ring_record() noexcept;
    ring_record(ring_record&& other) noexcept;
    /// Releases its own record first.
    ring_record& operator=(ring_record&& other) noexcept;
    /// Releases the record.
    ~ring_record();

    /// True if it has a record.
    bool is_valid() const noexcept { return core_ != nullptr; }
    /// The record. A writer that breaks the rules can still change the bytes: copy what you check.
    std::span<std::byte const> bytes() const noexcept { return bytes_; }
    /// Releases the record now; is_valid() is false afterwards.
    void release() noexcept;

private:
    friend class detail::ring_reader_core;

    std::shared_ptr<detail::ring_reader_core> core_;
    std::span<std::byte const> bytes_;
    std::uint64_t number_ = 0;
    std::uint32_t lent_ = 0;
};

/// The members of basic_ring_reader that do not depend on its executor type.
class RCVERBS_EXPORT ring_reader_base {
public:
    using options_type = ring_options;

    /// The options of a connection for a reader: `options.connection` with queues that are deep enough.
    static connection_options needed(ring_options const& options = {});
    /// Ends. If the writer has finished and all records are released, the writer hears that first.
    /// Records that the program has stay valid.
    void close() noexcept;
    /// Why the ring ended.
    failure last_failure() const;
    /// The identity that the peer has proved: see authentication_options. Empty on the connecting side,
    /// and without authentication. Any thread.
    std::string peer_identity() const;
    /// A snapshot of the counters.
    ring_statistics statistics() const;

protected:
    using core_ptr = std::shared_ptr<detail::ring_reader_core>;
    using read_handler = detail::erased_handler<error_code, ring_record>;

    ring_reader_base() noexcept = default;
    explicit ring_reader_base(core_ptr core) noexcept : core_{std::move(core)} {}
    ring_reader_base(connection over, ring_options const& options);
    ring_reader_base(connection over, ring_options const& options, error_code& ec);
    ring_reader_base(ring_reader_base&&) noexcept = default;
    ring_reader_base& operator=(ring_reader_base&&) noexcept = default;
    ~ring_reader_base() = default;
    core_ptr const& core() const noexcept { return core_; }

    static void start_connect(
        core_ptr const& core, endpoint const& peer, detail::control_handler handler
    );
    static void start_accept(core_ptr const& core, detail::control_handler handler);
    static void start_read(core_ptr const& core, read_handler handler);

private:
    friend struct detail::access;

    core_ptr core_;
};

/// The side of a ring that reads.
///
/// Outstanding operations: one connect or accept, any number of reads.
template <class Executor = boost::asio::any_io_executor>
class basic_ring_reader : public detail::basic_ring<ring_reader_base, Executor> {
    using base = detail::basic_ring<ring_reader_base, Executor>;
    using core_ptr = typename base::core_ptr;

public:
    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_ring_reader<Other>;
    };

    using base::base;

    /// Waits for the next record.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, ring_record)`
    /// @par Cancellation          total: the record remains for the next call.
    /// @par Errors                asio::error::eof (the writer has finished), errc::not_connected,
    ///                            channel_errc::malformed_message and channel_errc::unexpected_message
    ///                            (the writer has broken the rules), channel_errc::peer_closed_early,
    ///                            and other reasons of the connection's end. Records that have arrived
    ///                            come first.
    template <class Token = detail::default_token_t<Executor>>
    auto async_read(Token&& token = Token{}) {
        return this->template initiate<error_code, ring_record>(
            &base::start_read, std::forward<Token>(token)
        );
    }
};

/// With executors of any type.
using ring_reader = basic_ring_reader<>;

}  // namespace rcverbs
