#include "remote/region_core.hpp"

#include <rcverbs/experimental/protocol/option_check.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include "remote/memory_core.hpp"
#include "remote/region_bodies.hpp"

namespace rcverbs::detail {

using wire::region_operation;
using wire::region_status;

static_assert(region_channel::operation_first == wire::region_operation_first);
static_assert(region_offers::name_bytes_max == wire::offer_name_bytes_max);
static_assert(region_offers::ranges_max == wire::region_ranges_max);
static_assert(region_offers::ranges_max == machines::piece_map::ranges_max);

namespace {

std::string_view name_in(std::span<std::byte const> body) noexcept {
    return {reinterpret_cast<char const*>(body.data()), body.size()};
}

}  // namespace

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
      offers_{std::move(offers)},
      changes_max_{changes_max} {}

region_core::~region_core() { end_registrations(); }

void region_core::begin() {
    if (channel_.is_open()) enter([this] { open(); });
}

failure region_core::last_failure() const {
    return has_failed_ ? driver::last_failure() : channel_.last_failure();
}

region_channel_statistics region_core::statistics() const noexcept {
    return {held_count_, granted_count_, registrations_, registered_bytes_, windows_};
}

std::optional<region_refusal> region_core::peer_refusal() const {
    std::lock_guard const lock{refusals_mutex_};
    return peer_refusal_;
}

std::optional<region_refusal> region_core::own_refusal() const {
    std::lock_guard const lock{refusals_mutex_};
    return own_refusal_;
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
    if (std::exchange(is_pumping_, true)) return;
    if (offers_.is_valid())
        offers_.core_->join(std::static_pointer_cast<region_core>(shared_from_this()));
    pump();
}

void region_core::on_end(failure const& why) {
    has_ended_ = true;
    // The requests that have arrived can still be taken.
    if (!is_pumping_) {
        end_ = why.code;
        nexts_.fail_all(end_);
        change_waits_.fail_all(end_);
    }
    findings_.clear();
    finds_.fail_all(why.code);
    prepares_.fail_all(why.code);
    releasing_.clear();
    for (auto const& [number, memory] : held_) {
        if (auto const alive = memory.lock()) alive->withdraw();
    }
    held_.clear();
    held_count_ = 0;
    for (auto& [number, who] : std::exchange(freeing_, {})) deliver(std::move(who), why.code);
    to_be_freed_.clear();
    end_registrations();
    // Last, because the program may be told that its memory is its own again.
    while (!grants_.empty()) end_grant(grants_.begin());
    lease_.reset();
    for (auto& who : std::exchange(finishing_, {})) deliver(std::move(who), {});
}

void region_core::on_abandoned() noexcept {
    findings_.clear();
    end_registrations();
    releasing_.clear();
    draining_.clear();
    freeing_.clear();
    to_be_freed_.clear();
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
        give_changes();
        nexts_.fail_all(ec);  // those that wait have found nothing
    }));
}

void region_core::take(request r) {
    if (r.operation() < region_channel::operation_first) return take_program(std::move(r));
    // What arrived before the end, but is taken after it, must not grant anything.
    if (has_ended_) return;
    // None of this layer's messages needs more than a small one.
    if (r.is_large()) return violated();
    take_own(std::move(r));
}

void region_core::take_own(request r) {
    bool const is_notice = !r.wants_answer();
    switch (static_cast<region_operation>(r.operation())) {
    case region_operation::find:
        if (!is_notice) return answer_find(std::move(r));
        break;
    case region_operation::keys:
        if (!is_notice) return answer_keys(std::move(r));
        break;
    case region_operation::withdraw:
        if (!is_notice) return on_withdraw(std::move(r));
        break;
    case region_operation::allocate:
        if (!is_notice) return answer_allocate(std::move(r));
        break;
    case region_operation::resume:
        if (!is_notice) return answer_resume(std::move(r));
        break;
    case region_operation::free:
        if (!is_notice) return answer_free(std::move(r));
        break;
    case region_operation::share:
        if (!is_notice) return answer_share(std::move(r));
        break;
    case region_operation::offered:
        if (is_notice) return on_change(region_change::kind::offered, r);
        break;
    case region_operation::withdrawn:
        if (is_notice) return on_change(region_change::kind::withdrawn, r);
        break;
    case region_operation::dropped:
        if (is_notice) return on_dropped(r);
        break;
    }
    violated();
}

void region_core::take_program(request r) {
    arrived_.push_back({++numbers_, std::move(r)});
    give_requests();
}

void region_core::give_requests() {
    while (!nexts_.empty() && !arrived_.empty()) {
        auto first = take_first(arrived_);
        nexts_.hand_over_first(first.number, {}, std::move(first.value));
    }
}

void region_core::next(protocol::waiter<error_code, request> who) {
    if (nexts_.empty() && !arrived_.empty()) {
        auto first = take_first(arrived_);
        return nexts_.hand_over(std::move(who), first.number, {}, std::move(first.value));
    }
    if (end_) return deliver(std::move(who), end_, {});
    nexts_.add(std::move(who));
}

void region_core::answer(request r, region_status status, std::vector<std::byte> body) {
    auto const kept = std::make_shared<std::vector<std::byte> const>(std::move(body));
    // If it fails the connection has ended, or the peer does not wait any more.
    r.async_answer(
        static_cast<std::uint32_t>(status),
        std::span{*kept},
        boost::asio::bind_executor(
            protocol::order_executor{shared_from_this()}, [kept](error_code const&) {}
        )
    );
}

// --- the finder's side ---------------------------------------------------------------------------

void region_core::find(
    std::string name,
    std::chrono::milliseconds wait,
    protocol::waiter<error_code, remote_memory> who
) {
    if (!wire::is_region_name(name) || wait.count() < 0)
        return deliver(std::move(who), errc::invalid_option, {});
    if (auto const ec = usable()) return deliver(std::move(who), ec, {});
    std::uint64_t const number = finds_.add(std::move(who));
    if (number == 0) return;  // the channel has ended
    finding& f = findings_.try_emplace(number, *this).first->second;
    f.name = std::move(name);
    f.waits = wait.count() > 0;
    if (f.waits)
        f.limit.start(wait, [this, number] { end_find(number, channel_errc::no_such_region); });
    ask(number, f);
}

error_code region_core::usable() const noexcept {
    return is_pumping_ ? end_ : make_error_code(errc::not_connected);
}

void region_core::ask(std::uint64_t find, finding& f) {
    f.is_asking = true;
    f.is_offered = false;
    ask_peer(
        region_operation::find,
        wire::encode_find(f.name),
        [this, find, question = early_.open()](error_code ec, reply const& r) {
            on_answer(find, question, ec, r);
        }
    );
}

void region_core::on_answer(
    std::uint64_t find, std::uint64_t question, error_code ec, reply const& r
) {
    remote_memory found;
    bool const is_here = !ec && r.status() == static_cast<std::uint32_t>(region_status::found);
    if (is_here) {
        auto const message = wire::decode_found(r.bytes(), ec);
        if (!ec) found = take_found(message, question, ec);
    }
    early_.close(question);
    if (is_here && found.is_valid()) return end_find(find, {}, std::move(found));
    if (!ec && !is_here) ec = refusal_of(r);
    if (ec == channel_errc::malformed_message) return violated();
    if (ec == channel_errc::no_such_region) ec = {};
    auto const at = findings_.find(find);
    if (at == findings_.end()) return;
    finding& f = at->second;
    if (ec || !f.waits) return end_find(find, ec ? ec : channel_errc::no_such_region);
    f.is_asking = false;
    if (f.is_offered) ask(find, f);
}

error_code region_core::refusal_of(reply const& r) {
    error_code ec;
    switch (static_cast<region_status>(r.status())) {
    case region_status::none: return channel_errc::no_such_region;
    case region_status::refused: {
        auto const refused = wire::decode_refused(r.bytes(), ec);
        if (ec) return ec;
        error_code const why{refused.why, boost::system::system_category()};
        std::lock_guard const lock{refusals_mutex_};
        peer_refusal_ = region_refusal{why, refused.limit};
        return why;
    }
    case region_status::other_version: return channel_errc::version_mismatch;
    default: return channel_errc::malformed_message;
    }
}

// Empty if it was withdrawn meanwhile.
remote_memory region_core::take_found(
    wire::region_found const& found, std::uint64_t question, error_code& ec
) {
    machines::piece_map const map{found.piece_bytes, found.range_bytes};
    if (!map.is_valid() || found.keys.size() > map.pieces()) ec = channel_errc::malformed_message;
    bool const is_gone = early_.contains(found.number, question) || freeing_.contains(found.number);
    if (ec || is_gone) return {};
    auto& known = held_[found.number];
    std::shared_ptr<memory_core> memory = known.lock();
    if (memory == nullptr) {
        memory = std::make_shared<memory_core>(
            std::static_pointer_cast<region_core>(shared_from_this()),
            found.number,
            found.rights,
            map
        );
        known = memory;
        held_count_ = held_.size();
    }
    memory->on_found();
    if (memory->map().pieces() == map.pieces()) memory->add_keys(0, found.keys);
    return memory_core::handle_of(std::move(memory));
}

void region_core::end_find(std::uint64_t find, error_code ec, remote_memory found) {
    findings_.erase(find);
    finds_.complete(find, ec, std::move(found));
}

void region_core::request_keys(wire::region_keys const& which, keys_handler then) {
    ask_peer(
        region_operation::keys,
        wire::encode(which),
        [this, most = which.count, t = std::move(then)](error_code ec, reply const& r) {
            if (ec) return t(ec, {});
            std::size_t const count = r.bytes().size() / wire::region_key_bytes;
            std::vector<wire::piece_key> keys;
            if (r.status() == static_cast<std::uint32_t>(region_status::found)) {
                keys = wire::decode_piece_keys(r.bytes(), count, ec);
                if (count == 0 || count > most) ec = channel_errc::malformed_message;
            } else {
                ec = refusal_of(r);
                if (ec == channel_errc::no_such_region) ec = channel_errc::region_withdrawn;
                if (ec == channel_errc::version_mismatch) ec = channel_errc::malformed_message;
            }
            if (ec == channel_errc::malformed_message) violated();
            t(ec, keys);
        }
    );
}

void region_core::drop_held(std::uint64_t number) noexcept {
    held_.erase(number);
    held_count_ = held_.size();
}

void region_core::give_back(std::uint64_t number, std::uint32_t founds) {
    auto const known = held_.find(number);
    if (known != held_.end() && known->second.expired()) drop_held(number);
    notify_dropped(number, founds);
}

void region_core::on_withdraw(request r) {
    error_code ec;
    std::uint64_t const number = wire::decode_number(r.bytes(), ec);
    if (ec || early_.size() >= early_max) return violated();
    auto const known = held_.find(number);
    auto const memory = known != held_.end() ? known->second.lock() : nullptr;
    drop_held(number);
    early_.add(number);
    if (memory != nullptr && !memory->withdraw()) draining_.insert(number);
    if (draining_.contains(number)) releasing_.emplace(number, std::move(r));
    else answer(std::move(r), region_status::found);
}

void region_core::on_unused(std::uint64_t number) {
    draining_.erase(number);
    if (freeing_.contains(number)) ask_to_free(number);
    for (auto found = releasing_.find(number); found != releasing_.end();
         found = releasing_.find(number)) {
        request r = std::move(found->second);
        releasing_.erase(found);
        answer(std::move(r), region_status::found);
    }
}

template <class Then>
void region_core::notify(region_operation what, std::span<std::byte const> of_body, Then then) {
    auto const body =
        std::make_shared<std::vector<std::byte> const>(of_body.begin(), of_body.end());
    channel_.async_notify(
        number_of(what),
        std::span<std::byte const>{*body},
        ordered([body, t = std::move(then)](error_code const& ec) { t(ec); })
    );
}

void region_core::notify_dropped(std::uint64_t number, std::uint32_t founds) {
    if (!is_pumping_ || !channel_.is_open()) return;
    if (++notices_ > notices_max)
        return fail_with(channel_errc::peer_not_received, close_reason::timed_out);
    auto const body = wire::encode(wire::region_dropped{number, founds});
    notify(region_operation::dropped, body, [this](error_code ec) {
        --notices_;
        on_notified(ec);
    });
}

// A notice fails when the connection has ended or finishes; or it has waited for the peer as long as
// its deadline, and is lost. Then the peer's view of the names or this side's of what the peer has
// would stay wrong, so the connection ends.
void region_core::on_notified(error_code ec) {
    if (ec == channel_errc::request_timed_out) fail_with(ec, close_reason::timed_out);
}

void region_core::notify_changes() {
    if (!is_pumping_ || end_) return;
    while (!unsent_changes_.empty() && changes_under_way_ < changes_under_way_max) {
        auto const next = unsent_changes_.take();
        ++changes_under_way_;
        notify(
            next.is_offered ? region_operation::offered : region_operation::withdrawn,
            std::as_bytes(std::span{next.name}),
            [this](error_code ec) {
                --changes_under_way_;
                on_notified(ec);
                notify_changes();
            }
        );
    }
}

// --- changes -------------------------------------------------------------------------------------

void region_core::on_change(region_change::kind what, request const& r) {
    std::string_view const name = name_in(r.bytes());
    if (!wire::is_region_name(name)) return violated();
    if (changes_.size() < changes_max_ && !has_missed_)
        changes_.push_back({++numbers_, {what, std::string{name}}});
    else has_missed_ = true;
    give_changes();
    if (what != region_change::kind::offered) return;
    for (auto& [number, f] : findings_) {
        if (!f.waits || f.name != name) continue;
        f.is_offered = true;
        if (!f.is_asking) ask(number, f);
    }
}

void region_core::next_change(protocol::waiter<error_code, region_change> who) {
    if (change_waits_.empty() && (!changes_.empty() || has_missed_)) {
        note_missed();
        auto first = take_first(changes_);
        return change_waits_.hand_over(std::move(who), first.number, {}, std::move(first.value));
    }
    if (end_) return deliver(std::move(who), end_, {});
    change_waits_.add(std::move(who));
}

// Those that were missed come behind those that were kept.
void region_core::note_missed() {
    if (changes_.empty() && std::exchange(has_missed_, false))
        changes_.push_back({++numbers_, {region_change::kind::missed, {}}});
}

void region_core::give_changes() {
    while (!change_waits_.empty()) {
        note_missed();
        if (changes_.empty()) break;
        auto first = take_first(changes_);
        change_waits_.hand_over_first(first.number, {}, std::move(first.value));
    }
    if (end_) change_waits_.fail_all(end_);
}

}  // namespace rcverbs::detail
