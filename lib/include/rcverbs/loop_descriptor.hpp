// loop_descriptor.hpp — for a program that has a loop of its own, which is not Asio's.
//
// The program's epoll, poll or select watches one descriptor, and calls dispatch() when it is readable: so an io_context and
// everything of this library's on it runs on the program's thread, at the program's time, without a thread of anybody else's.
//
//     boost::asio::io_context io;
//     rcverbs::loop_descriptor rdma{io};
//     // add rdma.native_handle() to the loop, for reading; when it is readable: rdma.dispatch();
//
// Connections and acceptors on it must say progress_on::context, and polling.mode `event` or `adaptive`: a `busy` one is
// dispatched in slices, without end. Deadlines are looked at once in a `tick`. A program that starts operations elsewhere than
// in handlers calls dispatch() after that, or has what comes of it at the next tick.
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
}

/// One descriptor for all that an io_context waits for.
class RCVERBS_EXPORT loop_descriptor {
public:
    /// To be made before the first connection or acceptor on `context`, which must outlive it; one for each io_context.
    ///
    /// @param context  What is to be run.
    /// @param tick     How often deadlines and timers are looked at. 1 ms to 1 s.
    /// @throws boost::system::system_error: errc::invalid_option, errno (EMFILE …).
    explicit loop_descriptor(boost::asio::io_context& context, std::chrono::milliseconds tick = std::chrono::milliseconds{20});
    loop_descriptor(loop_descriptor const&) = delete;
    loop_descriptor& operator=(loop_descriptor const&) = delete;

    /// Readable when dispatch() has something to do. The library's: not to be read from or closed.
    int native_handle() const noexcept;
    /// Runs what is ready, and returns how many handlers that were. Does not wait.
    std::size_t dispatch();

private:
    boost::asio::io_context& context_;
    progress::descriptor_set& descriptors_;
};

}  // namespace rcverbs
