// endpoints.hpp — the parts of librdmacm that are made of its other functions.
//
// Called without the network's lock.
#pragma once

#include <rdma/rdma_cma.h>

namespace rcverbs::fabric::detail {

/// For an id without an event channel, waits for its next event: 0, or -1 with the errno of the
/// event. 0 at once for any other id.
int await_event(rdma_cm_id* id);
/// Creates the completion queues that the attributes leave out. 0 or an errno.
int create_missing_queues(rdma_cm_id* id, ibv_qp_init_attr& attributes);
/// Destroys those that were created so.
void destroy_own_queues(rdma_cm_id* id);

}  // namespace rcverbs::fabric::detail
