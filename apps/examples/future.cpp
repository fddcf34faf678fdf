// future: blocking calls, by way of futures, from a thread that does not use Asio. Another thread runs the io_context.
#include "examples/both_ends.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/use_future.hpp>

#include <future>
#include <thread>

using namespace example;

int main(int argc, char** argv) {
    std::string const address = device_address(argc, argv);
    asio::io_context io;
    auto work = asio::make_work_guard(io);
    std::thread runner{[&] { io.run(); }};
    int result = 0;
    try {
        rcverbs::acceptor acceptor{io, {address, 0}};
        rcverbs::connection client{io};
        auto accepted = acceptor.async_accept(asio::use_future);
        client.async_connect(acceptor.local_endpoint(), asio::use_future).get();
        rcverbs::connection server = accepted.get();

        rcverbs::registered_buffer mine{client.domain(), 4096, rcverbs::access_flags::local_write};
        rcverbs::registered_buffer exposed{server.domain(), 4096, rcverbs::access_flags::remote_write};
        std::size_t const written = client.async_write(mine.slice(), exposed.remote(), asio::use_future).get();
        expect(written == 4096, "all of it is written");
        std::cout << "wrote " << written << " bytes, waiting for a future\n";
        client.async_disconnect(asio::use_future).get();
    } catch (std::exception const& e) {
        std::cerr << e.what() << '\n';
        result = 1;
    }
    work.reset();
    runner.join();
    return result;
}
