// Frames between processes of a network.
#include <variant>
#include <vector>

#include "../../lib/fabric/src/frame.hpp"
#include "fuzz/targets.hpp"
#include "rcverbs-fabric/messages.hpp"

namespace fabric = rcverbs::fabric::detail;

void fuzz::fabric_frame(bytes in) {
    while (!in.empty()) {
        auto const next = fabric::take_frame(in);
        if (!next) return;
        // What was accepted is encoded and accepted again, and then does not change any more.
        auto const encoded = [](fabric::frame const& f) {
            std::vector<std::byte> out;
            if (auto const* const p = std::get_if<fabric::packet>(&f)) append(out, *p);
            if (auto const* const m = std::get_if<fabric::cm_message>(&f)) append(out, *m);
            if (auto const* const h = std::get_if<fabric::hello>(&f)) append(out, *h);
            return out;
        };
        auto const once = encoded(*next);
        if (once.empty()) continue;
        std::span<std::byte const> left{once};
        auto const again = fabric::take_frame(left);
        must(again.has_value() && left.empty());
        must(encoded(*again) == once);
    }
}

void fuzz::network_state(bytes in) {
    using rcverbs::fabric::network_state;
    auto const state = network_state::decode({reinterpret_cast<char const*>(in.data()), in.size()});
    if (!state) return;
    for (auto const& [node, slot] : state->places) must(state->nodes.contains(node));
    for (auto const& port : state->ports) must(state->nodes.contains(port.node));
    auto const again = network_state::decode(state->encode());
    must(again.has_value() && *again == *state);
}
