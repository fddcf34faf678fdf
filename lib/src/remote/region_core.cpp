#include "remote/region_core.hpp"

#include <rcverbs/experimental/protocol/option_check.hpp>

#include <string>
#include <utility>

namespace rcverbs::detail {

using wire::region_operation;
using wire::region_status;

static_assert(region_channel::operation_first == wire::region_operation_first);
static_assert(region_offers::name_bytes_max == wire::offer_name_bytes_max);
static_assert(region_offers::ranges_max == wire::region_ranges_max);
static_assert(region_offers::ranges_max == machines::piece_map::ranges_max);

std::string problem_of(region_offers_options const& options) {
    option_check check{"region_offers_options"};
    check.within("piece_bytes", options.piece_bytes, std::uint64_t{4096}, std::uint64_t{1} << 40)
        .from("withdraw_timeout", options.withdraw_timeout, std::chrono::milliseconds{1})
        .within("registrations_max", options.registrations_max, 1, 64);
    return check.problem();
}

std::string problem_of(region_channel_options const& options) {
    option_check check{"region_channel_options"};
    check.within("changes_max", options.changes_max, 1, 65536);
    return check.problem();
}

region_core::region_core(request_channel over, region_offers offers, std::uint32_t changes_max)
    : driver{over},
      channel_{std::move(over)},
      finds_{*this},
      allocations_{*this},
      changes_{*this, changes_max},
      pool_{*this},
      grants_{*this, std::move(offers)},
      nexts_{*this, [this](std::uint64_t number, error_code const&, request r) {
                 arrived_.put_back(number, std::move(r));
                 give_requests();
             }} {}

void region_core::begin() {
    if (channel_.is_open()) enter([this] { open(); });
}

failure region_core::last_failure() const {
    return has_failed_ ? driver::last_failure() : channel_.last_failure();
}

region_channel_statistics region_core::statistics() const noexcept {
    region_channel_statistics s;
    s.held = finds_.held();
    grants_.count(s);
    return s;
}

// --- beginning and end ---------------------------------------------------------------------------

void region_core::connect(endpoint const& peer, protocol::waiter<error_code> who) {
    channel_.async_connect(peer, ordered([this, w = std::move(who)](error_code ec) mutable {
                               if (!ec) open();
                               deliver(std::move(w), ec);
                           }));
}

void region_core::accept(protocol::waiter<error_code> who) {
    channel_.async_accept(ordered([this, w = std::move(who)](error_code ec) mutable {
        if (!ec) open();
        deliver(std::move(w), ec);
    }));
}

void region_core::finish(protocol::waiter<error_code> who) {
    channel_.async_finish(ordered([this, w = std::move(who)](error_code ec) mutable {
        // Until the connection has ended, the peer's device may access this side's memory.
        if (ec || has_ended_) return deliver(std::move(w), ec);
        finishing_.push_back(std::move(w));
    }));
}

void region_core::open() {
    if (std::exchange(has_begun_, true)) return;
    grants_.join();
    pump();
}

error_code region_core::usable() const noexcept {
    return has_begun_ ? end_ : make_error_code(errc::not_connected);
}

void region_core::on_end(failure const& why) {
    has_ended_ = true;
    // The requests that have arrived can still be taken.
    if (!has_begun_) {
        end_ = why.code;
        nexts_.fail_all(end_);
        changes_.end();
    }
    finds_.end(why.code);
    allocations_.end(why.code);
    pool_.drop_requests();
    grants_.end_registrations();
    // Last, because the program may be told that its memory is its own again.
    grants_.end_all();
    pool_.end();
    for (auto& who : std::exchange(finishing_, {})) deliver(std::move(who), {});
}

void region_core::on_abandoned() noexcept {
    finds_.abandon();
    allocations_.abandon();
    pool_.drop_requests();
    grants_.end_registrations();
    arrived_.clear();
    finishing_.clear();
}

void region_core::violated() {
    fail_with(channel_errc::malformed_message, close_reason::protocol_error);
}

void region_core::fail_with(error_code why, close_reason reason) {
    fail(step::transfer, why, reason);
    has_failed_ = true;
}

// --- what arrives --------------------------------------------------------------------------------

void region_core::pump() {
    channel_.async_next(ordered([this](error_code ec, request r) {
        if (!ec) {
            take(std::move(r));
            return pump();
        }
        end_ = ec;
        changes_.end();
        nexts_.fail_all(ec);  // those that wait have found nothing
    }));
}

void region_core::take(request r) {
    if (r.operation() < region_channel::operation_first) {
        arrived_.push(std::move(r));
        return give_requests();
    }
    // What arrived before the end, but is taken after it, must not grant anything.
    if (has_ended_) return;
    // None of this layer's messages needs more than a small one.
    if (r.is_large()) return violated();
    take_own(std::move(r));
}

void region_core::take_own(request r) {
    using op = region_operation;
    auto const what = static_cast<op>(r.operation());
    bool const is_notice = what == op::offered || what == op::withdrawn || what == op::dropped;
    if (is_notice == r.wants_answer()) return violated();
    switch (what) {
    case op::find: return grants_.on_find(std::move(r));
    case op::keys: return grants_.on_keys(std::move(r));
    case op::withdraw: return finds_.on_withdraw(std::move(r));
    case op::allocate: return pool_.on_allocate(std::move(r));
    case op::resume: return pool_.on_resume(std::move(r));
    case op::free: return pool_.on_free(std::move(r));
    case op::share: return pool_.on_share(std::move(r));
    case op::offered: return on_change(region_change::kind::offered, r);
    case op::withdrawn: return on_change(region_change::kind::withdrawn, r);
    case op::dropped: return grants_.on_dropped(r);
    }
    violated();
}

void region_core::on_change(region_change::kind what, request const& r) {
    std::string name{reinterpret_cast<char const*>(r.bytes().data()), r.bytes().size()};
    if (!wire::is_region_name(name)) return violated();
    changes_.add(what, name);
    if (what == region_change::kind::offered) finds_.on_offered(name);
}

void region_core::give_requests() {
    while (!nexts_.empty() && !arrived_.empty()) {
        auto first = arrived_.take_first();
        nexts_.hand_over_first(first.number, {}, std::move(first.value));
    }
}

void region_core::next(protocol::waiter<error_code, request> who) {
    if (nexts_.empty() && !arrived_.empty()) {
        auto first = arrived_.take_first();
        return nexts_.hand_over(std::move(who), first.number, {}, std::move(first.value));
    }
    if (end_) return deliver(std::move(who), end_, {});
    nexts_.add(std::move(who));
}

void region_core::answer(request r, region_status status, std::vector<std::byte> body) {
    auto const kept = make_recycled<std::vector<std::byte> const>(std::move(body));
    // If it fails the connection has ended, or the peer does not wait any more.
    r.async_answer(
        static_cast<std::uint32_t>(status),
        std::span{*kept},
        boost::asio::bind_executor(
            protocol::order_executor{shared_from_this()}, [kept](error_code const&) {}
        )
    );
}

// A notice fails when the connection has ended or finishes; or it has waited for the peer as long as
// its deadline, and is lost. Then the peer's view of the names or this side's of what the peer has
// would stay wrong, so the connection ends.
void region_core::on_notified(error_code ec) {
    if (ec == channel_errc::request_timed_out) fail_with(ec, close_reason::timed_out);
}

}  // namespace rcverbs::detail
