#include <rcverbs/fabric.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "network.hpp"

namespace rcverbs::fabric {

namespace {

detail::device& named(detail::network& n, std::string_view name) {
    detail::device* const found = n.find_device(name);
    if (found == nullptr) throw std::invalid_argument{"fabric: no device " + std::string{name}};
    return *found;
}

// Asio wakes up every five minutes, even without timers, so an idle io_context never runs out of
// events. The world gives up after this idle time.
constexpr std::chrono::hours idle_max{24 * 30};

// Polling threads destroy their objects asynchronously. Objects that are left after this time will
// stay, against the rule.
constexpr std::chrono::seconds releasing_max{10};

// Runs a stepped world, one handler or event per turn.
class turns {
public:
    turns(detail::network& n, boost::asio::io_context& io) : network_{n}, io_{io} {}

    /// Runs a handler of the program, if one is ready; else the next event of the network or the
    /// next timer. False if `io` has no work left, or if nothing will ever happen.
    bool next() {
        {
            auto held = network_.lock();
            if (network_.run_due(held)) idle_since_ = network_.now();
        }
        if (io_.poll_one() > 0) {
            auto const held = network_.lock();
            // The simulated run time of the handler.
            network_.pass_time(std::chrono::nanoseconds{network_.pick(50, 1500)});
            idle_since_ = network_.now();
            return true;
        }
        if (io_.stopped()) return false;
        auto held = network_.lock();
        if (network_.run_due(held)) return true;
        return network_.now() - idle_since_ < idle_max && network_.jump(held);
    }

private:
    detail::network& network_;
    boost::asio::io_context& io_;
    std::chrono::nanoseconds idle_since_ = network_.now();
};

}  // namespace

std::size_t object_counts::total() const noexcept {
    return protection_domains + memory_regions + memory_windows + completion_channels +
           completion_queues + shared_receive_queues + queue_pairs + event_channels + cm_ids;
}

world::world(world_options options)
    : impl_{std::make_unique<detail::network>(std::move(options))},
      exceptions_before_{std::uncaught_exceptions()} {}

world::~world() {
    if (!impl_->is_stepped()) {
        auto const until = std::chrono::steady_clock::now() + releasing_max;
        while (live().total() > 0 && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    if (std::uncaught_exceptions() <= exceptions_before_) return;
    std::fprintf(
        stderr,
        "fabric: repeat this run with RCVERBS_FABRIC_SEED=%llu\n",
        static_cast<unsigned long long>(seed())
    );
}

std::uint64_t world::seed() const noexcept { return impl_->seed(); }

// --- time ----------------------------------------------------------------------------------------

std::chrono::nanoseconds world::now() const {
    auto const held = impl_->lock();
    return impl_->now();
}

bool world::run(boost::asio::io_context& io) {
    io.restart();
    if (!impl_->is_stepped()) {
        io.run();
        return true;
    }
    turns turn{*impl_, io};
    while (turn.next()) {}
    return io.stopped();
}

bool world::run_until(boost::asio::io_context& io, std::function<bool()> const& done) {
    io.restart();
    turns turn{*impl_, io};
    while (!done()) {
        if (impl_->is_stepped()) {
            if (!turn.next()) return done();
        } else if (io.run_one_for(std::chrono::milliseconds{1}) == 0 && io.stopped()) {
            return done();
        }
    }
    return true;
}

void world::run_for(boost::asio::io_context& io, std::chrono::nanoseconds duration) {
    auto const end = now() + duration;
    if (!impl_->is_stepped()) {
        io.restart();
        io.run_for(duration);
        return;
    }
    // A marker event at the end, so that the clock does not jump over it.
    {
        auto const held = impl_->lock();
        impl_->at(end, [] {});
    }
    static_cast<void>(run_until(io, [&] { return now() >= end; }));
    while (now() < end && step()) {}
}

bool world::step() {
    auto held = impl_->lock();
    return impl_->run_due(held) || impl_->jump(held);
}

// --- inspection ----------------------------------------------------------------------------------

object_counts world::live() const {
    auto const held = impl_->lock();
    return impl_->counts();
}

bool world::is_device_open(std::string_view device) const {
    auto const held = impl_->lock();
    return named(*impl_, device).borrowed != nullptr;
}

device_counters world::counters(std::string_view device) const {
    auto const held = impl_->lock();
    return named(*impl_, device).counters;
}

std::vector<std::string> world::calls() const {
    auto const held = impl_->lock();
    return {impl_->faults.called.begin(), impl_->faults.called.end()};
}

std::size_t world::call_count(std::string_view function) const {
    auto const held = impl_->lock();
    auto const found = impl_->faults.call_counts.find(std::string{function});
    std::size_t const counted = found == impl_->faults.call_counts.end() ? 0 : found->second;
    return counted + (function == "ibv_poll_cq" ? impl_->faults.empty_polls.load() : 0);
}

bool world::is_inside() noexcept { return detail::inside::depth > 0; }

// --- faults --------------------------------------------------------------------------------------

void world::fail_call(std::string_view function, std::size_t nth, int error) {
    auto const held = impl_->lock();
    impl_->faults.order_failure(std::string{function}, nth, error);
}

void world::on_call(std::function<void(std::string_view)> watch) {
    impl_->faults.call_watcher = std::move(watch);
}

bool world::has_failed_call() const {
    auto const held = impl_->lock();
    return impl_->faults.has_failed;
}

void world::fail_work(std::size_t nth, int status) {
    auto const held = impl_->lock();
    impl_->faults.work_to_fail = nth;
    impl_->faults.work_status = status;
}

void world::break_queue_pair(std::size_t nth) {
    auto const held = impl_->lock();
    impl_->faults.modify_to_break = nth;
}

void world::on_packet(std::function<packet_fate(packet_info const&)> decide) {
    auto const held = impl_->lock();
    impl_->faults.packet_decision = std::move(decide);
}

void world::on_cm_event(std::function<cm_event_fate(cm_event_info const&)> decide) {
    auto const held = impl_->lock();
    impl_->faults.cm_decision = std::move(decide);
}

void world::reject_next_request(int reason) {
    auto const held = impl_->lock();
    impl_->faults.reject_with = reason;
}

void world::set_flush(flush_policy policy) {
    auto const held = impl_->lock();
    impl_->faults.flush = policy;
}

void world::on_completion(std::function<completion_fate(completion_info const&)> decide) {
    auto const held = impl_->lock();
    impl_->faults.completion_decision = std::move(decide);
}

void world::set_destroy(destroy_policy policy) {
    auto const held = impl_->lock();
    impl_->faults.destroy = policy;
}

void world::kill_program(std::string_view device) {
    auto const held = impl_->lock();
    impl_->kill_program(named(*impl_, device));
}

void world::power_off(std::string_view device) {
    auto const held = impl_->lock();
    impl_->power_off(named(*impl_, device));
}

void world::remove_device(std::string_view device) {
    auto const held = impl_->lock();
    impl_->remove(named(*impl_, device));
}

void world::port_down(std::string_view device) {
    auto const held = impl_->lock();
    impl_->set_port(named(*impl_, device), false);
}

void world::port_up(std::string_view device) {
    auto const held = impl_->lock();
    impl_->set_port(named(*impl_, device), true);
}

void world::lose_addresses(std::string_view device) {
    auto const held = impl_->lock();
    impl_->lose_addresses(named(*impl_, device));
}

void world::stop_send_queues(std::string_view device) {
    auto const held = impl_->lock();
    impl_->stop_send_queues(named(*impl_, device));
}

void world::fail_queue_pairs(std::string_view device) {
    auto const held = impl_->lock();
    impl_->fail_queue_pairs(named(*impl_, device));
}

void world::overrun(std::string_view device) {
    auto const held = impl_->lock();
    impl_->overrun(named(*impl_, device));
}

}  // namespace rcverbs::fabric
