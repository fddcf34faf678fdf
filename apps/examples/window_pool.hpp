// window_pool.hpp — memory windows of one connection, lent for one request each. To be copied.
//
// Windows are a limited resource of the device, and allocating one is a system call: a pool allocates them once. A lease that is dropped
// while its window is bound, by an exception for example, frees the window, which makes its key invalid at once, and allocates another. Who
// waits gets one in the order of the calls. One thread uses it, or one strand.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/experimental/window.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace example {

class window_pool : public std::enable_shared_from_this<window_pool> {
    struct give_back {
        std::shared_ptr<window_pool> pool;
        void operator()(rcverbs::window* w) const { pool->take_back(std::unique_ptr<rcverbs::window>{w}); }
    };

public:
    /// The right to use one window. No operation of the window may be outstanding when it is destroyed.
    using lease = std::unique_ptr<rcverbs::window, give_back>;

    /// Throws what window throws.
    static std::shared_ptr<window_pool> make(rcverbs::connection const& on, std::size_t windows) {
        std::shared_ptr<window_pool> made{new window_pool{on, windows}};
        for (std::size_t i = 0; i < windows; ++i) made->put(std::make_unique<rcverbs::window>(on));
        return made;
    }

    /// Waits for a window that is free.
    boost::asio::awaitable<lease> borrow() {
        auto got = co_await free_.async_receive(boost::asio::use_awaitable);
        co_return lease{got.release(), give_back{shared_from_this()}};
    }

private:
    window_pool(rcverbs::connection const& on, std::size_t windows) : on_{on}, free_{on.get_executor(), windows} {}

    void put(std::unique_ptr<rcverbs::window> w) { free_.try_send(rcverbs::error_code{}, std::move(w)); }
    void take_back(std::unique_ptr<rcverbs::window> w) {
        // Whoever drops a lease may deregister the memory next: the key must be invalid before. Without another window the next one gets
        // none, whose operations the program must not start: after the end of the connection.
        rcverbs::error_code ended;
        if (w->is_valid() && w->is_bound()) {
            w.reset();
            w = std::make_unique<rcverbs::window>(on_, ended);
        }
        put(std::move(w));
    }

    rcverbs::connection const& on_;
    boost::asio::experimental::channel<void(rcverbs::error_code, std::unique_ptr<rcverbs::window>)> free_;
};

}  // namespace example
