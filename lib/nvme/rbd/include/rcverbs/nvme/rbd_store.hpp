// rbd_store.hpp — a store in a Ceph cluster: an image, or a snapshot of one.
//
//     rcverbs::poller polling = rcverbs::poller::start();
//     namespace_options disk;
//     disk.store = std::make_shared<rbd_store>(polling.get_executor(), "rbd/disk");
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

class rbd_core;

}  // namespace detail

/// Options of a store in a Ceph cluster.
struct rbd_store_options {
    /// Ceph's configuration file. Empty for what librados looks for: $CEPH_CONF, /etc/ceph/ceph.conf,
    /// ~/.ceph/ceph.conf.
    std::string configuration = {};
    /// The file with the user's key. Empty for the one of the configuration.
    std::string keyring = {};
    /// The size of a logical block: 512, 1024, 2048 or 4096. Empty for 4096, or for 512 if the size of the image is no
    /// multiple of 4096.
    std::optional<std::uint32_t> block_bytes = {};
    /// Writes fail. Snapshots are always so.
    bool is_read_only = false;
    /// How long a request waits for the cluster; then it fails with a path error. Below the host's own time, which is
    /// 30 s on Linux. Each step of the constructor waits as long. 1 s up; whole seconds.
    std::chrono::seconds patience{20};
    /// How long a write waits for another gateway that has the image's lock and does not give it up; then that one is shut
    /// out. 1 s up. Ceph by itself does so after 30 s.
    std::chrono::seconds shut_out_after{5};
    /// Called with a line of text when the cluster does not answer, and when it does again. On any thread of the executor;
    /// must not throw or destroy the store.
    std::function<void(std::string const&)> on_event = {};
    /// Called when is_reached() has changed, as for target::set_ana_state(). As above.
    std::function<void()> on_reached = {};
    /// Called when the image has got another size: call target::namespace_changed(). As above.
    std::function<void()> on_resized = {};
};

/// What a store in a Ceph cluster has counted.
struct rbd_statistics {
    /// How often the image was opened again.
    std::uint64_t reopened = 0;
    /// Requests that ended with a path error.
    std::uint64_t given_up = 0;
};

/// A store in a Ceph cluster. Each has a connection to the cluster of its own.
///
/// *Durability*: librbd's cache is off, whatever the configuration says: a write that is completed is stored.
///
/// *A cluster that does not answer*: requests wait for `patience`, and end with path errors; when none has succeeded
/// meanwhile, is_reached() is false until the cluster answers. Ceph may carry out a write that was given up, but before
/// every later write of this store.
///
/// *Several gateways* may serve one image: an image with the feature exclusive-lock (rbd create has it on) is written by
/// one at a time, and which one changes with whoever writes; with active and standby gateways, that is at a failover
/// only. A gateway that does not answer loses the lock after `shut_out_after`, and Ceph takes no late writes of it (its
/// blocklist; the user needs Ceph's profile rbd). It gives its requests up with path errors then, and opens the image
/// again after 10 s.
///
/// Discard and write zeroes are librbd's write zeroes, after which the bytes are zero and whole objects are given back.
/// Hosts are served in turn (store_request::host_number()). A pool or cluster that is full fails writes with ENOSPC.
class RCVERBS_EXPORT rbd_store final : public block_store {
public:
    /// Connects, and opens the image. Loads librbd.so.1 and librados.so.2 at the first use.
    ///
    /// @param on       What runs the store, such as poller::get_executor(); its context must outlive the
    ///                 store. What blocks runs on a thread of the store's.
    /// @param image    [USER@]POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]; USER is Ceph's without "client.", admin if empty.
    /// @param options  Access, rights, time.
    /// @throws boost::system::system_error: errc::invalid_option; errno of Ceph, with a text that says what is missing or
    ///         refused: the library, the configuration, an answer (ETIMEDOUT), the key, the pool, the image.
    rbd_store(
        boost::asio::any_io_executor on,
        std::string const& image,
        rbd_store_options const& options = {}
    );
    rbd_store(rbd_store const&) = delete;
    rbd_store& operator=(rbd_store const&) = delete;
    /// Closes the image; a cluster that does not answer makes that take some times `patience`. There must be no request.
    ~rbd_store() override;

    /// With the object size, or the stripe unit of an image that is striped, as optimal_io_bytes.
    store_geometry geometry() const override;
    /// Derived from the identifiers of cluster, pool, image and snapshot: the same on every gateway.
    std::optional<std::array<std::byte, 16>> uuid() const override;
    void start(store_request& request) override;
    bool is_reached() const override;
    /// Any thread.
    rbd_statistics statistics() const;

private:
    std::shared_ptr<detail::rbd_core> const core_;
};

}  // namespace rcverbs::nvme
