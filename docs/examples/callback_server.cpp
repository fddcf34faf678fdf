// A server with callbacks: lets each client read and write one page, and waits until the client is done. Its client is first.cpp.
#include <boost/asio.hpp>
#include <rcverbs/rcverbs.hpp>

#include <iostream>
#include <memory>

using namespace rcverbs;

struct client {
    explicit client(connection asked_for) : session_{std::move(asked_for)} {}

    static void serve(connection asked_for) {
        auto self = std::make_shared<client>(std::move(asked_for));
        self->session_.async_accept([self](error_code ec) { self->on_accepted(ec, self); });
    }

private:
    void on_accepted(error_code ec, std::shared_ptr<client> self) {
        if (ec) return print_error();
        // Uses the error code: an exception from a handler would end the program, and one client's failure must not do that.
        page_ = registered_buffer{session_, 4096, access_flags::remote_read | access_flags::remote_write, ec};
        if (ec) {
            std::cerr << "no memory for a client: " << ec.message() << '\n';
            return session_.close();
        }
        session_.async_publish({{"page", page_}}, [self](error_code sent) { self->on_published(sent, self); });
    }

    void on_published(error_code ec, std::shared_ptr<client> self) {
        if (ec) return print_error();
        session_.async_finish([self](error_code finished) {
            if (finished) return self->print_error();
            std::cout << "the client left " << std::to_integer<int>(self->page_.bytes()[0]) << std::endl;
        });
    }

    void print_error() const { std::cerr << session_.last_failure().message() << '\n'; }

    // Declared before the session, so that it outlives it: the peer may access the page until the session has ended.
    registered_buffer page_;
    session session_;
};

void take_next(acceptor& from) {
    from.async_get_request([&from](error_code ec, connection_request request) {
        if (ec) return;
        // On the acceptor's executor; a poller, or own_thread, will do as well.
        connection asked_for{from.get_executor(), std::move(request), {}, ec};
        if (!ec) client::serve(std::move(asked_for));
        take_next(from);
    });
}

int main() {
    boost::asio::io_context io;
    acceptor listening{io, {"0.0.0.0", 7471}};
    take_next(listening);
    io.run();
}
