#include "common/repeating_timer.hpp"

#include <boost/asio/steady_timer.hpp>

#include <utility>

namespace demo {

struct repeating_timer::run : std::enable_shared_from_this<run> {
    run(boost::asio::any_io_executor const& executor,
        std::chrono::milliseconds i,
        std::function<void()> c)
        : timer{executor},
          interval{i},
          call{std::move(c)} {}

    void wait() {
        timer.expires_after(interval);
        timer.async_wait([self = shared_from_this()](boost::system::error_code const&) {
            if (!self->is_stopped) self->call();
            if (!self->is_stopped) self->wait();
        });
    }

    boost::asio::steady_timer timer;
    std::chrono::milliseconds interval;
    std::function<void()> call;
    bool is_stopped = false;
};

repeating_timer::repeating_timer(boost::asio::any_io_executor executor)
    : executor_{std::move(executor)} {}

void repeating_timer::start(std::chrono::milliseconds interval, std::function<void()> call) {
    stop();
    run_ = std::make_shared<run>(executor_, interval, std::move(call));
    run_->wait();
}

void repeating_timer::stop() noexcept {
    if (!run_) return;
    run_->is_stopped = true;
    run_->timer.cancel();
    run_.reset();
}

}  // namespace demo
