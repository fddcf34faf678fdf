// nbd_store.hpp — a store on a server that speaks NBD: qemu-nbd, nbdkit, and others.
//
//     rcverbs::poller polling = rcverbs::poller::start();
//     namespace_options disk;
//     disk.store = std::make_shared<nbd_store>(polling.get_executor(), "nbd://10.0.0.2/disk");
//     target t{polling, {}, {{.nqn = nqn, .namespaces = {disk}}}};
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <rcverbs/export.hpp>
#include <rcverbs/nvme/block_store.hpp>

namespace rcverbs::nvme {

namespace detail {

class nbd_core;

}  // namespace detail

/// Options of an NBD store.
struct nbd_store_options {
    /// Connections to a server that allows several for one export (NBD_FLAG_CAN_MULTI_CONN): 1 to 16. Others get
    /// one.
    std::uint32_t connections = 4;
    /// The size of a logical block: 512, 1024, 2048 or 4096, and no less than the server's minimum. Empty
    /// for the server's minimum, at least 512.
    std::optional<std::uint32_t> block_bytes = {};
    /// Writes fail, also if the server would take them.
    bool is_read_only = false;
    /// Each write is durable when it completes (NBD_CMD_FLAG_FUA), so that nothing that a host was told is
    /// written is lost with a server that ends. The constructor refuses a server that cannot do so. Without
    /// it, see nbd_store.
    bool writes_through = false;
    /// How long a request waits for a server that is away, or does not answer; then it fails with a path
    /// error. Below the host's own time, which is 30 s on Linux. The constructor waits as long. 1 ms up.
    std::chrono::milliseconds patience{20'000};
    /// Called with a line of text when the server is lost, when it is back, and when writes may be lost. On any
    /// thread of the executor; must not throw or destroy the store.
    std::function<void(std::string const&)> on_event = {};
    /// Called when is_reached() has changed, as for target::set_ana_state(). As above.
    std::function<void()> on_reached = {};
    /// Called when the server is back with another size: call target::namespace_changed(). As above.
    std::function<void()> on_resized = {};
};

/// What an NBD store has counted.
struct nbd_statistics {
    /// Connections that were lost.
    std::uint64_t connections_lost = 0;
    /// Requests that were sent again.
    std::uint64_t repeated = 0;
    /// Requests that ended with a path error.
    std::uint64_t given_up = 0;
};

/// A store on an NBD server. Data goes between the memory of the requests and libnbd's sockets; it is not copied
/// in between.
///
/// *A connection that is lost* is made again, and the requests on it are repeated in their order; a later request for
/// bytes that a repeated one writes waits for it. So a server may be restarted. NBD cannot tell whether a server that
/// was lost still executes an old request: a server that is only out of reach, and not ended, may carry it out late,
/// after its repetition. End it before another one serves the same bytes.
///
/// *Writes that were completed and not flushed* may be lost with a server that ends. If there are such when all
/// connections that knew of them are lost, every later flush and durable write of this store fails (EIO): hosts forget
/// an error after which the next flush succeeds. Destroy the store then, and make it again. With
/// nbd_store_options::writes_through there are none.
///
/// Discard and write zeroes are NBD's write zeroes, after which the bytes are zero; a discard lets the server give them
/// back. For a server without it zeros are written, in pieces of a MiB. Hosts are served in turn
/// (store_request::host_number()).
class RCVERBS_EXPORT nbd_store final : public block_store {
public:
    /// Connects, and waits for the server.
    ///
    /// @param on       What runs the store, such as poller::get_executor(); its context must outlive the
    ///                 store. Connections are made on a thread of the store's.
    /// @param uri      nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH, nbds:// and nbds+unix:// with TLS;
    ///                 see nbd_connect_uri(3).
    /// @param options  Connections, rights, durability, time.
    /// @throws boost::system::system_error: errc::invalid_option; errno of connecting, with libnbd's text; ENOTSUP if the
    ///         server has larger blocks than 4096 bytes, or cannot do what the options demand.
    nbd_store(
        boost::asio::any_io_executor on, std::string uri, nbd_store_options const& options = {}
    );
    nbd_store(nbd_store const&) = delete;
    nbd_store& operator=(nbd_store const&) = delete;
    /// Disconnects. There must be no request.
    ~nbd_store() override;

    store_geometry geometry() const override;
    /// Derived from the URI without user and parameters; for a server on this machine, also from
    /// /etc/machine-id. So it is the same for all who name a server alike.
    std::optional<std::array<std::byte, 16>> uuid() const override;
    void start(store_request& request) override;
    /// False while there is no connection to the server.
    bool is_reached() const override;
    /// True if writes that were completed may be lost: see above. Any thread.
    bool has_lost_writes() const;
    /// Any thread.
    nbd_statistics statistics() const;

private:
    std::shared_ptr<detail::nbd_core> const core_;
};

}  // namespace rcverbs::nvme
