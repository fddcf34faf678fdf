// rbd_image.hpp — an image in a Ceph cluster: librados' and librbd's calls that block, and what they say.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ceph_functions.hpp"

namespace rcverbs::nvme::detail {

struct rbd_name {
    std::string user = "admin";
    std::string pool;
    std::string pool_namespace;
    std::string image;
    std::string snapshot;
};

/// [USER@]POOL[/NAMESPACE]/IMAGE[@SNAPSHOT].
///
/// @throws boost::system::system_error: errc::invalid_option.
rbd_name parse_rbd_name(std::string const& text);

/// How to reach a cluster.
struct rbd_access {
    std::string configuration;
    std::string keyring;
    std::chrono::seconds patience{0};
};

/// What an image is like.
struct rbd_features {
    std::uint64_t size_bytes = 0;
    std::uint64_t optimal_bytes = 0;
};

/// An image that is open, with a connection to the cluster of its own. Its functions may be called on any thread; what
/// blocks waits for `patience` at most for each answer of the cluster that it needs.
class rbd_image {
public:
    /// Opens it; blocks.
    ///
    /// @param on_change  Called on a thread of librbd's when the image may have another size.
    /// @throws boost::system::system_error: see rbd_store.
    rbd_image(
        rbd_name const& name,
        rbd_access const& access,
        bool is_read_only,
        std::function<void()> on_change
    );
    rbd_image(rbd_image const&) = delete;
    rbd_image& operator=(rbd_image const&) = delete;
    /// Closes it; blocks.
    ~rbd_image();

    rbd_image_t get() const noexcept { return image_; }
    /// Cluster, pool, namespace, image and snapshot.
    std::string const& identity() const noexcept { return identity_; }
    rbd_features const& features() const noexcept { return features_; }
    /// Asks for the size; blocks. 0 if it is not answered.
    std::uint64_t size_bytes() const noexcept;
    /// True if the cluster answers for the image, and for the block at this offset; blocks.
    bool answers(std::uint64_t offset) const noexcept;
    /// Takes the exclusive lock from whoever else has it, whose later writes Ceph does not take; blocks. True if there was
    /// somebody.
    bool shut_out_owner() const noexcept;

private:
    struct cluster_closer {
        void operator()(void* c) const noexcept { ceph().rados_shutdown(c); }
    };
    struct pool_closer {
        void operator()(void* p) const noexcept { ceph().rados_ioctx_destroy(p); }
    };

    void connect(rbd_name const& name, rbd_access const& access);
    void read_features();
    void read_identity(rbd_name const& name);

    std::function<void()> const on_change_;
    std::unique_ptr<void, cluster_closer> cluster_;
    std::unique_ptr<void, pool_closer> pool_;
    rbd_image_t image_ = nullptr;
    std::uint64_t watch_ = 0;
    bool is_watched_ = false;
    std::string id_;
    std::string identity_;
    rbd_features features_;
};

}  // namespace rcverbs::nvme::detail
