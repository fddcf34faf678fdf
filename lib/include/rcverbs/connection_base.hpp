// connection_base.hpp — what a connection can do without a completion token.
//
//     if (!c.is_open()) std::cerr << c.last_failure().message() << '\n';
//     std::cout << c.statistics().bytes_sent << " bytes sent\n";
//     c.close();
//
// basic_connection derives from it, for every type of executor.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/close_reason.hpp>
#include <rcverbs/connection_request.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/op.hpp>
#include <rcverbs/options.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/queue_pair_address.hpp>
#include <rcverbs/runs_on.hpp>
#include <rcverbs/statistics.hpp>

struct ibv_qp;

namespace rcverbs {

/// The members of basic_connection that do not depend on its executor type.
class RCVERBS_EXPORT connection_base {
public:
    /// Rejects the peer's request. The connection has ended afterwards.
    ///
    /// @param private_data  At most 148 bytes with the reason for the peer.
    /// @throws boost::system::system_error: errc::private_data_too_large, errc::not_connected (no
    ///         request to reject). Succeeds if the peer has already left.
    void reject(std::span<std::byte const> private_data = {});
    /// The same; reports through `ec` instead of throwing.
    void reject(std::span<std::byte const> private_data, error_code& ec);

    // --- starting without a handler --------------------------------------------------------------

    /// Starts a write or a send without a handler, if it can be posted at once.
    ///
    /// The work request is signaled only now and then. Its memory belongs to the caller again when
    /// a later send, read, write or atomic of the connection has completed. If it fails, the
    /// connection ends with its error. Only operations with a handler report the peer's disconnect,
    /// so give one to the last.
    ///
    /// @param what  The operation.
    /// @return As basic_connection::try_start() with a handler.
    [[nodiscard]] error_code try_start(op::write_t const& what);
    /// The same for a send.
    [[nodiscard]] error_code try_start(op::send_t const& what);

    // --- ending at once --------------------------------------------------------------------------

    /// Ends the connection at once: outstanding operations complete with operation_aborted as soon
    /// as the device no longer uses their memory. Does not block; may be called again, in any
    /// state, from any thread.
    void close() noexcept;
    /// Ends the connection because the peer violated a protocol on top of it. last_failure()
    /// reports the violation with close_reason::protocol_error, and the acceptor counts a violation
    /// of the peer's address; no effect if the connection had ended before.
    ///
    /// @param violation  The error. REQUIRES: not empty.
    void close(error_code violation) noexcept;

    // --- cancelling ------------------------------------------------------------------------------

    /// Cancels operations that wait for a place in their queue, and async_wait_disconnected(): they
    /// complete with asio::error::operation_aborted. So do all operations that own their memory. Posted
    /// operations on borrowed memory, receives included, are not affected: the device uses it until
    /// the connection ends. Connecting, accepting and
    /// disconnecting continue; close() ends them.
    void cancel();

    // --- rights of the peer ----------------------------------------------------------------------

    /// Sets the peer's rights to this side's memory on this connection, whatever its keys allow:
    /// any of remote_read, remote_write and remote_atomic, or local_read for none. A connection
    /// starts with all of them (reads and atomics only if responder_resources is above 0). An
    /// operation of the peer without the right fails there with wc_errc::remote_access or
    /// remote_invalid_request, and ends the connection.
    ///
    /// Without remote_write the peer's keepalives fail, too: see set_keepalive_interval(). May be
    /// called as soon as domain() is known; before the connection is established it takes effect on
    /// establishment (on the accepting side as soon as async_accept() has started).
    ///
    /// @throws boost::system::system_error: errc::invalid_option (other rights),
    ///         errc::not_connected, or errno. Source: ibv_modify_qp(3), IBV_QP_ACCESS_FLAGS.
    void set_remote_access(access_flags rights);
    /// The same; reports through `ec` instead of throwing.
    void set_remote_access(access_flags rights, error_code& ec);

    /// Changes liveness_options::keepalive_interval. Sends no keepalives any more if it is empty:
    /// for a peer that is about to revoke this side's right to write.
    ///
    /// @param interval  Above 0, or empty.
    /// @throws boost::system::system_error (errc::invalid_option): not above 0.
    void set_keepalive_interval(std::optional<std::chrono::milliseconds> interval);
    /// The same; reports through `ec` instead of throwing.
    void set_keepalive_interval(
        std::optional<std::chrono::milliseconds> interval, error_code& ec
    ) noexcept;

    /// liveness_options::keepalive_interval, or what it was set to.
    std::optional<std::chrono::milliseconds> keepalive_interval() const;

    // --- connecting without the connection manager -----------------------------------------------

    /// Makes the queue pair on a device, for a connection without the connection manager.
    ///
    /// Afterwards domain() is known and receives can be posted. Makes system calls; needs no
    /// network.
    ///
    /// @param device     Its name, such as "rxe0" or "mlx5_0".
    /// @param gid_index  Index of the address (GID) of port 1 to use; see: ibv_devinfo -v. Empty for
    ///                   placement_options::bind_address, on any port; else for one of a port that is
    ///                   active: of RoCE v2 before RoCE v1, and an IPv4 address before an IPv6 one
    ///                   before a link-local one.
    /// @return The address to send to the peer.
    /// @throws boost::system::system_error: errc::no_rdma_device, errc::already_connected,
    ///         errc::invalid_option (no such address), errno.
    queue_pair_address prepare(
        std::string const& device, std::optional<std::uint8_t> gid_index = {}
    );
    /// The same; reports through `ec` instead of throwing.
    queue_pair_address prepare(
        std::string const& device, std::optional<std::uint8_t> gid_index, error_code& ec
    );
    /// The same for the side that knows the peer's address already: of addresses of the same RoCE
    /// version it prefers one of the peer's family.
    ///
    /// @param device  As prepare().
    /// @param peer    The result of the peer's prepare().
    /// @return The address to send to the peer.
    /// @throws As prepare().
    queue_pair_address prepare_for(std::string const& device, queue_pair_address const& peer);
    /// The same; reports through `ec` instead of throwing.
    queue_pair_address prepare_for(
        std::string const& device, queue_pair_address const& peer, error_code& ec
    );

    /// Connects to the peer's queue pair. Both sides call it, in any order: packets that are sent
    /// before the other side has called it are retransmitted, within ack_timeout and retry_count.
    /// Makes system calls.
    ///
    /// Without the connection manager nothing reports that the peer leaves: posted work fails, and
    /// keepalive_interval detects it without posted work. async_disconnect() ends this side only.
    ///
    /// @param peer  The result of the peer's prepare().
    /// @throws boost::system::system_error: errc::not_connected (not prepared), errno.
    void establish(queue_pair_address const& peer);
    /// The same; reports through `ec` instead of throwing.
    void establish(queue_pair_address const& peer, error_code& ec);

    // --- observers -------------------------------------------------------------------------------

    /// True unless default-constructed or moved from.
    bool is_valid() const noexcept { return core_ != nullptr; }
    /// True from the end of connecting until the connection fails or is closed.
    bool is_open() const noexcept;
    /// The protection domain to register memory with; not open before async_resolve() or a request.
    protection_domain domain() const;
    /// The options in effect.
    connection_limits limits() const;
    /// The peer's address, once known.
    endpoint remote_endpoint() const;
    /// This side's address, once known.
    endpoint local_endpoint() const;
    /// The private data of the peer's request, acceptance or rejection, padded with zeros to the
    /// full field.
    std::vector<std::byte> private_data() const;
    /// Why the connection ended, and its first failure with the details; the code is empty if there
    /// was none.
    failure last_failure() const;
    /// Number of connections of this process whose queue pairs could not be destroyed; their
    /// resources are leaked on purpose.
    static std::size_t leaked_count() noexcept;
    /// A snapshot of the counters.
    connection_statistics statistics() const;
    /// The queue pair's number, known as domain() is; 0 before. Source: ibv_create_qp(3).
    std::uint32_t queue_pair_number() const;
    /// The verbs object, borrowed, for functions that this library lacks. Do not post to it: the
    /// library counts its places. Null before domain() is known and after the end.
    ibv_qp* native_handle() const;

protected:
    connection_base() noexcept = default;
    explicit connection_base(std::shared_ptr<detail::connection_core> core) noexcept
        : core_{std::move(core)} {}
    // An idle connection.
    connection_base(detail::place const& where, connection_options options);
    // One of a peer's request.
    connection_base(
        detail::place const& where, connection_request request, connection_options options
    );
    // Without a core after an error.
    connection_base(
        detail::place const& where,
        connection_request request,
        connection_options options,
        error_code& ec
    );
    connection_base(connection_base&&) noexcept = default;
    connection_base& operator=(connection_base&& other) noexcept;
    ~connection_base() { close(); }

    static void start_resolve(
        detail::connection_core& c, endpoint const& peer, detail::control_handler handler
    );
    static void start_establish(
        detail::connection_core& c,
        std::span<std::byte const> private_data,
        detail::control_handler handler
    );
    static void start_connect(
        detail::connection_core& c, endpoint const& peer, detail::control_handler handler
    );
    static void start_accept(
        detail::connection_core& c,
        std::span<std::byte const> private_data,
        detail::control_handler handler
    );
    static void start_disconnect(detail::connection_core& c, detail::control_handler handler);
    static void start_wait(detail::connection_core& c, detail::control_handler handler);

    std::shared_ptr<detail::connection_core> core_;

private:
    friend struct detail::access;
};

}  // namespace rcverbs
