#include "fuzz/targets.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <rcverbs/endpoint.hpp>

#include "machines/exchange_machine.hpp"
#include "machines/piece_map.hpp"
#include "machines/ring_machine.hpp"
#include "wire/channel_hello.hpp"
#include "wire/channel_message.hpp"
#include "wire/hello.hpp"
#include "wire/message.hpp"
#include "wire/region_message.hpp"
#include "wire/request_tag.hpp"
#include "wire/ring_message.hpp"

namespace fuzz {

using namespace rcverbs;

void hello(bytes in) {
    error_code ec;
    wire::hello const theirs = wire::decode_hello(in, ec);
    must(!ec || ec == session_errc::foreign_peer);
    wire::hello ours;
    ours.mode = 1;
    wire::verdict const v = wire::judge_request(ours, theirs);
    if (v == wire::verdict::welcome) {
        must(
            theirs.version == ours.version && theirs.mode == ours.mode &&
            theirs.answer == wire::verdict::welcome
        );
        must(
            theirs.is_padded && theirs.receives >= wire::receives_min &&
            theirs.message_bytes_max >= wire::message_bytes_min
        );
    }
    must(wire::check_acceptance(ours, theirs).failed() == (v != wire::verdict::welcome));
    must(wire::check_refusal(theirs).failed());
    // Every verdict that can arrive maps to an error.
    if (theirs.answer != wire::verdict::welcome)
        must(static_cast<bool>(wire::to_error<session_errc>(theirs.answer)));
    if (!ec) {
        auto const again = wire::encode(theirs);
        // Except for the reserved bytes, which are not checked.
        must(std::ranges::equal(std::span{again}.first(18), in.first(18)));
    }
}

void message(bytes in) {
    error_code ec;
    wire::message const m = wire::decode(in, ec);
    must(!ec || ec == session_errc::malformed_message || ec == session_errc::version_mismatch);
    if (ec) return;
    if (auto const* const regions = std::get_if<wire::regions_message>(&m)) {
        must(regions->regions.size() <= wire::regions_max);
        for (wire::region_descriptor const& d : regions->regions) {
            must(d.name.size() <= wire::region_name_bytes_max);
            must(d.region.address() + d.region.size() >= d.region.address());
            // The address range must be valid for the slices that follow.
            if (d.region.size() > 0) must(d.region.slice(d.region.size() - 1, 1).size() == 1);
        }
    }
    std::array<std::byte, wire::message_bytes_max> out;
    std::size_t const size = wire::encode(m, out, ec);
    must(!ec && std::ranges::equal(std::span{out}.first(size), in));
}

// Each step is one byte that selects the event; for a message from the peer, one byte for its
// length and the message follow.
void exchange(bytes in) {
    using machine = machines::exchange_machine;
    machine m;
    int sent_regions = 0;
    int sent_done = 0;
    int delivered_regions = 0;
    int delivered_done = 0;
    while (!in.empty()) {
        auto const what = std::to_integer<unsigned>(in.front()) % 3;
        in = in.subspan(1);
        machine::action then{};
        if (what == 0) {
            then = m.resume(machine::event::publish);
        } else if (what == 1) {
            then = m.resume(machine::event::finish);
        } else {
            std::size_t const size =
                in.empty() ? 0
                           : std::min<std::size_t>(
                                 std::to_integer<std::size_t>(in.front()), in.size() - 1
                             );
            bytes const encoded = in.empty() ? in : in.subspan(1, size);
            in = in.empty() ? in : in.subspan(1 + size);
            error_code ec;
            wire::message const decoded = wire::decode(encoded, ec);
            if (ec) return;  // the session ends
            bool const is_regions = std::holds_alternative<wire::regions_message>(decoded);
            then = m.resume(
                is_regions ? machine::event::regions_received : machine::event::done_received
            );
            if (then == machine::action::protocol_error) return;
        }
        sent_regions += then == machine::action::send_regions ? 1 : 0;
        sent_done += then == machine::action::send_done ? 1 : 0;
        delivered_regions += then == machine::action::deliver_regions ? 1 : 0;
        delivered_done += then == machine::action::deliver_done ? 1 : 0;
        must(sent_regions <= 1 && sent_done <= 1 && delivered_regions <= 1 && delivered_done <= 1);
        if (then == machine::action::deliver_regions) must(delivered_done == 0);
        if (then == machine::action::send_regions) must(sent_done == 0);
        must(m.is_complete() == (sent_done == 1 && delivered_done == 1));
    }
}

void channel_hello(bytes in) {
    error_code ec;
    wire::channel_hello const theirs = wire::decode_channel_hello(in, ec);
    must(!ec || ec == channel_errc::foreign_peer);
    wire::channel_hello ours;
    ours.mode = 1;
    wire::verdict const v = wire::judge_request(ours, theirs);
    must(wire::check_acceptance(ours, theirs).failed() == (v != wire::verdict::welcome));
    if (v != wire::verdict::welcome) return;
    must(theirs.mode == ours.mode && theirs.greeting.size() <= wire::channel_greeting_bytes_max);
    must(theirs.receives >= wire::channel_receives_min);
    must(theirs.slot_bytes >= wire::channel_slot_bytes_min);
    must(!theirs.identity || theirs.requests > 0);
    auto const again = wire::encode(theirs);
    if (!ec) must(again.size() <= 56 && std::ranges::equal(again, in.first(again.size())));
}

void channel_message(bytes in) {
    error_code ec;
    wire::channel_head const h = wire::decode_channel_head(in, ec);
    must(!ec || ec == channel_errc::malformed_message);
    if (ec) return;
    std::vector<std::byte> out(in.begin(), in.end());
    std::ranges::fill(std::span{out}.first(wire::channel_head_bytes), std::byte{0xaa});
    if (h.type == wire::channel_type::large) {
        std::size_t const end = wire::channel_head_bytes + wire::segments_bytes(h);
        wire::channel_segments const s = wire::decode_segments(in.first(end), ec);
        if (ec) return;
        must(s.count == h.count && s.count >= 1);
        wire::encode_segments(std::span{s.list}.first(s.count), out);
    }
    wire::encode(h, out);
    must(std::ranges::equal(out, in));
    // A request channel reads the tag.
    bool const is_large = h.type == wire::channel_type::large;
    std::size_t const segments = is_large ? wire::segments_bytes(h) : 0;
    auto const payload = in.subspan(wire::channel_head_bytes + segments);
    wire::request_sizes const sizes{is_large ? 1 : payload.size(), is_large, payload.size()};
    wire::request_tag const t = wire::decode_request_tag(h.tag, sizes, ec);
    must(ec ? ec == channel_errc::malformed_message : wire::encode(t) == h.tag);
    if (ec || !t.has_target) return;
    if (t.kind == wire::request_kind::answer) {
        must(payload.size() >= sizeof wire::decode_written(payload));
        return;
    }
    remote_region const target = wire::decode_target(payload, ec);
    must(ec || std::ranges::equal(target.encode(), payload.first(remote_region::encoded_bytes)));
}

// What a writer and a reader of a ring hear: 12 bytes each, a notice with the bytes that were written, or
// counts.
void ring_message(bytes in) {
    error_code ec;
    auto const h = wire::decode_ring_hello(in, ec);
    bool const is_ours = !ec && h.version == wire::ring_version;
    must(!is_ours || std::ranges::equal(wire::encode(h), in.first(wire::ring_hello_bytes)));
    auto const c = wire::decode_ring_counts(in, ec);
    must(ec || std::ranges::equal(wire::encode(c), in));
    machines::ring_size const size{4096, 16};
    machines::ring_reader_machine reader{size};
    machines::ring_writer_machine writer{size};
    auto const number = [&](std::size_t at, std::size_t count) {
        std::uint64_t n = 0;
        for (std::size_t i = 0; i < count; ++i)
            n = n << 8 | std::to_integer<std::uint64_t>(in[at + i]);
        return n;
    };
    for (std::size_t at = 0; at + 12 <= in.size(); at += 12) {
        auto const a =
            reader.on_notice(static_cast<std::uint32_t>(number(at, 4)), number(at + 4, 8));
        must(reader.used_bytes() <= size.bytes);
        if (a.what == machines::ring_reader_machine::event::violation) break;
        if (a.what != machines::ring_reader_machine::event::record) continue;
        must(a.offset % 8 == 0 && a.offset + 8 + a.record_bytes <= size.bytes);
        if (a.record_bytes % 2 == 0) reader.release(a.end);
        static_cast<void>(reader.due());
    }
    for (std::size_t at = 0; at + 12 <= in.size(); at += 12) {
        if (auto const where = writer.add(static_cast<std::uint32_t>(number(at, 1) * 8)))
            must(where->offset % 8 == 0 && where->offset < size.bytes);
        else static_cast<void>(writer.ask(8));
        if (!writer.hear({number(at + 1, 4), number(at + 5, 2), in[at] == in[at + 7], false}))
            break;
        must(writer.used_bytes() <= size.bytes);
    }
}

// The first byte says which body the others are.
void region_message(bytes in) {
    if (in.empty()) return;
    auto const what = std::to_integer<unsigned>(in[0]) % 11;
    bytes const body = in.subspan(1);
    error_code ec;
    auto const is_same = [&](auto const& again) { return std::ranges::equal(again, body); };
    switch (what) {
    case 0: {
        auto const f = wire::decode_find(body, ec);
        bool const is_ours = f.version == wire::region_version;
        must(ec || !is_ours || is_same(wire::encode_find(f.name)));
        break;
    }
    case 1: {
        auto const f = wire::decode_found(body, ec);
        if (ec) break;
        must(is_same(wire::encode(f)));
        machines::piece_map const map{f.piece_bytes, f.range_bytes};
        if (!map.is_valid()) break;
        // The last byte is in the last piece, and the parts of the beginning have its size.
        auto const last = map.first_part(map.size() - 1, 1);
        must(last.piece == map.pieces() - 1 && last.size == 1);
        std::uint64_t sum = 0;
        std::uint64_t const some = std::min<std::uint64_t>(map.size(), 64 * map.piece_bytes());
        map.cut(0, some, [&](machines::piece_map::part const& p) {
            must(p.size > 0 && p.size <= map.piece_bytes() && p.piece < map.pieces());
            sum += p.size;
        });
        must(sum == some);
        break;
    }
    case 6: {
        auto const a = wire::decode_allocate(body, ec);
        must(ec || a.version != wire::region_version || is_same(wire::encode(a)));
        break;
    }
    case 7: {
        auto const r = wire::decode_resume(body, ec);
        must(ec || r.version != wire::region_version || is_same(wire::encode(r)));
        break;
    }
    case 8: {
        auto const a = wire::decode_allocated(body, ec);
        must(ec || is_same(wire::encode(a)));
        break;
    }
    case 9: {
        auto const l = wire::decode_left(body, ec);
        must(ec || is_same(wire::encode(l)));
        break;
    }
    case 10: {
        auto const shared = wire::decode_share(body, ec);
        must(ec || is_same(wire::encode(shared)));
        break;
    }
    case 2: {
        auto const keys = wire::decode_piece_keys(body, body.size() / wire::region_key_bytes, ec);
        must(ec || is_same(wire::encode(keys)));
        break;
    }
    case 3: {
        auto const k = wire::decode_keys(body, ec);
        must(ec || is_same(wire::encode(k)));
        break;
    }
    case 4: {
        auto const d = wire::decode_dropped(body, ec);
        must(ec || is_same(wire::encode(d)));
        break;
    }
    default: {
        auto const number = wire::decode_number(body, ec);
        must(ec || is_same(wire::encode_number(number)));
        auto const refused = wire::decode_refused(body, ec);
        must(ec || (refused.why > 0 && is_same(wire::encode(refused))));
    }
    }
    must(!ec || ec == channel_errc::malformed_message);
}

void endpoint(bytes in) {
    std::string_view const text{
        reinterpret_cast<char const*>(in.data()), in.size()};  // bytes are characters
    try {
        rcverbs::endpoint const e{text, 7471};
        // An endpoint made from the same text must be equal.
        must(rcverbs::endpoint{e.address().to_string(), 7471} == e);
        must(!e.to_string().empty());
    } catch (boost::system::system_error const&) {}
}

}  // namespace fuzz
