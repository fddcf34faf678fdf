// errors: the errors that a program receives. An error found before posting has no effect on the connection. An error from the
// device ends the connection; its last_failure() names the step, the peer, the cause and a remedy.
#include "examples/both_ends.hpp"

#include <boost/asio/as_tuple.hpp>

using namespace example;

constexpr auto as_values = asio::as_tuple(use_awaitable);

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    // Port 1 has no listener.
    rcverbs::connection lonely{io};
    auto const [refused] = co_await lonely.async_connect({address, 1}, as_values);
    expect(refused == rcverbs::cm_errc::rejected_no_listener, "nobody listens on port 1");
    std::cout << lonely.last_failure().message() << '\n';

    auto [client, server] = co_await connect(io, address);
    rcverbs::registered_buffer mine{client.domain(), 64, rcverbs::access_flags::local_write};
    rcverbs::registered_buffer exposed{server.domain(), 64, rcverbs::access_flags::remote_read};
    auto const [denied, n] = co_await client.async_write(mine.slice(), exposed.remote(), as_values);
    expect(denied == rcverbs::errc::access_denied && !rcverbs::is_fatal(denied), "the region is for reading");
    expect(n == 0 && client.is_open(), "nothing was posted, the connection goes on");
    std::cout << denied.message() << '\n';

    // The library cannot detect a wrong remote_region; the peer's device rejects the access.
    rcverbs::remote_region const wrong{
        exposed.remote().address(), 64, exposed.remote().key(), rcverbs::access_flags::remote_write};
    auto const [broken, m] = co_await client.async_write(mine.slice(), wrong, as_values);
    expect(broken == rcverbs::wc_errc::remote_access && rcverbs::is_fatal(broken) && m == 0, "the device refuses");
    std::cout << client.last_failure().message() << '\n';
    co_await server.async_wait_disconnected(as_values);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
