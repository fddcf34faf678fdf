// Frames between processes of a network.
#include <variant>
#include <vector>

#include "../../lib/fabric/src/frame.hpp"
#include "fuzz/targets.hpp"

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
