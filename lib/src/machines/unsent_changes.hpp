// unsent_changes.hpp — changes of names that a peer has not been told of yet.
//
// A name appears (offered) and goes (withdrawn). What the peer never heard of is taken back before it is
// sent, so what waits for a peer that takes nothing has the size of the names that there are and of those
// it knows, however often they change.
//
// No I/O, no clock, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace rcverbs::machines {

class unsent_changes {
public:
    struct change {
        std::string name;
        bool is_offered = false;
    };

    void offered(std::string const& name) { of(name).is_offered = true; }
    void withdrawn(std::string const& name) {
        names& n = of(name);
        // The peer has not heard of it, except of one before it.
        if (!std::exchange(n.is_offered, false)) n.is_withdrawn = true;
        if (!n.is_withdrawn) erase(name);
    }

    bool empty() const noexcept { return order_.empty(); }
    /// Names of which something is unsent.
    std::size_t size() const noexcept { return order_.size(); }
    /// The next one, of the name that has waited longest. REQUIRES: not empty.
    change take() {
        std::string name = order_.begin()->second;
        names& n = names_.at(name);
        bool const is_offered = !std::exchange(n.is_withdrawn, false);
        if (is_offered || !n.is_offered) erase(name);
        return {std::move(name), is_offered};
    }

private:
    // First withdrawn, then offered again, if both.
    struct names {
        std::uint64_t since = 0;
        bool is_withdrawn = false;
        bool is_offered = false;
    };
    names& of(std::string const& name) {
        auto const [at, is_new] = names_.try_emplace(name);
        if (is_new) order_.emplace(at->second.since = ++last_, name);
        return at->second;
    }
    void erase(std::string const& name) {
        auto const at = names_.find(name);
        order_.erase(at->second.since);
        names_.erase(at);
    }

    std::map<std::string, names> names_;
    std::map<std::uint64_t, std::string> order_;
    std::uint64_t last_ = 0;
};

}  // namespace rcverbs::machines
