// round_trips_bench — a message of 64 bytes and its echo, or a request and its answer, on a loopback
// device: for a tool that counts the instructions of one side.
//
//     valgrind --tool=callgrind --collect-atstart=no round_trips_bench LOOP SIDE COUNT DEPTH
//
// LOOP: raw, message or request. SIDE: client or server, whose instructions are collected. COUNT round
// trips, DEPTH of them in flight. Both sides run on one thread: while the completion queue of the side
// that is counted is empty, the other side runs, uncounted. Fails if the counted side allocates.
#include <rcverbs/fabric.hpp>
#include <rcverbs/rcverbs.hpp>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <valgrind/callgrind.h>

#include <array>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/loopback_device.hpp"
#include "bench/optimised.hpp"

namespace {

bool counts_allocations = false;
std::uint64_t allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
    if (counts_allocations) ++allocations;
    if (void* const p = std::malloc(size)) return p;
    throw std::bad_alloc{};
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

namespace asio = boost::asio;
using rcverbs::error_code;

constexpr std::size_t message_bytes = 64;
constexpr std::uint32_t inline_bytes = 220;  // as messages_bench has

void check(error_code ec) {
    if (ec) throw boost::system::system_error{ec};
}

/// The thread of one side, which is run by hand.
struct place {
    asio::io_context io{1};
    rcverbs::poller poller =
        rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::busy}});
    asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
};

// Time passes under valgrind, and on a busy host.
constexpr std::chrono::hours long_enough{1};

rcverbs::connection_options connection_options() {
    rcverbs::connection_options o;
    o.queue_pair.inline_bytes_max = inline_bytes;
    o.liveness.stall_timeout = std::nullopt;
    o.timeouts = {long_enough, long_enough, long_enough, long_enough, long_enough};
    return o;
}

rcverbs::acceptor_options door_options() {
    rcverbs::acceptor_options o;
    o.connection = connection_options();
    o.request_timeout = o.answer_timeout = long_enough;
    return o;
}

struct counters {
    std::uint64_t to_start = 0;
    std::uint64_t completed = 0;
};

/// The loop in plain C, as raw_echo.cpp: one send in 16 signaled.
class raw_side {
public:
    raw_side(rcverbs::connection& over, bool asks)
        : qp_{over.native_handle()},
          asks_{asks},
          memory_{over.domain(), slots * message_bytes, rcverbs::access_flags::local_write} {
        for (std::uint32_t i = 0; i < slots; ++i) receive(i);
    }
    void start(std::uint64_t depth, counters& c) {
        counted_ = &c;
        for (std::uint64_t i = 0; i < depth; ++i) {
            --c.to_start;
            send(static_cast<std::uint32_t>(i));
        }
    }
    void run_once() {
        std::array<ibv_wc, 32> done;
        int const found = ibv_poll_cq(qp_->send_cq, static_cast<int>(done.size()), done.data());
        for (int i = 0; i < found; ++i) {
            ibv_wc const& one = done[static_cast<std::size_t>(i)];
            if (one.status != IBV_WC_SUCCESS) throw std::runtime_error{"completion"};
            if (one.opcode != IBV_WC_RECV) continue;
            auto const slot = static_cast<std::uint32_t>(one.wr_id);
            receive(slot);
            if (!asks_) {
                send(slot);
                continue;
            }
            ++counted_->completed;
            if (counted_->to_start == 0) continue;
            --counted_->to_start;
            send(slot);
        }
    }

private:
    static constexpr std::uint32_t slots = 32;

    ibv_sge slice(std::uint32_t slot) const {
        return {
            reinterpret_cast<std::uintptr_t>(memory_.bytes().data() + slot * message_bytes),
            message_bytes,
            memory_.slice().key().value};
    }
    void receive(std::uint32_t slot) {
        ibv_sge s = slice(slot);
        ibv_recv_wr wr{slot, nullptr, &s, 1};
        ibv_recv_wr* bad = nullptr;
        if (ibv_post_recv(qp_, &wr, &bad) != 0) throw std::runtime_error{"ibv_post_recv"};
    }
    void send(std::uint32_t slot) {
        ibv_sge s = slice(slot);
        ibv_send_wr wr{};
        wr.wr_id = ++sent_;
        wr.sg_list = &s;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = (sent_ % 16 == 0 ? unsigned{IBV_SEND_SIGNALED} : 0U) | IBV_SEND_INLINE;
        ibv_send_wr* bad = nullptr;
        if (ibv_post_send(qp_, &wr, &bad) != 0) throw std::runtime_error{"ibv_post_send"};
    }

    ibv_qp* qp_;
    bool asks_;
    rcverbs::registered_buffer memory_;
    std::uint64_t sent_ = 0;
    counters* counted_ = nullptr;
};

/// The asking and the answering side of a channel, as messages_bench has them.
template <class Channel>
class asking {
    static constexpr bool is_request = std::same_as<Channel, rcverbs::request_channel>;

public:
    explicit asking(Channel& c)
        : channel_{c},
          memory_{c.next_layer().domain(), message_bytes, rcverbs::access_flags::remote_read} {}
    void start(std::uint64_t depth, counters& c) {
        counted_ = &c;
        for (std::uint64_t i = 0; i < depth; ++i) ask();
    }

private:
    void ask() {
        --counted_->to_start;
        auto const bytes = memory_.slice();
        if constexpr (is_request) {
            channel_.async_request(1, bytes, [this](error_code ec, rcverbs::reply const&) {
                on_answer(ec);
            });
        } else {
            channel_.async_receive([this](error_code ec, rcverbs::message const&) { on_answer(ec); }
            );
            channel_.async_send(bytes, 0, check);
        }
    }
    void on_answer(error_code ec) {
        check(ec);
        ++counted_->completed;
        if (counted_->to_start > 0) ask();
    }

    Channel& channel_;
    rcverbs::registered_buffer memory_;
    counters* counted_ = nullptr;
};

template <class Channel>
class answering {
    static constexpr bool is_request = std::same_as<Channel, rcverbs::request_channel>;

public:
    explicit answering(Channel& c) : channel_{c} {}
    void start(std::uint64_t depth) {
        held_.resize(depth);
        for (std::size_t i = 0; i < held_.size(); ++i) serve(i);
    }

private:
    void serve(std::size_t i) {
        auto const on_arrival = [this, i](error_code ec, auto m) {
            check(ec);
            held_[i] = std::move(m);
            answer(i);
        };
        if constexpr (is_request) channel_.async_next(on_arrival);
        else channel_.async_receive(on_arrival);
    }
    void answer(std::size_t i) {
        auto const then = [this, i](error_code ec) {
            check(ec);
            held_[i] = {};
            serve(i);
        };
        if constexpr (is_request) held_[i].async_answer(0, held_[i].slice(), then);
        else channel_.async_send(held_[i].slice(), 0, then);
    }

    Channel& channel_;
    std::vector<std::conditional_t<is_request, rcverbs::request, rcverbs::message>> held_;
};

template <class Channel>
typename Channel::options_type channel_options() {
    typename Channel::options_type o;
    if constexpr (std::same_as<Channel, rcverbs::request_channel>)
        o.messages.connection = connection_options();
    else o.connection = connection_options();
    return o;
}

/// Two connected queue pairs of the fabric, both with a poller of their own.
class scene {
public:
    scene() {
        // Raw verbs use them; the channel's are made behind, when the device is known.
        rcverbs::acceptor door{server_.io, {"10.0.0.1", 0}, door_options()};
        raw_client_ = rcverbs::connection{others_.poller, connection_options()};
        bool is_connected = false;
        door.async_accept([&](error_code ec, rcverbs::connection made) {
            check(ec);
            raw_server_ = std::move(made);
        });
        raw_client_.async_connect(door.local_endpoint(), [&](error_code ec) {
            check(ec);
            is_connected = true;
        });
        while (!is_connected || !raw_server_.is_valid()) run_all();
        device_ = std::make_unique<bench::loopback_device>(
            raw_client_.native_handle()->context, raw_server_.native_handle()->context
        );
    }

    int raw(bool counts_client, std::uint64_t count, std::uint64_t depth) {
        device_->join(raw_client_.native_handle(), raw_server_.native_handle());
        raw_side client{raw_client_, true};
        raw_side server{raw_server_, false};
        return run(
            counts_client,
            count,
            depth,
            raw_client_,
            raw_server_,
            client,
            [&] { client.run_once(); },
            [&] { server.run_once(); }
        );
    }

    template <class Channel>
    int channel(bool counts_client, std::uint64_t count, std::uint64_t depth) {
        rcverbs::acceptor door{server_.poller, {"10.0.0.1", 0}, door_options()};
        Channel client{client_.poller, channel_options<Channel>()};
        Channel server;
        int connected = 0;
        auto const on_open = [&](error_code ec) {
            check(ec);
            ++connected;
        };
        door.async_get_request([&](error_code ec, rcverbs::connection_request r) {
            check(ec);
            server = Channel{server_.poller, std::move(r), channel_options<Channel>()};
            server.async_accept(on_open);
        });
        client.async_connect(door.local_endpoint(), on_open);
        while (connected < 2) run_all();
        door.close();
        device_->join(client.next_layer().native_handle(), server.next_layer().native_handle());
        asking<Channel> asks{client};
        answering<Channel> answers{server};
        answers.start(depth);
        return run(
            counts_client,
            count,
            depth,
            client.next_layer(),
            server.next_layer(),
            asks,
            [&] { client_.io.poll_one(); },
            [&] { server_.io.poll_one(); }
        );
    }

private:
    void run_all() {
        for (place* const p : {&client_, &server_, &others_}) p->io.poll_one();
    }

    // Runs the side that is counted; it runs the other one when its queue is empty.
    template <class Asking, class Client, class Server>
    int run(
        bool counts_client,
        std::uint64_t count,
        std::uint64_t depth,
        rcverbs::connection const& client,
        rcverbs::connection const& server,
        Asking& asks,
        Client run_client,
        Server run_server
    ) {
        counters c;
        std::uint64_t trips = 64 * depth;
        bool is_counting = false;
        auto const run_other = [&](auto const& other) {
            if (is_counting) CALLGRIND_TOGGLE_COLLECT;
            bool const counted = std::exchange(counts_allocations, false);
            other();
            counts_allocations = counted;
            if (is_counting) CALLGRIND_TOGGLE_COLLECT;
            return c.completed < trips;
        };
        if (counts_client)
            device_->when_empty(client.native_handle(), [&] { return run_other(run_server); });
        else device_->when_empty(server.native_handle(), [&] { return run_other(run_client); });
        auto const make = [&] {
            c = {trips, 0};
            asks.start(depth, c);
            while (c.completed < trips) {
                if (counts_client) run_client();
                else run_server();
            }
        };
        // What is used for the first time is allocated.
        make();
        trips = count;
        allocations = 0;
        is_counting = counts_allocations = true;
        CALLGRIND_TOGGLE_COLLECT;
        make();
        CALLGRIND_TOGGLE_COLLECT;
        is_counting = counts_allocations = false;
        CALLGRIND_DUMP_STATS;
        if (allocations == 0) return 0;
        std::fprintf(
            stderr,
            "%llu allocations in %llu round trips\n",
            static_cast<unsigned long long>(allocations),
            static_cast<unsigned long long>(count)
        );
        return 1;
    }

    rcverbs::fabric::world world_{
        {.mode = rcverbs::fabric::scheduling::real, .seed = 1, .devices = {}}};
    place client_;
    place server_;
    place others_;
    rcverbs::connection raw_client_;
    rcverbs::connection raw_server_;
    std::unique_ptr<bench::loopback_device> device_;
};

}  // namespace

int main(int argc, char** argv) {
    if (!bench::may_run(argc, argv)) return 2;
    std::string_view const loop = argc == 5 ? argv[1] : "";
    std::string_view const side = argc == 5 ? argv[2] : "";
    bool const is_known = loop == "raw" || loop == "message" || loop == "request";
    if (!is_known || (side != "client" && side != "server")) {
        std::fprintf(stderr, "usage: %s raw|message|request client|server COUNT DEPTH\n", argv[0]);
        return 2;
    }
    bool const is_client = side == "client";
    auto const count = std::strtoull(argv[3], nullptr, 10);
    auto const depth = std::strtoull(argv[4], nullptr, 10);
    scene s;
    int const code = loop == "raw" ? s.raw(is_client, count, depth)
                     : loop == "message"
                         ? s.channel<rcverbs::message_channel>(is_client, count, depth)
                         : s.channel<rcverbs::request_channel>(is_client, count, depth);
    // The device flushes nothing, so the channels do not end.
    std::fflush(nullptr);
    std::_Exit(code);
}
