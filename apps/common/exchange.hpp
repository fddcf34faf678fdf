// exchange.hpp — what both programs do once they are connected.
//
// Both sides register a region and tell the other its key (MSG_MR). Each then puts its message into the other's region
// with one RDMA write, or fetches the other's with one RDMA read, says MSG_DONE, and waits for the other's.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstddef>
#include <string>

#include <rcverbs/session.hpp>

#include "common/exit_code.hpp"

namespace demo {

enum class transfer_mode { write, read, atomic };

struct exchange_options {
    transfer_mode mode = transfer_mode::write;
    /// The size of each region.
    std::size_t size_bytes = 1024;
    /// A step at which to stay until the connection ends, for trying out what the other side makes of it; empty for none.
    std::string hold_at;
    /// True to damage the message that goes out, for trying out the check.
    bool corrupt = false;
    /// "active/client" or "passive/server", as it is named in the message.
    std::string side;
    /// The line that says that all is over.
    std::string farewell;
};

/// Runs the exchange over an established session and says what happens on standard output, failures on standard error.
boost::asio::awaitable<exit_code> exchange(rcverbs::session& s, exchange_options const& options);

/// Stays until the connection ends, if `here` is the step to stay at.
boost::asio::awaitable<void> hold_if(exchange_options const& options, std::string const& here, rcverbs::session& s);
/// Prints why a session failed at or after `where`, and says what to exit with.
exit_code report(rcverbs::session const& s, rcverbs::error_code ec, rcverbs::step where);

/// Prints a line to standard output.
void say(std::string const& line);
/// Prints a line to standard error, with the program's name.
void complain(std::string const& line);

}  // namespace demo
