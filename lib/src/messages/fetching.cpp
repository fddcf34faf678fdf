#include "messages/fetching.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rcverbs::detail {

std::vector<std::vector<mutable_slice>> parts_of(
    slice_list const& into, wire::channel_segments const& segments
) {
    std::vector<std::vector<mutable_slice>> parts(segments.count);
    std::size_t index = 0;
    std::size_t offset = 0;
    for (std::size_t i = 0; i < segments.count; ++i) {
        std::size_t left = segments.list[i].size();
        while (left > 0) {
            plain_slice const& from = into[index];
            std::size_t const size = std::min(left, from.size - offset);
            if (size > 0) parts[i].push_back(slice_of<mutable_slice>(from).slice(offset, size));
            left -= size;
            offset += size;
            if (offset == from.size) ++index, offset = 0;
        }
    }
    return parts;
}

void copy_to(slice_list const& into, std::span<std::byte const> bytes) noexcept {
    for (plain_slice const& each : into.all()) {
        if (each.size == 0) continue;
        std::memcpy(each.data, bytes.data(), each.size);
        bytes = bytes.subspan(each.size);
    }
}

void channel_core::fetching::read() {
    std::size_t const i = next++;
    core->lower().async_read(
        segments.list[i],
        parts[i],
        core->held([self = shared_from_this()](error_code ec, std::size_t) { self->on_read(ec); })
    );
}

void channel_core::fetching::on_read(error_code ec) {
    if (!ec && next < segments.count) return read();
    if (!ec) core->on_fetched(what);
    end(ec);
}

void channel_core::fetching::end(error_code ec) {
    what.release();
    core->deliver(std::move(handler), ec);
    core->on_fetch_ended();
}

// --- those of a channel --------------------------------------------------------------------------

void channel_core::fetch(message what, mutable_slices const& into, control_handler handler) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    bool const is_right = what.core_.get() == this && into.size() == what.size_bytes_;
    // A small message is here; one that is wrong goes with the call, and is declined.
    if (!is_right || !what.is_large_) {
        if (is_right) copy_to(access::list_of(into), what.bytes());
        what.release();
        error_code const result = is_right ? error_code{} : error_code{errc::out_of_range};
        return enter([this, result](waiter& w) { deliver(std::move(w), result); }, std::move(who));
    }
    auto const f = std::make_shared<fetching>();
    f->core = self();
    f->handler = std::move(who);
    f->segments = segments_of(what);
    f->parts = parts_of(access::list_of(into), f->segments);
    f->what = std::move(what);
    enter([this, f] {
        if (fetches_.begin(f)) start_fetch(f);
    });
}

// The message has its receive, which changes no more.
wire::channel_segments channel_core::segments_of(message const& what) const {
    std::span<std::byte const> const bytes = what.is_detached_ ? what.own_ : whole(what.slot_);
    // Checked when it arrived; the peer has no access to it.
    error_code ignored;
    auto const size = wire::segments_bytes(wire::decode_channel_head(bytes, ignored));
    return wire::decode_segments(bytes.first(wire::channel_head_bytes + size), ignored);
}

void channel_core::start_fetch(std::shared_ptr<fetching> const& f) {
    if (machine_.begin_fetch(kept_of(f->what))) return f->read();
    f->end(channel_errc::message_withdrawn);
}

// Gives the receive back, and answers the sender.
void channel_core::on_fetched(message& what) {
    if (is_open()) machine_.end_fetch(kept_of(what), *this);
    what.core_.reset();
}

void channel_core::on_fetch_ended() {
    if (auto const next = fetches_.end()) start_fetch(next);
}

}  // namespace rcverbs::detail
