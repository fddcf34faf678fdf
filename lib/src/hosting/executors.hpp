// executors.hpp — queries on the executors that a program passes in.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution_context.hpp>

#include <memory>

namespace rcverbs::hosting {

class poller_thread;

/// The library's polling thread that runs the executor; null for all other executors.
std::shared_ptr<poller_thread> thread_of(boost::asio::any_io_executor const& given);

/// The execution context of the executor.
boost::asio::execution_context& context_of(boost::asio::any_io_executor const& given);

/// The same executor if it runs one function at a time, else a strand of it.
boost::asio::any_io_executor in_order(boost::asio::any_io_executor const& given);

/// The inner executor, if it is a strand of a known type, so that other work in the strand cannot
/// delay it; else the executor itself.
boost::asio::any_io_executor at_large(boost::asio::any_io_executor const& given);

}  // namespace rcverbs::hosting
