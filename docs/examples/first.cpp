#include <boost/asio.hpp>
#include <rcverbs/rcverbs.hpp>

#include <iostream>
#include <stdexcept>

using namespace rcverbs;
using boost::asio::use_awaitable;

boost::asio::awaitable<void> visit(session& s, endpoint server) {
    co_await s.async_connect(server, use_awaitable);
    registered_buffer mine{s.next_layer().domain(), 4096, access_flags::local_write};
    std::vector<named_region> nothing;  // we expose none of our memory
    peer_regions theirs = co_await s.async_exchange(nothing, use_awaitable);
    remote_region const* offered = theirs.find("page");
    if (offered == nullptr) throw std::runtime_error{"the server offers no page"};
    remote_region page = offered->slice(0, 4096);
    mine.bytes()[0] = std::byte{42};
    co_await s.next_layer().async_write(mine.slice(), page, use_awaitable);
    co_await s.next_layer().async_read(page, mine.slice(), use_awaitable);
    co_await s.async_finish(use_awaitable);
}

int main(int argc, char** argv) {
    boost::asio::io_context io;
    session s{connection{io}};
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
