#include "progress/descriptor_set.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <rcverbs/experimental/loop_descriptor.hpp>

#include "verbs/errno_map.hpp"

namespace rcverbs::progress {

boost::asio::execution_context::id descriptor_set::id;

descriptor_set::~descriptor_set() {
    if (timer_ >= 0) ::close(timer_);
    if (all_ >= 0) ::close(all_);
}

error_code descriptor_set::open(std::chrono::milliseconds tick) noexcept {
    tick_ = tick;
    if (all_ < 0) all_ = ::epoll_create1(EPOLL_CLOEXEC);
    error_code ec = verbs::from_minus_one(all_);
    if (ec) return ec;
    if (timer_ < 0) {
        timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        ec = verbs::from_minus_one(timer_);
        if (!ec) ec = add(timer_);
    }
    return ec ? ec : set_timer(tick_);
}

error_code descriptor_set::set_timer(std::chrono::milliseconds first) noexcept {
    auto const to_timespec = [](std::chrono::milliseconds d) {
        return timespec{d.count() / 1000, d.count() % 1000 * 1'000'000};
    };
    itimerspec when{to_timespec(tick_), to_timespec(first)};
    if (first.count() == 0) when.it_value.tv_nsec = 1;  // zero would disarm the timer
    return verbs::from_minus_one(::timerfd_settime(timer_, 0, &when, nullptr));
}

error_code descriptor_set::add(int descriptor) noexcept {
    if (all_ < 0) return {};
    epoll_event e{};
    e.events = EPOLLIN;
    error_code const ec = verbs::from_minus_one(::epoll_ctl(all_, EPOLL_CTL_ADD, descriptor, &e));
    return ec == boost::system::errc::file_exists ? error_code{} : ec;
}

void descriptor_set::remove(int descriptor) noexcept {
    if (all_ >= 0) ::epoll_ctl(all_, EPOLL_CTL_DEL, descriptor, nullptr);
}

void descriptor_set::take_tick() noexcept {
    std::uint64_t ticks = 0;
    static_cast<void>(::read(timer_, &ticks, sizeof ticks));
}

void descriptor_set::hurry() noexcept {
    static_cast<void>(set_timer(std::chrono::milliseconds{0}));
}

}  // namespace rcverbs::progress

namespace rcverbs {

namespace {
// High enough that one dispatch usually runs all ready handlers, low enough that the program's loop
// gets control back soon.
constexpr std::size_t handlers_per_dispatch = 4096;
}  // namespace

loop_descriptor::loop_descriptor(boost::asio::io_context& context, std::chrono::milliseconds tick)
    : context_{context},
      descriptors_{boost::asio::use_service<progress::descriptor_set>(context)} {
    using std::chrono::milliseconds;
    error_code ec;
    if (tick < milliseconds{1} || tick > milliseconds{1000}) ec = errc::invalid_option;
    if (!ec) ec = descriptors_.open(tick);
    if (ec) throw boost::system::system_error{ec, "loop_descriptor"};
}

int loop_descriptor::native_handle() const noexcept { return descriptors_.descriptor(); }

std::size_t loop_descriptor::dispatch() {
    descriptors_.take_tick();
    context_.restart();
    std::size_t count = 0;
    while (count < handlers_per_dispatch && context_.poll_one() > 0) ++count;
    if (count == handlers_per_dispatch) descriptors_.hurry();
    return count;
}

}  // namespace rcverbs
