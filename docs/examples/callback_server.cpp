// A server in callbacks: lends each client a page to read and write, and waits until it is done. first.cpp is its client.
#include <boost/asio.hpp>
#include <rcverbs/rcverbs.hpp>

#include <iostream>
#include <memory>

using namespace rcverbs;

struct client {
    explicit client(connection request) : session_{std::move(request)} {}

    static void serve(connection request) {
        auto self = std::make_shared<client>(std::move(request));
        self->session_.async_accept([self](error_code ec) { self->on_accepted(ec, self); });
    }

private:
    void on_accepted(error_code ec, std::shared_ptr<client> self) {
        if (ec) return complain();
        // With an error code: an exception from a handler would end the program, and one client must not do that.
        page_ = buffer{session_.next_layer().domain(), 4096, access_flags::remote_read | access_flags::remote_write, ec};
        if (ec) {
            std::cerr << "no memory for a client: " << ec.message() << '\n';
            return session_.close();
        }
        session_.async_publish({{"page", page_}}, [self](error_code sent) { self->on_published(sent, self); });
    }

    void on_published(error_code ec, std::shared_ptr<client> self) {
        if (ec) return complain();
        session_.async_finish([self](error_code finished) {
            if (finished) return self->complain();
            std::cout << "the client left " << std::to_integer<int>(self->page_.bytes()[0]) << std::endl;
        });
    }

    void complain() const { std::cerr << session_.last_failure().message() << '\n'; }

    // Declared before the session: the peer may use it until that has ended.
    buffer page_;
    session session_;
};

void take_next(acceptor& from) {
    from.async_get_request([&from](error_code ec, connection request) {
        if (ec == boost::asio::error::operation_aborted) return;
        if (!ec) client::serve(std::move(request));
        take_next(from);
    });
}

int main() {
    boost::asio::io_context io;
    acceptor listening{io, {"0.0.0.0", 7471}};
    take_next(listening);
    io.run();
}
