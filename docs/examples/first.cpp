#include <boost/asio.hpp>
#include <rcverbs/rcverbs.hpp>

#include <iostream>

using namespace rcverbs;
using boost::asio::use_awaitable;

boost::asio::awaitable<void> visit(session& s, endpoint server) {
    co_await s.async_connect(server, use_awaitable);
    peer_regions theirs = co_await s.async_exchange(use_awaitable);  // MSG_MR; we expose nothing
    registered_buffer page{s, 4096};
    page.bytes()[0] = std::byte{42};
    co_await s.async_write(page, theirs.at("page"), use_awaitable);
    co_await s.async_read(theirs.at("page"), page, use_awaitable);
    co_await s.async_finish(use_awaitable);  // MSG_DONE
}

int main(int argc, char** argv) {
    boost::asio::io_context io;
    session s{io};
    int status = 0;
    co_spawn(io, visit(s, {argc > 1 ? argv[1] : "192.168.0.1", 7471}), [&](std::exception_ptr failed) {
        try {
            if (failed) std::rethrow_exception(failed);
        } catch (std::exception const& e) {
            std::cerr << (s.last_failure().code ? s.last_failure().message() : e.what()) << '\n';
            status = 1;
        }
        s.close();
    });
    io.run();
    return status;
}
