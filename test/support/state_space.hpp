// state_space.hpp — visits every state that a model can reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace test {

using fingerprint = std::pair<std::uint64_t, std::uint64_t>;

/// 128 bits of a state: two states are taken for the same if these are equal.
inline fingerprint fingerprint_of(std::vector<std::uint64_t> const& all) noexcept {
    std::uint64_t a = 0x9e3779b97f4a7c15;
    std::uint64_t b = 0xc2b2ae3d27d4eb4f;
    for (std::uint64_t const x : all) {
        a = (a ^ x) * 0xff51afd7ed558ccd;
        a ^= a >> 33U;
        b = (b + x) * 0xc4ceb9fe1a85ec53;
        b ^= b >> 29U;
    }
    return {a, b};
}

/// A model has `append_to(std::vector<std::uint64_t>&)`, its state as numbers;
/// `for_each_step(visit)`, which calls `visit(step)` for each step that can come next, a function of
/// the model; `check()` after a step, and `check_end()` where no step can come; `wrong`, the first
/// fault. Returns the number of states. The first fault ends it.
template <class Model>
std::size_t explore(Model const& first, std::string& wrong) {
    struct hash {
        std::size_t operator()(fingerprint const& f) const noexcept { return f.first; }
    };
    auto const fingerprint_of_model = [](Model const& m) {
        std::vector<std::uint64_t> all;
        m.append_to(all);
        return fingerprint_of(all);
    };
    std::unordered_set<fingerprint, hash> seen;
    std::vector<Model> open{first};
    seen.insert(fingerprint_of_model(first));
    while (!open.empty() && wrong.empty()) {
        Model const at = std::move(open.back());
        open.pop_back();
        bool is_end = true;
        at.for_each_step([&](auto const& step) {
            is_end = false;
            Model next = at;
            step(next);
            next.check();
            if (wrong.empty()) wrong = next.wrong;
            if (seen.insert(fingerprint_of_model(next)).second) open.push_back(std::move(next));
        });
        if (is_end) {
            Model last = at;
            last.check_end();
            if (wrong.empty()) wrong = last.wrong;
        }
    }
    return seen.size();
}

}  // namespace test
