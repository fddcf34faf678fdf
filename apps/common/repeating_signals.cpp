#include "common/repeating_signals.hpp"

#include <boost/asio/signal_set.hpp>

#include <utility>

namespace demo {

struct repeating_signals::run : std::enable_shared_from_this<run> {
    explicit run(boost::asio::any_io_executor const& executor) : set{executor} {}

    void wait() {
        set.async_wait([self = shared_from_this()](boost::system::error_code const&, int number) {
            if (!self->is_stopped) self->call(number);
            if (!self->is_stopped) self->wait();
        });
    }

    boost::asio::signal_set set;
    std::function<void(int)> call;
    bool is_stopped = false;
};

repeating_signals::repeating_signals(boost::asio::any_io_executor executor)
    : run_{std::make_shared<run>(executor)} {}

void repeating_signals::start(std::initializer_list<int> numbers, std::function<void(int)> call) {
    for (int const number : numbers) run_->set.add(number);
    run_->call = std::move(call);
    run_->wait();
}

void repeating_signals::stop() noexcept {
    run_->is_stopped = true;
    boost::system::error_code ignored;
    run_->set.cancel(ignored);
}

}  // namespace demo
