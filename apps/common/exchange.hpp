// exchange.hpp — the exchange that rdma-server and rdma-client run once they are connected.
//
// Both sides register a region and send its key to the peer (MSG_MR). Each side then writes its
// message into the peer's region with one RDMA write, or reads the peer's message with one RDMA
// read, sends MSG_DONE, and waits for the peer's MSG_DONE.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <string>

#include <rcverbs/session.hpp>

#include "common/exit_code.hpp"
#include "common/print.hpp"

namespace demo {

enum class transfer_mode { write, read, atomic };

struct exchange_options {
    transfer_mode mode = transfer_mode::write;
    /// The size of each region.
    std::size_t size_bytes = 1024;
    /// A step at which to wait until the connection ends, to test how the peer reacts; empty for
    /// none.
    std::string hold_at;
    /// True to damage the outgoing message, to test the verification.
    bool corrupt = false;
    /// "active/client" or "passive/server", as it appears in the message.
    std::string side;
    /// The line to print after the disconnect.
    std::string farewell;
};

/// Runs the exchange over an established session. Prints progress to standard output and failures
/// to standard error.
boost::asio::awaitable<exit_code> exchange(rcverbs::session& s, exchange_options const& options);

/// Waits until the connection ends, if `here` is the step given by options.hold_at.
boost::asio::awaitable<void> hold_if(
    exchange_options const& options, std::string const& here, rcverbs::session& s
);
/// Prints why a session failed at or after `where`, and returns the exit code. `key_has_worked`:
/// the peer's memory key has granted access before. If it then fails, the peer has not broken the
/// protocol: its process has ended, which revokes the keys before the connection.
exit_code report(
    rcverbs::session const& s,
    rcverbs::error_code ec,
    rcverbs::step where,
    bool key_has_worked = false
);

/// Prints why a program could not start and how to fix it, and returns the exit code.
exit_code report_start_failure(std::exception const& e);

}  // namespace demo
