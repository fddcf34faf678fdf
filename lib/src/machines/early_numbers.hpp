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
#include <utility>

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
        while (!order_.empty() && (open_.empty() || order_.front().first < *open_.begin())) {
            auto const [last, number] = order_.front();
            order_.pop_front();
            // It may have been taken back again since.
            auto const found = numbers_.find(number);
            if (found != numbers_.end() && found->second == last) numbers_.erase(found);
        }
    }
    /// The number was taken back.
    void add(std::uint64_t number) {
        if (open_.empty()) return;
        order_.emplace_back(last_, number);
        numbers_.insert_or_assign(number, last_);
    }
    /// True if the number was taken back after this question was asked.
    bool contains(std::uint64_t number, std::uint64_t question) const noexcept {
        auto const found = numbers_.find(number);
        return found != numbers_.end() && question <= found->second;
    }
    std::size_t size() const noexcept { return order_.size(); }

private:
    std::set<std::uint64_t> open_;
    std::uint64_t last_ = 0;
    // With the youngest question that was open.
    std::deque<std::pair<std::uint64_t, std::uint64_t>> order_;
    std::map<std::uint64_t, std::uint64_t> numbers_;
};

}  // namespace rcverbs::machines
