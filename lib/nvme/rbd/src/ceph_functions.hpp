// ceph_functions.hpp — what is used of librados and librbd, which are loaded at run time: only those who use Ceph need them.
#pragma once

#include <rados/librados.h>
#include <rbd/librbd.h>

#include <functional>

namespace rcverbs::nvme::detail {

// NOLINTBEGIN(cppcoreguidelines-macro-usage): a declaration and a name for each
#define RCVERBS_RADOS_FUNCTIONS(each)                                                          \
    each(rados_create2) each(rados_conf_read_file) each(rados_conf_set) each(rados_connect)    \
        each(rados_shutdown) each(rados_cluster_fsid) each(rados_ioctx_create)                 \
            each(rados_ioctx_destroy) each(rados_ioctx_set_namespace) each(rados_ioctx_get_id) \
                each(rados_set_pool_full_try) each(rados_stat)
#define RCVERBS_RBD_FUNCTIONS(each)                                                               \
    each(rbd_open) each(rbd_open_read_only) each(rbd_close) each(rbd_get_id) each(rbd_get_size)   \
        each(rbd_stat) each(rbd_get_stripe_unit) each(rbd_get_stripe_count) each(rbd_snap_get_id) \
            each(rbd_set_image_notification) each(rbd_poll_io_events) each(rbd_update_watch)      \
                each(rbd_update_unwatch) each(rbd_is_exclusive_lock_owner)                        \
                    each(rbd_lock_get_owners) each(rbd_lock_get_owners_cleanup)                   \
                        each(rbd_lock_break) each(rbd_read) each(rbd_aio_create_completion)       \
                            each(rbd_aio_get_return_value) each(rbd_aio_get_arg)                  \
                                each(rbd_aio_release) each(rbd_aio_read) each(rbd_aio_write)      \
                                    each(rbd_aio_flush) each(rbd_aio_write_zeroes)

struct ceph_functions {
#define RCVERBS_DECLARE(name) decltype(&::name) name = nullptr;
    RCVERBS_RADOS_FUNCTIONS(RCVERBS_DECLARE)
    RCVERBS_RBD_FUNCTIONS(RCVERBS_DECLARE)
#undef RCVERBS_DECLARE
};
// NOLINTEND(cppcoreguidelines-macro-usage)

/// Loads the libraries, once.
///
/// @throws boost::system::system_error: ELIBACC, with the name of what is missing.
ceph_functions const& ceph();

/// A store that uses the libraries, whose objects are destroyed when the process ends. What a store has of them is closed before:
/// by the store, or, if it still stands then, by the end of the process. Either way once.
class ceph_use {
public:
    /// `close` is called when the process ends, if begin_close() was not.
    ///
    /// @throws boost::system::system_error: ECANCELED if the process ends; what ceph() throws.
    explicit ceph_use(std::function<void()> close);
    ceph_use(ceph_use const&) = delete;
    ceph_use& operator=(ceph_use const&) = delete;
    ~ceph_use() {
        if (begin_close()) end();
    }
    /// Of a store that closes. False if it is closed: if by the end of the process, this waits until it is.
    bool begin_close() noexcept;
    /// The store has closed.
    void end() noexcept;

private:
    friend struct ceph_uses;
    enum class state { open, closing, closed };

    std::function<void()> const close_;
    state state_ = state::open;
};

}  // namespace rcverbs::nvme::detail
