// messages_bench — messages over a message_channel, rings, or a TCP socket: their rate, or how long one
// takes; messages and their echoes over a message_channel, requests and their answers.
//
//     messages_bench server channel ADDRESS
//     messages_bench client channel ADDRESS PORT --size 64 --count 10000 --depth 64
//
// The transports: channel, tcp; ring, two of them, one in each direction; echo, a message_channel whose messages come back; request, a
// request_channel whose requests are answered with their own bytes.
//
// The server prints "listens on PORT", serves one client and ends. The client prints its figures as
// JSON: messages per second, of the last two transports round trips; or, with --latency, half of the
// time of a message and its answer, in microseconds. Both sides start operations from handlers, on one
// thread. Server and client need the same options.
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <rcverbs/experimental/ring.hpp>
#include <rcverbs/rcverbs.hpp>

#include "bench/optimised.hpp"

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using clock_type = std::chrono::steady_clock;
using rcverbs::error_code;

struct options {
    std::string address;
    std::uint16_t port = 0;
    std::size_t size = 64;
    std::size_t count = 10000;
    std::size_t depth = 64;
    bool is_latency = false;
    std::uint32_t receive_bytes = 0;
    bool is_write = false;
    bool is_read = false;
};

void check(error_code ec) {
    if (ec) throw boost::system::system_error{ec};
}

// A channel whose messages are all of one size. Large ones are sent from registered memory and
// fetched into it.
class channel_link {
public:
    explicit channel_link(asio::io_context& io, options const& o)
        : where_{rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}})},
          options_{o} {}

    void listen(std::function<void()> then) {
        door_ = rcverbs::acceptor{where_, {options_.address, 0}};
        std::printf("listens on %u\n", unsigned{door_.local_endpoint().port()});
        door_.async_get_request([this, then](error_code ec, rcverbs::connection_request r) {
            check(ec);
            channel_ = rcverbs::message_channel{where_, std::move(r), channel_options()};
            door_.close();
            channel_.async_accept([this, then](error_code failed) { start(failed, then); });
        });
    }
    void connect(std::function<void()> then) {
        channel_ = rcverbs::message_channel{where_, channel_options()};
        channel_.async_connect({options_.address, options_.port}, [this, then](error_code ec) {
            start(ec, then);
        });
    }

    template <class Handler>
    void send(Handler then) {
        channel_.async_send(memory_.slice(0, options_.size), 0, std::move(then));
    }
    template <class Handler>
    void receive(Handler then) {
        channel_.async_receive([this, then](error_code ec, rcverbs::message m) mutable {
            check(ec);
            if (!m.is_large()) {
                m.release();
                return then(error_code{});
            }
            channel_.async_fetch(std::move(m), memory_.slice(0, options_.size), then);
        });
    }
    void finish() { channel_.async_finish(check); }
    static constexpr bool sends_overlap = true;

private:
    static rcverbs::message_channel_options channel_options() {
        rcverbs::message_channel_options o;
        o.connection.queue_pair.inline_bytes_max =
            220;  // as perftest does when it measures latency
        return o;
    }
    void start(error_code ec, std::function<void()> const& then) {
        check(ec);
        memory_ = rcverbs::registered_buffer{
            channel_.next_layer().domain(),
            options_.size,
            rcverbs::access_flags::local_write | rcverbs::access_flags::remote_read};
        then();
    }

    rcverbs::poller where_;
    options const& options_;
    rcverbs::acceptor door_;
    rcverbs::message_channel channel_;
    rcverbs::registered_buffer memory_;
};

// The same over two rings, one in each direction, each with a connection of its own.
class ring_link {
public:
    explicit ring_link(asio::io_context& io, options const& o)
        : where_{rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}})},
          options_{o},
          memory_(o.size) {}

    void listen(std::function<void()> then) {
        door_ = rcverbs::acceptor{where_, {options_.address, 0}};
        std::printf("listens on %u\n", unsigned{door_.local_endpoint().port()});
        door_.async_get_request([this, then](error_code ec, rcverbs::connection_request r) {
            check(ec);
            reader_ = rcverbs::ring_reader{where_, std::move(r), ring_options()};
            reader_.async_accept(check);
            door_.async_get_request([this, then](error_code failed, rcverbs::connection_request q) {
                check(failed);
                door_.close();
                writer_ = rcverbs::ring_writer{where_, std::move(q), ring_options()};
                writer_.async_accept([then](error_code refused) {
                    check(refused);
                    then();
                });
            });
        });
    }
    void connect(std::function<void()> then) {
        rcverbs::endpoint const peer{options_.address, options_.port};
        writer_ = rcverbs::ring_writer{where_, ring_options()};
        writer_.async_connect(peer, [this, peer, then](error_code ec) {
            check(ec);
            reader_ = rcverbs::ring_reader{where_, ring_options()};
            reader_.async_connect(peer, [then](error_code failed) {
                check(failed);
                then();
            });
        });
    }

    template <class Handler>
    void send(Handler then) {
        writer_.async_write(memory_, std::move(then));
    }
    template <class Handler>
    void receive(Handler then) {
        reader_.async_read([then](error_code ec, rcverbs::ring_record record) mutable {
            record.release();
            then(ec);
        });
    }
    void finish() {
        writer_.async_finish(check);
        reader_.async_read([](error_code ec, rcverbs::ring_record const&) {
            if (ec != asio::error::eof) check(ec);
        });
    }
    static constexpr bool sends_overlap = true;

private:
    static rcverbs::ring_options ring_options() {
        rcverbs::ring_options o;
        o.connection.queue_pair.inline_bytes_max = 220;
        return o;
    }

    rcverbs::poller where_;
    options const& options_;
    rcverbs::acceptor door_;
    rcverbs::ring_writer writer_;
    rcverbs::ring_reader reader_;
    std::vector<std::byte> memory_;
};

// The same over a socket, which has one write at a time.
class tcp_link {
public:
    explicit tcp_link(asio::io_context& io, options const& o)
        : door_{io},
          socket_{io},
          options_{o},
          out_(o.size),
          in_(o.size) {}

    void listen(std::function<void()> then) {
        tcp::endpoint const here{asio::ip::make_address(options_.address), 0};
        door_ = tcp::acceptor{door_.get_executor(), here};
        std::printf("listens on %u\n", unsigned{door_.local_endpoint().port()});
        door_.async_accept([this, then](error_code ec, tcp::socket s) {
            check(ec);
            socket_ = std::move(s);
            start(then);
        });
    }
    void connect(std::function<void()> then) {
        tcp::endpoint const peer{asio::ip::make_address(options_.address), options_.port};
        socket_.async_connect(peer, [this, then](error_code ec) {
            check(ec);
            start(then);
        });
    }

    template <class Handler>
    void send(Handler then) {
        asio::async_write(socket_, asio::buffer(out_), [then](error_code ec, std::size_t) mutable {
            then(ec);
        });
    }
    template <class Handler>
    void receive(Handler then) {
        asio::async_read(socket_, asio::buffer(in_), [then](error_code ec, std::size_t) mutable {
            then(ec);
        });
    }
    void finish() { socket_.close(); }
    static constexpr bool sends_overlap = false;

private:
    void start(std::function<void()> const& then) {
        socket_.set_option(tcp::no_delay{true});
        then();
    }

    tcp::acceptor door_;
    tcp::socket socket_;
    options const& options_;
    std::vector<std::byte> out_;
    std::vector<std::byte> in_;
};

// Receives all messages; answers each, or the last.
template <class Link>
class server {
public:
    server(Link& link, options const& o) : link_{link}, options_{o} {}

    void run() {
        // More than one, so that large ones can be fetched at a time.
        std::size_t const waiting = options_.is_latency || !Link::sends_overlap
                                        ? 1
                                        : std::min<std::size_t>(8, options_.count);
        for (std::size_t i = 0; i < waiting; ++i) receive();
    }

private:
    void receive() {
        if (asked_ == options_.count) return;
        ++asked_;
        link_.receive([this](error_code ec) {
            check(ec);
            ++received_;
            if (options_.is_latency || received_ == options_.count)
                link_.send([this](error_code failed) {
                    check(failed);
                    if (received_ == options_.count) link_.finish();
                });
            receive();
        });
    }

    Link& link_;
    options const& options_;
    std::size_t asked_ = 0;
    std::size_t received_ = 0;
};

template <class Link>
class client {
public:
    client(Link& link, options const& o) : link_{link}, options_{o} {}

    void run() {
        began_ = clock_type::now();
        if (options_.is_latency) return ask();
        std::size_t const depth = Link::sends_overlap ? options_.depth : 1;
        for (std::size_t i = 0; i < std::min(depth, options_.count); ++i) send();
        // The answer to the last.
        link_.receive([this](error_code ec) {
            check(ec);
            std::chrono::duration<double> const took = clock_type::now() - began_;
            std::printf("{\"rate\": %.3f}\n", static_cast<double>(options_.count) / took.count());
            link_.finish();
        });
    }

private:
    void send() {
        ++sent_;
        link_.send([this](error_code ec) {
            check(ec);
            if (sent_ < options_.count) send();
        });
    }
    void ask() {
        auto const start = clock_type::now();
        link_.send(check);
        link_.receive([this, start](error_code ec) {
            check(ec);
            std::chrono::duration<double, std::micro> const took = clock_type::now() - start;
            halves_.push_back(took.count() / 2);
            if (halves_.size() < options_.count) return ask();
            std::ranges::sort(halves_);
            std::printf(
                "{\"median\": %.3f, \"p99\": %.3f}\n",
                halves_[halves_.size() / 2],
                halves_[halves_.size() * 99 / 100]
            );
            link_.finish();
        });
    }

    Link& link_;
    options const& options_;
    std::size_t sent_ = 0;
    clock_type::time_point began_;
    std::vector<double> halves_;
};

// What messages that come back and requests have in common: connecting, and the count.
template <class Channel>
class round_trips {
public:
    round_trips(asio::io_context& io, options const& o)
        : where_{rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}})},
          options_{o} {
        // As messages_bench channel.
        connection_of(channel_options_).queue_pair.inline_bytes_max = 220;
        if (o.receive_bytes != 0) messages_of(channel_options_).slot_bytes = o.receive_bytes;
    }

    void run(bool is_server) {
        if (is_server) return listen();
        channel_ = Channel{where_, channel_options_};
        channel_.async_connect({options_.address, options_.port}, [this](error_code ec) {
            check(ec);
            memory_ = rcverbs::registered_buffer{
                channel_.next_layer().domain(),
                takes_place() ? options_.size * (options_.depth + 1) : options_.size,
                takes_place()
                    ? rcverbs::access_flags::local_write | rcverbs::access_flags::remote_read |
                          rcverbs::access_flags::remote_write
                    : rcverbs::access_flags::remote_read};
            began_ = clock_type::now();
            for (std::size_t i = 0; i < std::min(options_.depth, options_.count); ++i) ask(i);
        });
    }

private:
    static rcverbs::connection_options& connection_of(rcverbs::message_channel_options& o) {
        return o.connection;
    }
    static rcverbs::connection_options& connection_of(rcverbs::request_channel_options& o) {
        return o.messages.connection;
    }
    static rcverbs::message_channel_options& messages_of(rcverbs::message_channel_options& o) {
        return o;
    }
    static rcverbs::message_channel_options& messages_of(rcverbs::request_channel_options& o) {
        return o.messages;
    }
    // A receive has room for a page, with what the channel and a request put before it.
    bool is_large() {
        constexpr std::size_t before = 64;
        return options_.size + before > messages_of(channel_options_).slot_bytes;
    }

    // Answers are for registered memory.
    bool takes_place() { return is_large() || options_.is_read; }

    void listen() {
        door_ = rcverbs::acceptor{where_, {options_.address, 0}};
        std::printf("listens on %u\n", unsigned{door_.local_endpoint().port()});
        door_.async_get_request([this](error_code ec, rcverbs::connection_request r) {
            check(ec);
            channel_ = Channel{where_, std::move(r), channel_options_};
            door_.close();
            held_.resize(options_.depth);
            channel_.async_accept([this](error_code failed) {
                check(failed);
                if (takes_place())
                    memory_ = rcverbs::registered_buffer{
                        channel_.next_layer().domain(),
                        options_.size * options_.depth,
                        rcverbs::access_flags::local_write | rcverbs::access_flags::remote_read};
                for (std::size_t i = 0; i < held_.size(); ++i) serve(i);
            });
        });
    }

    // Each has one message at a time.
    void serve(std::size_t i) {
        auto const on_arrival = [this, i](error_code ec, auto m) {
            if (ec == asio::error::eof) return finish();
            check(ec);
            held_[i] = std::move(m);
            if (options_.is_read) return answer(i, memory_.slice(options_.size * i, options_.size));
            if (!held_[i].is_large()) return answer(i, held_[i].slice());
            auto const into = memory_.slice(options_.size * i, options_.size);
            channel_.async_fetch(std::move(held_[i]), into, [this, i, into](error_code failed) {
                check(failed);
                answer(i, into);
            });
        };
        if constexpr (is_request) channel_.async_next(on_arrival);
        else channel_.async_receive(on_arrival);
    }
    void answer(std::size_t i, auto const& bytes) {
        auto const then = [this, i](error_code failed) {
            check(failed);
            held_[i] = {};
            serve(i);
        };
        if constexpr (is_request) {
            if (options_.is_write) held_[i].async_answer(0, {}, then);
            else held_[i].async_answer(0, bytes, then);
        } else channel_.async_send(bytes, 0, then);
    }

    // Each has one message at a time, and memory for a large answer: a request gives it to the peer, a
    // message is fetched into it.
    void ask(std::size_t i) {
        ++asked_;
        auto const bytes = memory_.slice(0, options_.size);
        if constexpr (is_request) {
            auto const on_reply = [this, i](error_code ec, auto const&) {
                check(ec);
                on_answer(i);
            };
            if (options_.is_read)
                channel_.async_request(rcverbs::ask{1}.into(large_answer(i)), on_reply);
            else if (!is_large() || options_.is_write) channel_.async_request(1, bytes, on_reply);
            else
                channel_.async_request(rcverbs::ask{1}.body(bytes).into(large_answer(i)), on_reply);
        } else {
            channel_.async_receive([this, i](error_code ec, rcverbs::message m) {
                check(ec);
                if (!m.is_large()) return on_answer(i);
                channel_.async_fetch(std::move(m), large_answer(i), [this, i](error_code failed) {
                    check(failed);
                    on_answer(i);
                });
            });
            channel_.async_send(bytes, 0, check);
        }
    }
    rcverbs::mutable_slice large_answer(std::size_t i) {
        return memory_.slice(options_.size * (i + 1), options_.size);
    }
    void on_answer(std::size_t i) {
        if (++answered_ == options_.count) {
            std::chrono::duration<double> const took = clock_type::now() - began_;
            std::printf("{\"rate\": %.3f}\n", static_cast<double>(answered_) / took.count());
            finish();
        }
        if (asked_ < options_.count) ask(i);
    }
    void finish() {
        if (!std::exchange(is_finishing_, true)) channel_.async_finish(check);
    }

    static constexpr bool is_request = std::same_as<Channel, rcverbs::request_channel>;

    rcverbs::poller where_;
    options const& options_;
    typename Channel::options_type channel_options_;
    rcverbs::acceptor door_;
    Channel channel_;
    std::vector<std::conditional_t<is_request, rcverbs::request, rcverbs::message>> held_;
    rcverbs::registered_buffer memory_;
    clock_type::time_point began_;
    std::size_t asked_ = 0;
    std::size_t answered_ = 0;
    bool is_finishing_ = false;
};

template <class Channel>
void run_round_trips(bool is_server, options const& o) {
    asio::io_context io{1};
    round_trips<Channel> all{io, o};
    all.run(is_server);
    io.run();
}

template <class Link>
void run(bool is_server, options const& o) {
    asio::io_context io{1};
    Link link{io, o};
    server<Link> serving{link, o};
    client<Link> asking{link, o};
    if (is_server) link.listen([&] { serving.run(); });
    else link.connect([&] { asking.run(); });
    io.run();
}

}  // namespace

int main(int argc, char** argv) {
    if (!bench::may_run(argc, argv)) return 2;
    options o;
    std::string role;
    std::string transport;
    CLI::App app{"Measures messages and requests over channels, rings, or a TCP socket."};
    app.add_option("role", role)->required()->check(CLI::IsMember({"server", "client"}));
    app.add_option("transport", transport)
        ->required()
        ->check(CLI::IsMember({"channel", "tcp", "ring", "echo", "request"}));
    app.add_option("address", o.address, "of the server")->required();
    app.add_option("port", o.port, "of the server");
    app.add_option("--size", o.size, "bytes of a message")->check(CLI::Range(1, 1 << 30));
    app.add_option("--count", o.count, "messages")->check(CLI::PositiveNumber);
    app.add_option("--depth", o.depth, "messages on their way")->check(CLI::PositiveNumber);
    app.add_flag("--latency", o.is_latency, "each message is answered before the next");
    app.add_flag("--write", o.is_write, "answers to requests are empty");
    app.add_flag("--read", o.is_read, "requests are empty, and answers are for registered memory");
    app.add_option(
        "--receive-bytes",
        o.receive_bytes,
        "of a receive of echo and request: longer messages are large"
    );
    CLI11_PARSE(app, argc, argv);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    try {
        bool const is_server = role == "server";
        if (transport == "tcp") run<tcp_link>(is_server, o);
        else if (transport == "ring") run<ring_link>(is_server, o);
        else if (transport == "echo") run_round_trips<rcverbs::message_channel>(is_server, o);
        else if (transport == "request") run_round_trips<rcverbs::request_channel>(is_server, o);
        else run<channel_link>(is_server, o);
    } catch (std::exception const& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
