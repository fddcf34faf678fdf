#include "fuzz/targets.hpp"
#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/exclusions.hpp"
#include "rdma-copy/extended_attributes.hpp"

#include <algorithm>
#include <vector>

namespace fuzz {

// The first byte is the tag.
void copy_message(bytes in) {
    if (in.empty()) return;
    auto const tag = std::to_integer<std::uint64_t>(in.front());
    auto const m = copy::decode(tag, in.subspan(1));
    if (!m) return;
    must(m->index() == tag);
    must(std::ranges::equal(copy::encode(*m), in.subspan(1)));
    bool const is_whole = std::holds_alternative<copy::whole_file>(*m);
    must(in.size() - 1 <= copy::message_bytes_max + (is_whole ? copy::whole_bytes_max : 0));
    if (auto const* const x = std::get_if<copy::exclude>(&*m)) {
        copy::exclusions some;
        static_cast<void>(some.add(x->pattern) && some.has("a/b c.o", false));
    }
    if (auto const* const a = std::get_if<copy::attribute>(&*m)) {
        copy::extended_attributes all;
        must(copy::is_attribute_name(a->name) && all.add(*a));
        // As often as there is room: a value of many parts, or the same once more, which is none.
        constexpr int parts_most = 200;
        int parts = 1;
        while (parts < parts_most && all.add(*a)) ++parts;
        must(parts == 1 || a->continues);
        must(all.bytes() <= copy::extended_attributes::bytes_max && parts < parts_most);
        must(all.values().at(a->name).size() <= copy::extended_attributes::value_bytes_max);
    }
    if (auto const* const e = std::get_if<copy::entry>(&*m)) {
        must(e->mode <= 07777 && e->nanoseconds <= copy::nanoseconds_max);
        must(e->name.size() <= copy::text_bytes_max && e->target.size() <= copy::text_bytes_max);
        must(e->name.find('/') == std::string::npos && e->name != "..");
        static_cast<void>(copy::is_reserved(e->name));
    }
}

}  // namespace fuzz
