#include "messages/outgoing_message.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <rcverbs/experimental/protocol.hpp>

namespace rcverbs::detail {

namespace {

std::size_t copy(slice_list const& from, std::span<std::byte> to) noexcept {
    std::size_t size = 0;
    for (plain_slice const& each : from.all()) {
        if (each.size == 0) continue;
        std::memcpy(to.data() + size, each.data, each.size);
        size += each.size;
    }
    return size;
}

// A large message is read from the program's memory by the peer.
[[gnu::noinline]] std::unique_ptr<outgoing_message::exposed> expose_body(
    connection& over, body_source const& body, error_code& refused
) {
    auto m = std::make_unique<outgoing_message::exposed>();
    if (!body.is_registered()) {
        m->registered =
            const_memory_region{over.domain(), body.bytes(), access_flags::remote_read, refused};
        if (!refused) m->segments.push_back(m->registered.remote());
        return m;
    }
    for (plain_slice const& each : body.list().all()) {
        if (each.size == 0 || refused) continue;
        m->segments.push_back(
            protocol::expose(slice_of<const_slice>(each), access_flags::remote_read, over, refused)
        );
    }
    if (m->segments.size() > wire::channel_segments_max) refused = errc::too_many_segments;
    return m;
}

}  // namespace

void written_body::add(mutable_slice const& message) {
    std::uint64_t offset = 0;
    for (plain_slice const& each : source.all()) {
        if (each.size == 0) continue;
        all.add(op::write(slice_of<const_slice>(each), target.slice(offset, each.size)));
        offset += each.size;
    }
    all.add(op::send(message));
}

std::size_t outgoing_message::encode(wire::channel_head& head, std::span<std::byte> place) const {
    std::size_t size = wire::channel_head_bytes;
    if (is_large) {
        head.count = static_cast<std::uint32_t>(memory->segments.size());
        wire::encode_segments(memory->segments, place);
        size += wire::segments_bytes(head);
    } else {
        head.count = static_cast<std::uint32_t>(prefix.size_bytes + size_bytes);
    }
    if (prefix.size_bytes > 0)
        std::memcpy(place.subspan(size).data(), prefix.bytes().data(), prefix.size_bytes);
    size += prefix.size_bytes;
    if (!is_large) size += copy(source, place.subspan(size));
    return size - wire::channel_head_bytes;
}

outgoing_message compose(
    connection& over,
    body_source const& body,
    wire::request_prefix const& before,
    bool is_large,
    error_code& refused
) {
    outgoing_message m;
    m.prefix = before;
    m.size_bytes = body.size();
    m.is_large = is_large;
    if (body.size() > outgoing_message::bytes_max) refused = errc::message_too_large;
    else if (is_large) m.memory = expose_body(over, body, refused);
    else m.source = body.list();
    return m;
}

outgoing_message compose_written(
    connection& over, body_source const& body, remote_region const& target, error_code& refused
) {
    outgoing_message m;
    m.memory = std::make_unique<outgoing_message::exposed>();
    slice_list source = body.list();
    if (!body.is_registered()) {
        m.memory->registered =
            const_memory_region{over.domain(), body.bytes(), access_flags::local_read, refused};
        if (refused) return {};
        source = slice_list{access::plain_of(m.memory->registered.slice())};
    }
    m.prefix.append(std::uint64_t{body.size()});
    m.memory->writes = std::shared_ptr<written_body>{
        new written_body{source, target, batch{over, source.count() + 1}}};
    // An answer with bad memory is refused, and does not end the channel.
    for (plain_slice const& each : source.all()) {
        if (each.size == 0 || refused) continue;
        static_cast<void>(
            protocol::expose(slice_of<const_slice>(each), access_flags::local_read, over, refused)
        );
    }
    return m;
}

}  // namespace rcverbs::detail
