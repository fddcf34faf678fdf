// handles.hpp — owning handles of the C objects, each the size of a pointer.
//
// Every handle destroys its object once. The holder of a handle keeps the parent objects alive: it
// declares members parents first, so that children are destroyed first.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace rcverbs::verbs {

/// A deleter that calls a C function and ignores its result, because a destructor cannot report it.
template <auto Destroy>
struct destroy_with {
    template <class T>
    void operator()(T* object) const noexcept {
        static_cast<void>(Destroy(object));
    }
};

template <class T, auto Destroy>
using unique_handle = std::unique_ptr<T, destroy_with<Destroy>>;

using device_handle = unique_handle<ibv_context, &ibv_close_device>;
using domain_handle = unique_handle<ibv_pd, &ibv_dealloc_pd>;
using region_handle = unique_handle<ibv_mr, &ibv_dereg_mr>;
using channel_handle = unique_handle<ibv_comp_channel, &ibv_destroy_comp_channel>;
using shared_queue_handle = unique_handle<ibv_srq, &ibv_destroy_srq>;
using cq_handle = unique_handle<ibv_cq, &ibv_destroy_cq>;

}  // namespace rcverbs::verbs
