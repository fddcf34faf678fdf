// loop_descriptor.hpp — runs an io_context inside an event loop that is not Asio's.
//
//     boost::asio::io_context io;
//     rcverbs::loop_descriptor rdma{io};
//     // add rdma.native_handle() to the loop, for reading; when it is readable: rdma.dispatch();
//
// The program's epoll, poll or select watches one descriptor and calls dispatch() when it is
// readable. The io_context and everything on it then runs on the program's thread; no other thread
// is needed.
//
// Connections on it should use polling.mode `event` or `adaptive`; a `busy` one is dispatched in
// slices, without end. Deadlines are checked once per `tick`. After starting operations outside of
// handlers, call dispatch(); otherwise they take effect at the next tick.
//
// Threads: the io_context's one thread.
#pragma once

#include <boost/asio/io_context.hpp>

#include <chrono>
#include <cstddef>

#include <rcverbs/export.hpp>

namespace rcverbs {

namespace progress {
class descriptor_set;
}  // namespace progress

/// One descriptor for everything that an io_context waits for.
class RCVERBS_EXPORT loop_descriptor {
public:
    /// Makes the descriptor, before the first connection or acceptor on `context`, which must
    /// outlive it; one per io_context.
    ///
    /// @param context  The io_context to run.
    /// @param tick     Interval at which deadlines and timers are checked. 1 ms to 1 s.
    /// @throws boost::system::system_error: errc::invalid_option, errno (EMFILE …).
    explicit loop_descriptor(
        boost::asio::io_context& context,
        std::chrono::milliseconds tick = std::chrono::milliseconds{20}
    );
    loop_descriptor(loop_descriptor const&) = delete;
    loop_descriptor& operator=(loop_descriptor const&) = delete;

    /// Readable when dispatch() has work. Belongs to the library: do not read from it or close it.
    int native_handle() const noexcept;
    /// Runs the handlers that are ready and returns their number. Does not wait.
    std::size_t dispatch();

private:
    boost::asio::io_context& context_;
    progress::descriptor_set& descriptors_;
};

}  // namespace rcverbs
