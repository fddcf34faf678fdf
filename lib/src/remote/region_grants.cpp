#include "remote/region_grants.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <rcverbs/device.hpp>

#include "remote/region_bodies.hpp"
#include "remote/region_core.hpp"

namespace rcverbs::detail {

using wire::region_operation;
using wire::region_status;

void region_grants::join() {
    if (offers_.is_valid()) offers_.core_->join(channel_.self());
}

std::shared_ptr<pool_core> region_grants::pool() const {
    return offers_.is_valid() ? offers_.core_->pool() : nullptr;
}

region_offers_options const& region_grants::options() const noexcept {
    return offers_.core_->options();
}

void region_grants::count(region_channel_statistics& s) const noexcept {
    s.granted = counted_.granted;
    s.registrations = counted_.registrations;
    s.registered_bytes = counted_.registered_bytes;
    s.windows = counted_.windows;
}

// --- keys ----------------------------------------------------------------------------------------

region_grants::grant* region_grants::grant_of(offer_ptr const& what) {
    auto const known = grants_.find(what->number);
    if (known != grants_.end()) return &known->second;
    std::array<std::uint64_t, region_offers::ranges_max> sizes{};
    std::ranges::transform(what->memory, sizes.begin(), [](auto const& r) { return r.size(); });
    std::uint64_t const most = channel_.below().domain().limits().region_bytes_max;
    machines::piece_map const map{
        has_window_key(*what) ? sizes[0] : std::min(options().piece_bytes, most),
        std::span{sizes}.first(what->memory.size())};
    if (!map.is_valid()) return nullptr;
    grant& made = grants_.try_emplace(what->number).first->second;
    made.what = what;
    made.map = map;
    if (!has_window_key(*what)) made.pieces.resize(map.pieces());
    ++counted_.granted;
    return &made;
}

bool region_grants::has_window_key(offered_region const& what) const {
    return what.around != nullptr && what.around->domain == channel_.below().domain();
}

wire::piece_keys region_grants::open_window(grant& g, error_code& ec) {
    if (g.window == nullptr) {
        auto const made = make_recycled<opening>(opening{g.what, {}, window{channel_.below(), ec}});
        if (ec) return {};
        // The answer is sent on the same queue pair, so the binding precedes every access. Until it
        // is complete the window must exist, and with it the memory is in use.
        made->window.async_bind(
            g.what->around->region.slice(g.what->memory[0]),
            g.what->rights,
            channel_.ordered([made](error_code const&, remote_region const&) {})
        );
        g.window = made;
        ++counted_.windows;
    }
    remote_region const r = g.window->window.remote();
    return {{r.address(), r.key()}};
}

void region_grants::add_piece(grant& g, std::uint32_t piece, memory_region region) {
    ++counted_.registrations;
    counted_.registered_bytes += region.size();
    g.pieces[piece] = std::move(region);
}

wire::piece_keys region_grants::known_keys(
    grant const& g, std::uint32_t first, std::uint32_t count
) {
    wire::piece_keys keys;
    for (std::uint32_t i = first; i < first + count && g.pieces[i].is_open(); ++i) {
        remote_region const r = g.pieces[i].remote();
        keys.push_back({r.address(), r.key()});
    }
    return keys;
}

// Registers pieces for as long as that does not delay others, at least one; refused only if there is
// none.
wire::piece_keys region_grants::register_pieces(
    grant& g, std::uint32_t first, std::uint32_t count, wire::region_refused& why
) {
    error_code ec;
    if (g.pieces.empty()) {
        auto keys = open_window(g, ec);
        if (ec) why.why = errno_of(ec);
        return keys;
    }
    constexpr std::chrono::milliseconds long_enough{5};
    auto const until = std::chrono::steady_clock::now() + long_enough;
    for (std::uint32_t i = first; i < first + count; ++i) {
        if (!g.pieces[i].is_open()) {
            auto const at = g.map.in_range(i);
            memory_region made = registered(channel_.below().domain(), *g.what, at, ec);
            if (ec && i == first)
                why = {errno_of(ec), limit_met(channel_.below().domain(), at.size, ec)};
            if (ec) break;
            add_piece(g, i, std::move(made));
        }
        if (std::chrono::steady_clock::now() > until) break;
    }
    return known_keys(g, first, count);
}

// --- pieces that other threads register ----------------------------------------------------------

// Answers those whose pieces are all registered.
void region_grants::answer_waiting(grant& g) {
    for (auto i = g.waiting.begin(); i != g.waiting.end();) {
        auto const keys = known_keys(g, i->first, i->count);
        if (keys.size() < i->count) {
            ++i;
            continue;
        }
        channel_.answer(std::move(i->asked), region_status::found, wire::encode(keys));
        i = g.waiting.erase(i);
    }
}

bool region_grants::may_register() const noexcept {
    return registrations_.size() < options().registrations_max;
}

// Starts what is missing, as much as is allowed at a time.
void region_grants::start_registrations(grant& g) {
    for (key_request const& k : g.waiting) {
        for (std::uint32_t p = k.first; p < k.first + k.count; ++p) {
            if (g.pieces[p].is_open() || g.registering.contains(p)) continue;
            if (!may_register()) return;
            auto then = [this, weak = std::weak_ptr{channel_.self()}](auto const& job) {
                auto const channel = weak.lock();
                if (channel != nullptr)
                    channel->in_order([this, channel, job] { on_registered(job); });
            };
            auto const job = registrations_.start(
                options().register_on,
                channel_.own_executor(),
                channel_.below().domain(),
                g.what,
                p,
                g.map.in_range(p),
                std::move(then)
            );
            g.registering.emplace(p, job);
        }
    }
}

void region_grants::on_registered(registrations::job_ptr const& job) {
    registrations_.remove(job);
    auto const found = grants_.find(job->number);
    // An older grant of the same number may have asked for it.
    bool const is_wanted = found != grants_.end() &&
                           found->second.registering.contains(job->piece) &&
                           found->second.registering.at(job->piece) == job;
    if (is_wanted) {
        grant& g = found->second;
        g.registering.erase(job->piece);
        if (!job->ec) add_piece(g, job->piece, std::move(job->region));
        for (auto i = g.waiting.begin(); job->ec && i != g.waiting.end();) {
            if (job->piece < i->first || job->piece >= i->first + i->count) {
                ++i;
                continue;
            }
            // The pieces before it can be used.
            i->count = job->piece - i->first;
            if (i->count > 0) {
                ++i;
                continue;
            }
            refuse(std::move(i->asked), {errno_of(job->ec), job->limit});
            i = g.waiting.erase(i);
        }
        answer_waiting(g);
    }
    // What is allowed at a time is of the channel: the others have their turns.
    for (std::size_t i = 0; i < grants_.size(); ++i) {
        auto next = grants_.upper_bound(served_last_);
        if (next == grants_.end()) next = grants_.begin();
        if (!may_register()) return;
        served_last_ = next->first;
        start_registrations(next->second);
    }
}

void region_grants::refuse_keys(grant& g) {
    for (auto& [piece, job] : g.registering) registrations::cancel(*job);
    g.registering.clear();
    for (key_request& k : std::exchange(g.waiting, {}))
        channel_.answer(std::move(k.asked), region_status::none);
}

// --- what the peer asks for ----------------------------------------------------------------------

void region_grants::refuse(request r, wire::region_refused const& why) {
    refusal_.set(region_refusal{{why.why, boost::system::system_category()}, why.limit});
    channel_.answer(std::move(r), region_status::refused, as_vector(wire::encode(why)));
}

void region_grants::on_find(request r) {
    error_code ec;
    auto const asked = wire::decode_find(r.bytes(), ec);
    if (ec) return channel_.violated();
    if (asked.version != wire::region_version)
        return channel_.answer(std::move(r), region_status::other_version);
    offer_ptr const what = offers_.is_valid() ? offers_.core_->find(asked.name) : nullptr;
    if (what == nullptr) return channel_.answer(std::move(r), region_status::none);
    wire::region_found found;
    if (auto const refused = grant_once(what, 0, found); refused.why != 0)
        return refuse(std::move(r), refused);
    channel_.answer(std::move(r), region_status::found, wire::encode(found));
}

wire::region_refused region_grants::grant_once(
    offer_ptr const& what, std::size_t head_bytes, wire::region_found& found
) {
    if (withdrawing_.contains(what->number)) return {EBUSY, {}};
    grant* const g = grant_of(what);
    if (g == nullptr) return {E2BIG, {}};
    std::size_t const before = head_bytes + wire::found_bytes(g->map.ranges(), 0);
    std::uint32_t const most =
        keys_in(channel_.channel().small_bytes_max() - before, g->map.pieces());
    wire::region_refused refused;
    found = {what->number, what->rights, g->map.piece_bytes(), {}, {}};
    // Blocks of a pool are registered here, so that an allocation fails if that does.
    bool const is_later = has_helpers() && !what->is_block && !g->pieces.empty();
    found.keys = is_later ? known_keys(*g, 0, most) : register_pieces(*g, 0, most, refused);
    if (g->founds == UINT32_MAX) refused.why = EOVERFLOW;
    if (refused.why != 0) {
        if (g->founds == 0) end(grants_.find(what->number));
        return refused;
    }
    ++g->founds;
    for (std::size_t i = 0; i < g->map.ranges(); ++i)
        found.range_bytes.push_back(g->map.range_bytes(i));
    return {};
}

void region_grants::on_keys(request r) {
    error_code ec;
    auto const asked = wire::decode_keys(r.bytes(), ec);
    if (ec) return channel_.violated();
    auto const found = grants_.find(asked.number);
    // Withdrawn meanwhile. The peer's operation that needs the key must end before it confirms.
    if (found == grants_.end() || withdrawing_.contains(asked.number))
        return channel_.answer(std::move(r), region_status::none);
    grant& g = found->second;
    bool const is_inside =
        asked.first < g.map.pieces() && asked.count <= g.map.pieces() - asked.first;
    if (!is_inside) return channel_.violated();
    std::uint32_t const count = keys_in(channel_.channel().small_bytes_max(), asked.count);
    if (has_helpers() && !g.pieces.empty()) {
        std::uint32_t const at_once = std::min(count, options().registrations_max);
        g.waiting.push_back({std::move(r), asked.first, at_once});
        answer_waiting(g);
        return start_registrations(g);
    }
    wire::region_refused refused;
    auto const keys = register_pieces(g, asked.first, count, refused);
    if (refused.why != 0) return refuse(std::move(r), refused);
    channel_.answer(std::move(r), region_status::found, wire::encode(keys));
}

void region_grants::on_dropped(request const& r) {
    error_code ec;
    auto const dropped = wire::decode_dropped(r.bytes(), ec);
    if (ec) return channel_.violated();
    auto const found = grants_.find(dropped.number);
    // Withdrawn meanwhile.
    if (found == grants_.end()) return;
    grant& g = found->second;
    if (dropped.founds > g.founds) return channel_.violated();
    g.founds -= dropped.founds;
    if (g.founds == 0) end(found);
}

void region_grants::withdraw(offer_ptr const& what, std::string const& name) {
    // A peer that finishes has sent its last request, and may still use what it has.
    if (!channel_.has_begun() || channel_.has_ended()) return;
    if (!name.empty()) channel_.changes().withdrawn(name);
    auto const known = grants_.find(what->number);
    if (known == grants_.end() || !withdrawing_.insert(what->number).second) return;
    refuse_keys(known->second);
    channel_.ask_peer(
        region_operation::withdraw,
        wire::encode_number(what->number),
        [this, number = what->number](error_code ec, reply const& r) {
            on_released(number, ec, r);
        },
        options().withdraw_timeout
    );
}

void region_grants::take_away(offer_ptr const& what, std::shared_ptr<void> until) {
    if (auto const known = grants_.find(what->number); known != grants_.end())
        known->second.taken_away.push_back(std::move(until));
    withdraw(what, {});
}

void region_grants::on_released(std::uint64_t number, error_code ec, reply const& r) {
    if (channel_.has_ended()) return;
    if (!ec) withdrawing_.erase(number);
    if (!ec && r.status() == static_cast<std::uint32_t>(region_status::found)) {
        auto const found = grants_.find(number);
        if (found != grants_.end()) end(found);
        return;
    }
    // This side finishes: the connection ends, and with it the grant.
    if (ec == errc::operation_in_progress) return;
    // The peer may use the key as long as it is connected.
    if (!ec) return channel_.violated();
    // A peer that does not answer in time, or has gone.
    bool const is_late = ec == channel_errc::request_timed_out;
    channel_.fail_with(
        is_late ? make_error_code(errc::timed_out) : ec,
        is_late ? close_reason::timed_out : close_reason::open
    );
}

void region_grants::end(grant_map::iterator which) {
    for (memory_region const& piece : which->second.pieces) {
        if (!piece.is_open()) continue;
        --counted_.registrations;
        counted_.registered_bytes -= piece.size();
    }
    refuse_keys(which->second);
    --counted_.granted;
    auto const last = grants_.extract(which);
    grant& g = last.mapped();
    if (g.window == nullptr) return;
    // It exists until its binding has completed.
    --counted_.windows;
    g.window->taken_away = std::move(g.taken_away);
}

void region_grants::end(std::uint64_t number) {
    if (auto const known = grants_.find(number); known != grants_.end()) end(known);
}

void region_grants::end_all() {
    while (!grants_.empty()) end(grants_.begin());
}

}  // namespace rcverbs::detail
