// early_numbers.hpp — what was taken back while questions were open whose answers may still give it.
//
// An answer may be delivered after a later message that takes back what it gives. A number is kept
// until every question that was open when it came has been answered, and no longer.
//
// No I/O, no clock, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>

namespace rcverbs::machines {

class early_numbers {
public:
    /// A question is asked; the result names it.
    std::uint64_t open() {
        open_.insert(last_ + 1);
        return ++last_;
    }
    /// It was answered, or never will be.
    void close(std::uint64_t question) noexcept {
        open_.erase(question);
        while (!order_.empty() && (open_.empty() || order_.front().last < *open_.begin())) {
            entry const first = order_.front();
            order_.pop_front();
            if (!first.is_own) --of_peer_;
            // It may have been taken back again since.
            auto const found = numbers_.find(first.number);
            if (found != numbers_.end() && found->second == first.last) numbers_.erase(found);
        }
    }
    /// The peer has taken the number back.
    void add(std::uint64_t number) { add(number, false); }
    /// This side has given the number back.
    void add_own(std::uint64_t number) { add(number, true); }
    /// True if the number was taken back after this question was asked.
    bool contains(std::uint64_t number, std::uint64_t question) const noexcept {
        auto const found = numbers_.find(number);
        return found != numbers_.end() && question <= found->second;
    }
    /// Those of the peer that are kept, also repeated ones: what it can make grow.
    std::size_t size() const noexcept { return of_peer_; }

private:
    struct entry {
        std::uint64_t last;  // the youngest question that was open
        std::uint64_t number;
        bool is_own;
    };
    void add(std::uint64_t number, bool is_own) {
        if (open_.empty()) return;
        order_.push_back({last_, number, is_own});
        if (!is_own) ++of_peer_;
        numbers_.insert_or_assign(number, last_);
    }

    std::set<std::uint64_t> open_;
    std::uint64_t last_ = 0;
    std::deque<entry> order_;
    std::size_t of_peer_ = 0;
    std::map<std::uint64_t, std::uint64_t> numbers_;
};

}  // namespace rcverbs::machines
