// early_numbers.hpp — what was taken back while questions were open whose answers may still give it.
//
// An answer may be delivered after a later message that takes back what it gives. A number is kept
// until every question that was open when it came has been answered, and no longer.
//
// No I/O, no clock, one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace rcverbs::machines {

class early_numbers {
public:
    /// A question is asked; the result names it.
    std::uint64_t open() {
        open_.push_back(last_ + 1);
        return ++last_;
    }
    /// It was answered, or never will be.
    void close(std::uint64_t question) noexcept {
        auto const found = std::ranges::lower_bound(open_, question);
        if (found != open_.end() && *found == question) open_.erase(found);
        while (!numbers_.empty() && (open_.empty() || numbers_.front().last < open_.front())) {
            if (!numbers_.front().is_own) --of_peer_;
            numbers_.pop_front();
        }
    }
    /// The peer has taken the number back.
    void add(std::uint64_t number) { add(number, false); }
    /// This side has given the number back.
    void add_own(std::uint64_t number) { add(number, true); }
    /// True if the number was taken back after this question was asked.
    bool contains(std::uint64_t number, std::uint64_t question) const noexcept {
        return std::ranges::any_of(numbers_, [&](entry const& e) {
            return e.number == number && question <= e.last;
        });
    }
    /// Those of the peer that are kept, also repeated ones: what it can make grow.
    std::size_t size() const noexcept { return of_peer_; }

private:
    struct entry {
        std::uint64_t number;
        std::uint64_t last;  // the youngest question that was open
        bool is_own;
    };
    void add(std::uint64_t number, bool is_own) {
        if (open_.empty()) return;
        numbers_.push_back({number, last_, is_own});
        if (!is_own) ++of_peer_;
    }

    std::uint64_t last_ = 0;
    std::size_t of_peer_ = 0;
    std::vector<std::uint64_t> open_;  // in order
    std::deque<entry> numbers_;  // in the order in which they came
};

}  // namespace rcverbs::machines
