// loops.hpp — the same work written in several ways: signaled writes of 8 bytes, `depth` of them in
// flight, on a null device. Each loop runs on a connection's polling thread.
#pragma once

#include <rcverbs/fabric.hpp>
#include <rcverbs/rcverbs.hpp>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <cstdint>
#include <cstdlib>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bench/null_device.hpp"

namespace bench {

namespace asio = boost::asio;

// The null device generates no events, so the thread must not sleep.
inline rcverbs::poller busy() {
    return rcverbs::poller::start({.polling = {.mode = rcverbs::poll_mode::busy}});
}

/// Runs a function on an executor and waits for it.
template <class Executor, class Function>
void run_on(Executor const& executor, Function f) {
    asio::post(executor, asio::use_future(std::move(f))).get();
}

/// Shared by the handlers of one run; `write(handler)` starts a write.
template <class Write>
struct run_state {
    Write write;
    std::uint64_t to_start;
    std::uint64_t to_complete;
    std::promise<void> done;
};

/// A handler that starts the next write.
template <class Write>
struct step {
    run_state<Write>* run;

    void start() {
        --run->to_start;
        run->write(*this);
    }
    void operator()(rcverbs::error_code ec, std::size_t) {
        if (ec) std::abort();
        if (run->to_start > 0) start();
        if (--run->to_complete == 0) run->done.set_value();
    }
};

/// Makes `count` writes, of which each that completes starts the next.
template <class Executor, class Write>
void chain(Executor const& executor, std::uint64_t count, std::uint64_t depth, Write write) {
    run_state<Write> run{std::move(write), count, count, {}};
    asio::post(executor, [&] {
        for (std::uint64_t i = 0; i < depth; ++i) step<Write>{&run}.start();
    });
    run.done.get_future().get();
}

/// Two connected ends on the fabric; the client's device is a null device.
template <class Executor = asio::any_io_executor>
class scene {
public:
    scene()
        : client_{busy(), options()},
          server_{connect()},
          work_{io_.get_executor()},
          thread_{[this] { io_.run(); }} {
        ours_ =
            rcverbs::registered_buffer{client_.domain(), 4096, rcverbs::access_flags::local_write};
        theirs_ =
            rcverbs::registered_buffer{server_.domain(), 4096, rcverbs::access_flags::remote_write};
        source_ = ours_.slice(0, 8);
        target_ = theirs_.remote().slice(0, 8);
        queue_ = client_.native_handle();
        on_poller([this] { device_.emplace(queue_); });
    }
    ~scene() {
        on_poller([this] { device_.reset(); });
        client_.close();
        server_.close();
        work_.reset();
        thread_.join();
    }

    /// Runs a function on the polling thread and waits for it.
    template <class Function>
    void on_poller(Function f) {
        run_on(client_.get_executor(), std::move(f));
    }

    // Each of these makes `count` writes. `depth` divides `count`, and is smaller than the queue
    // depth.

    /// The loop in plain C: keeps `depth` writes in flight, and posts one for each that completes.
    void raw(std::uint64_t count, std::uint64_t depth) {
        on_poller([&] {
            std::uint64_t posted = 0;
            while (posted < depth) post_raw(posted++);
            for (std::uint64_t completed = 0; completed < count;) {
                ibv_wc done[32];
                int found = 0;
                while ((found = ibv_poll_cq(queue_->send_cq, 32, done)) == 0) {}
                if (found < 0) throw std::runtime_error{"ibv_poll_cq"};
                for (int i = 0; i < found; ++i, ++completed) {
                    if (done[i].status != IBV_WC_SUCCESS || done[i].wr_id != completed)
                        throw std::runtime_error{"completion"};
                    if (posted < count) post_raw(posted++);
                }
            }
        });
    }

    void callback(std::uint64_t count, std::uint64_t depth) {
        chain(client_.get_executor(), count, depth, [this](auto& handler) {
            client_.async_write(source_, target_, handler);
        });
    }
    void deferred(std::uint64_t count, std::uint64_t depth) {
        chain(client_.get_executor(), count, depth, [this](auto& handler) {
            auto operation = client_.async_write(source_, target_, asio::deferred);
            std::move(operation)(handler);
        });
    }

    void coroutine(std::uint64_t count, std::uint64_t depth) {
        coroutines(count, depth, [this] {
            return client_.async_write(source_, target_, asio::use_awaitable_t<Executor>{});
        });
    }
    /// Awaits the operation itself, without a coroutine frame of its own.
    void awaited(std::uint64_t count, std::uint64_t depth) {
        coroutines(count, depth, [this] {
            return client_.async_write(source_, target_, asio::deferred);
        });
    }

private:
    static rcverbs::connection_options options() {
        rcverbs::connection_options o;
        o.liveness.stall_timeout = std::nullopt;
        return o;
    }

    rcverbs::connection connect() {
        rcverbs::acceptor acceptor{io_, {"10.0.0.1", 0}};
        rcverbs::connection server;
        // Handlers run on this thread, which waits for them; by default they would run on the
        // connection's executor.
        acceptor.async_accept(asio::bind_executor(
            io_,
            [&](rcverbs::error_code ec, rcverbs::connection made) {
                if (!ec) server = std::move(made);
                acceptor.close();
            }
        ));
        bool is_connected = false;
        client_.async_connect(
            acceptor.local_endpoint(),
            asio::bind_executor(io_, [&](rcverbs::error_code ec) { is_connected = !ec; })
        );
        while (!is_connected || !server.is_valid()) io_.run_one();
        return server;
    }

    void post_raw(std::uint64_t id) {
        ibv_sge segment{reinterpret_cast<std::uintptr_t>(source_.data()), 8, source_.key().value};
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.sg_list = &segment;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.rdma.remote_addr = target_.address();
        wr.wr.rdma.rkey = target_.key().value;
        ibv_send_wr* bad = nullptr;
        if (ibv_post_send(queue_, &wr, &bad) != 0) throw std::runtime_error{"ibv_post_send"};
    }

    template <class Write>
    void coroutines(std::uint64_t count, std::uint64_t depth, Write write) {
        std::vector<std::future<void>> all;
        for (std::uint64_t i = 0; i < depth; ++i) {
            all.push_back(asio::co_spawn(
                client_.get_executor(),
                [&]() -> asio::awaitable<void, Executor> {
                    for (std::uint64_t n = 0; n < count / depth; ++n) co_await write();
                },
                asio::use_future
            ));
        }
        for (std::future<void>& one : all) one.get();
    }

    rcverbs::fabric::world world_{
        {.mode = rcverbs::fabric::scheduling::real, .seed = 1, .devices = {}}};
    asio::io_context io_;
    rcverbs::basic_connection<Executor> client_;
    rcverbs::connection server_;
    asio::executor_work_guard<asio::io_context::executor_type> work_;
    rcverbs::registered_buffer ours_;
    rcverbs::registered_buffer theirs_;
    rcverbs::mutable_slice source_;
    rcverbs::remote_region target_;
    ibv_qp* queue_ = nullptr;
    std::optional<null_device> device_;
    std::thread thread_;
};

}  // namespace bench
