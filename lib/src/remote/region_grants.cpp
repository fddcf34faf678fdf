// What the peer of a region channel has of this side's regions.
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

region_core::grant* region_core::grant_of(offer_ptr const& what) {
    auto const known = grants_.find(what->number);
    if (known != grants_.end()) return &known->second;
    std::array<std::uint64_t, region_offers::ranges_max> sizes{};
    std::ranges::transform(what->memory, sizes.begin(), [](auto const& r) { return r.size(); });
    std::uint64_t const most = below().domain().limits().region_bytes_max;
    machines::piece_map const map{
        has_window_key(*what) ? sizes[0] : std::min(offers_.core_->options().piece_bytes, most),
        std::span{sizes}.first(what->memory.size())};
    if (!map.is_valid()) return nullptr;
    grant& made = grants_.try_emplace(what->number).first->second;
    made.what = what;
    made.map = map;
    if (!has_window_key(*what)) made.pieces.resize(map.pieces());
    ++granted_count_;
    return &made;
}

bool region_core::has_window_key(offered_region const& what) {
    return what.around != nullptr && what.around->domain == below().domain();
}

std::vector<wire::piece_key> region_core::open_window(grant& g, error_code& ec) {
    if (g.window == nullptr) {
        auto const made = std::make_shared<opening>(opening{g.what, window{below(), ec}});
        if (ec) return {};
        // The answer is sent on the same queue pair, so the binding precedes every access. Until it
        // is complete the window must exist, and with it the memory is in use.
        made->window.async_bind(
            g.what->around->region.slice(g.what->memory[0]),
            g.what->rights,
            ordered([made](error_code const&, remote_region const&) {})
        );
        g.window = made;
        ++windows_;
    }
    remote_region const r = g.window->window.remote();
    return {{r.address(), r.key()}};
}

// Registers pieces for as long as that does not delay others, at least one; an error only if there is
// none.
std::vector<wire::piece_key> region_core::register_pieces(
    grant& g, std::uint32_t first, std::uint32_t count, error_code& ec
) {
    if (g.pieces.empty()) return open_window(g, ec);
    constexpr std::chrono::milliseconds long_enough{5};
    auto const until = std::chrono::steady_clock::now() + long_enough;
    std::vector<wire::piece_key> keys;
    for (std::uint32_t i = first; i < first + count; ++i) {
        memory_region& piece = g.pieces[i];
        if (!piece.is_open()) {
            auto const at = g.map.in_range(i);
            std::span<std::byte> const range = g.what->memory[at.piece];
            piece = memory_region{
                below().domain(),
                range.subspan(
                    static_cast<std::size_t>(at.offset), static_cast<std::size_t>(at.size)
                ),
                g.what->rights,
                ec};
            if (ec) break;
            ++registrations_;
            registered_bytes_ += at.size;
        }
        remote_region const r = piece.remote();
        keys.push_back({r.address(), r.key()});
        if (std::chrono::steady_clock::now() > until) break;
    }
    if (!keys.empty()) ec.clear();
    return keys;
}

void region_core::answer_find(request r) {
    error_code ec;
    auto const asked = wire::decode_find(r.bytes(), ec);
    if (ec) return violated();
    if (asked.version != wire::region_version)
        return answer(std::move(r), region_status::other_version);
    offer_ptr const what = offers_.is_valid() ? offers_.core_->find(asked.name) : nullptr;
    if (what == nullptr) return answer(std::move(r), region_status::none);
    wire::region_found found;
    if (int const why = grant_once(what, 0, found); why != 0)
        return answer(std::move(r), region_status::refused, as_vector(wire::encode_errno(why)));
    answer(std::move(r), region_status::found, wire::encode(found));
}

int region_core::grant_once(
    offer_ptr const& what, std::size_t head_bytes, wire::region_found& found
) {
    grant* const g = grant_of(what);
    if (g == nullptr) return E2BIG;
    if (g->is_withdrawing) return EBUSY;
    std::size_t const before = head_bytes + wire::found_bytes(g->map.ranges(), 0);
    error_code ec;
    found = {
        what->number,
        what->rights,
        g->map.piece_bytes(),
        {},
        register_pieces(*g, 0, keys_in(channel_.small_bytes_max() - before, g->map.pieces()), ec)};
    if (ec || g->founds == UINT32_MAX) {
        if (g->founds == 0) end_grant(grants_.find(what->number));
        return ec ? errno_of(ec) : EOVERFLOW;
    }
    ++g->founds;
    for (std::size_t i = 0; i < g->map.ranges(); ++i)
        found.range_bytes.push_back(g->map.range_bytes(i));
    return 0;
}

void region_core::answer_keys(request r) {
    error_code ec;
    auto const asked = wire::decode_keys(r.bytes(), ec);
    if (ec) return violated();
    auto const found = grants_.find(asked.number);
    // Withdrawn meanwhile.
    if (found == grants_.end()) return answer(std::move(r), region_status::none);
    grant& g = found->second;
    bool const is_inside =
        asked.first < g.map.pieces() && asked.count <= g.map.pieces() - asked.first;
    if (!is_inside) return violated();
    std::uint32_t const count = keys_in(channel_.small_bytes_max(), asked.count);
    auto const keys = register_pieces(g, asked.first, count, ec);
    if (ec)
        return answer(
            std::move(r), region_status::refused, as_vector(wire::encode_errno(errno_of(ec)))
        );
    answer(std::move(r), region_status::found, wire::encode(keys));
}

void region_core::on_dropped(request const& r) {
    error_code ec;
    auto const dropped = wire::decode_dropped(r.bytes(), ec);
    if (ec) return violated();
    auto const found = grants_.find(dropped.number);
    // Withdrawn meanwhile.
    if (found == grants_.end()) return;
    grant& g = found->second;
    if (dropped.founds > g.founds) return violated();
    g.founds -= dropped.founds;
    if (g.founds == 0) end_grant(found);
}

void region_core::on_offered(std::string const& name) {
    if (is_pumping_ && !end_) notify(region_operation::offered, std::as_bytes(std::span{name}));
}

void region_core::withdraw(offer_ptr const& what, std::string const& name) {
    // A peer that finishes has sent its last request, and may still use what it has.
    if (!is_pumping_ || has_ended_) return;
    if (!name.empty()) notify(region_operation::withdrawn, std::as_bytes(std::span{name}));
    auto const known = grants_.find(what->number);
    if (known == grants_.end() || std::exchange(known->second.is_withdrawing, true)) return;
    ask_peer(
        region_operation::withdraw,
        wire::encode_number(what->number),
        [this, number = what->number](error_code ec, reply const& r) {
            on_released(number, ec, r);
        },
        request_options{offers_.core_->options().withdraw_timeout}
    );
}

void region_core::on_released(std::uint64_t number, error_code ec, reply const& r) {
    auto const found = grants_.find(number);
    if (found == grants_.end()) return;
    if (!ec && r.status() == static_cast<std::uint32_t>(region_status::found))
        return end_grant(found);
    // This side finishes: the connection ends, and with it the grant.
    if (ec == errc::operation_in_progress) return;
    // The peer may use the key as long as it is connected.
    if (!ec) return violated();
    fail_with(ec, close_reason::open);
}

void region_core::end_grant(std::map<std::uint64_t, grant>::iterator which) {
    for (memory_region const& piece : which->second.pieces) {
        if (!piece.is_open()) continue;
        --registrations_;
        registered_bytes_ -= piece.size();
    }
    if (which->second.window != nullptr) --windows_;
    --granted_count_;
    auto const last = grants_.extract(which);
}

}  // namespace rcverbs::detail
