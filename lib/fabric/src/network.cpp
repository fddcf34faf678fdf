#include "network.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>

#include "clock.hpp"

namespace rcverbs::fabric::detail {

namespace {

std::atomic<network*> the_network{nullptr};
std::atomic<int> why_missing{ENODEV};
std::atomic<network* (*)() noexcept> the_starter{nullptr};

std::uint64_t choose_seed(world_options const& options) {
    if (options.seed) return *options.seed;
    if (char const* const text = std::getenv("RCVERBS_FABRIC_SEED"))
        return std::strtoull(text, nullptr, 0);
    return std::random_device{}();
}

address parse(std::string const& text) {
    address a;
    auto* const v4 = reinterpret_cast<sockaddr_in*>(&a.raw);  // permitted for sockaddr_storage
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(&a.raw);
    if (::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
    } else if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
    } else {
        throw std::invalid_argument{"fabric: not an address: " + text};
    }
    return a;
}

std::vector<device_options> default_devices() {
    std::vector<device_options> two(2);
    two[0].name = "fab0";
    two[0].addresses = {"10.0.0.1", "fd00::1"};
    two[1].name = "fab1";
    two[1].addresses = {"10.0.1.1", "fd00:1::1"};
    return two;
}

std::unique_ptr<device> make_device(device_options options) {
    auto made = std::make_unique<device>();
    static_cast<ibv_device&>(*made) = {};
    made->node_type = options.is_iwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
    made->transport_type = options.is_iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
    std::snprintf(made->name, sizeof made->name, "%s", options.name.c_str());
    std::snprintf(made->dev_name, sizeof made->dev_name, "uverbs-%s", options.name.c_str());
    for (std::string const& text : options.addresses) made->addresses.push_back(parse(text));
    made->options = std::move(options);
    return made;
}

}  // namespace

doorbell_descriptor::doorbell_descriptor()
    : descriptor_{::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)} {
    if (descriptor_ < 0) throw std::system_error{errno, std::system_category(), "fabric: eventfd"};
}

doorbell_descriptor::~doorbell_descriptor() { ::close(descriptor_); }

void doorbell_descriptor::ring() noexcept { static_cast<void>(::eventfd_write(descriptor_, 1)); }

int doorbell_descriptor::take() noexcept {
    eventfd_t one = 0;
    return ::eventfd_read(descriptor_, &one);
}

void doorbell_descriptor::drop(std::size_t count) noexcept {
    // The program may leave the descriptor in blocking mode; this function must not block.
    eventfd_t one = 0;
    iovec const where{&one, sizeof one};
    while (count-- > 0) static_cast<void>(::preadv2(descriptor_, &where, 1, -1, RWF_NOWAIT));
}

bool doorbell_descriptor::blocks() const noexcept {
    return (::fcntl(descriptor_, F_GETFL) & O_NONBLOCK) == 0;
}

bool doorbell_descriptor::is_rung() const noexcept {
    pollfd p{descriptor_, POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
}

context* context_of(ibv_context* raw) noexcept {
    // The C structure is the last member of the first member.
    return reinterpret_cast<context*>(verbs_get_ctx(raw));
}

network* network::current() noexcept {
    // Behind the store that published the network.
    network* const n = the_network.load(std::memory_order_acquire);
    if (n != nullptr) return n;
    auto const start = the_starter.load(std::memory_order_relaxed);  // set before any call
    return start != nullptr ? start() : nullptr;
}

void network::set_starter(network* (*start)() noexcept) noexcept { the_starter = start; }

int network::missing() noexcept { return why_missing; }

void network::set_missing(int number) noexcept { why_missing = number; }

void network::forget() noexcept { the_network = nullptr; }

network::network(world_options options, make_wire const& make)
    : options_{std::move(options)},
      seed_{choose_seed(options_)},
      events_{seed_},
      began_{std::chrono::steady_clock::now()} {
    if (options_.devices.empty()) options_.devices = default_devices();
    for (device_options const& d : options_.devices) {
        devices.push_back(make_device(d));
        devices.back()->guid = 0x0200'0000'0000'0000U + devices.size();  // locally administered
    }
    network* none = nullptr;
    if (!the_network.compare_exchange_strong(none, this))
        throw std::logic_error{"fabric: there is a world already"};
    try {
        begin(make);
    } catch (...) {
        the_network = nullptr;
        throw;
    }
}

void network::begin(make_wire const& make) {
    if (is_stepped()) return start_virtual_time();
    if (make) {
        others = make(*this);
        next_qp_ = others->first_qp_num();
        cm.begin_at(others->first_id());
        // In stepped time, the same in each run.
        if (!others->time()) cm.begin_ports_at(std::random_device{}());
        faults.is_recording = false;
    }
    // Block all signals in this thread: the threads of the program handle them.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    carrier_ = std::thread{[this] { carry_packets(); }};
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

network::~network() {
    the_network = nullptr;
    if (is_stepped()) stop_virtual_time();
    if (carrier_.joinable()) {
        {
            guard const held{mutex_};
            is_ending_ = true;
        }
        changed_.notify_all();
        carrier_.join();
    }
    // What a program still uses keeps its address, which no device of a later world may have.
    static auto& kept = *new std::vector<std::unique_ptr<context>>;
    for (auto const& d : devices) {
        if (d->borrowers > 0) kept.push_back(std::move(contexts_.at(d->borrowed->number)));
    }
}

nanoseconds network::now() const {
    if (is_stepped()) return virtual_now_;
    if (others != nullptr) {
        if (auto const told = others->time()) return *told;
    }
    return std::chrono::steady_clock::now() - began_;
}

void network::at(nanoseconds when, std::function<void()> action) {
    events_.at(when, std::move(action));
    if (is_stepped()) return;
    if (others == nullptr) {
        changed_.notify_all();
    } else if (events_.next() >= when) {
        others->wake();
    }
}

void network::at(nanoseconds when, queue_pair const& qp, void (queue_pair::*action)()) {
    at(when, [this, number = qp.qp_num, serial = qp.serial, action] {
        queue_pair* const still = find_qp(number);
        if (still != nullptr && still->serial == serial) (still->*action)();
    });
}

bool network::run_due(guard& held) {
    inside const mark;
    bool any = false;
    // In a real world, let other threads take the lock now and then.
    for (int i = 0; !events_.empty() && events_.next() <= now(); ++i) {
        std::function<void()> const action = events_.take();
        action();
        any = true;
        if (!is_stepped() && i % 16 == 15) {
            held.unlock();
            held.lock();
        }
    }
    return any;
}

void network::pass_time(nanoseconds by) {
    virtual_now_ += by;
    advance_virtual_time(by);
}

bool network::jump(guard& held) {
    std::optional<nanoseconds> first;
    if (!events_.empty()) first = std::max(events_.next() - now(), nanoseconds{0});
    if (std::optional<nanoseconds> const timer = next_timer();
        timer && (!first || *timer < *first)) {
        first = std::max(*timer, nanoseconds{0});
    }
    if (!first) return false;
    pass_time(*first);
    static_cast<void>(run_due(held));
    return true;
}

void network::carry_packets() {
    inside const mark;
    guard held{mutex_};
    while (!is_ending_) {
        bool is_busy = others != nullptr && others->receive();
        if (others == nullptr || others->may_run_timers()) is_busy = run_due(held) || is_busy;
        flush();
        if (is_busy) {
            held.unlock();
            held.lock();
            continue;
        }
        std::optional<nanoseconds> timeout;
        if (!events_.empty()) timeout = std::max(events_.next() - now(), nanoseconds{0});
        if (others != nullptr) {
            others->wait(held, timeout);
        } else if (timeout) {
            changed_.wait_for(held, *timeout);
        } else {
            changed_.wait(held);
        }
    }
}

void network::work_for_poll() {
    inside const mark;
    guard held{mutex_, std::try_to_lock};
    if (!held) return;
    others->receive();
    run_due(held);
    flush();
}

void network::await_sent(nanoseconds at_most) {
    inside const mark;
    auto const until = std::chrono::steady_clock::now() + at_most;
    do {
        if (guard const held{mutex_, std::try_to_lock};
            held && delayed == 0 && !others->has_unsent())
            return;
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    } while (std::chrono::steady_clock::now() < until);
}

device* network::find_device(std::string_view name) {
    for (std::unique_ptr<device> const& d : devices) {
        if (d->options.name == name) return d.get();
    }
    return nullptr;
}

object_counts network::counts() const {
    object_counts c;
    c.protection_domains = domains_.size();
    c.memory_regions = regions_.size();
    c.memory_windows = windows_.size();
    c.completion_channels = channels_.size();
    c.completion_queues = queues_.size();
    c.shared_receive_queues = shared_.size();
    c.queue_pairs = pairs_.size();
    c.event_channels = cm.channel_count();
    c.cm_ids = cm.id_count();
    return c;
}

void network::wait_acknowledged(
    guard& held, char const* function, std::function<bool()> const& is_done
) {
    if (is_stepped() && !is_done()) would_block_for_ever(function);
    acknowledged_.wait(held, is_done);
}

void network::would_block_for_ever(char const* function) const {
    std::fprintf(
        stderr,
        "fabric: %s would wait for ever: what it waits for is not going to happen (seed %llu)\n",
        function,
        static_cast<unsigned long long>(seed_)
    );
    std::abort();
}

}  // namespace rcverbs::fabric::detail
