// symbols.hpp — the symbolic names of error codes, from the C headers and from this library.
#pragma once

#include <string>

#include <rcverbs/error.hpp>

namespace rcverbs::detail {

/// "errc::timed_out", "IBV_WC_RETRY_EXC_ERR", "RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_REJECTED,
/// reason: consumer defined", "ETIMEDOUT"; empty if there is none.
std::string symbol_of(error_code const& ec);

/// Describes the status of a failure with that code, with its number: "status -110 ETIMEDOUT",
/// "IBV_EVENT_PORT_ERR (10)", "vendor error 5"; empty for 0.
std::string describe_status(error_code const& ec, int status);

}  // namespace rcverbs::detail
