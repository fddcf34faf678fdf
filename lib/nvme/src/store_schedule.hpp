// store_schedule.hpp — in which order the requests of a store are carried out.
//
// Hosts have turns: one job of each, and within a host the one that came first. What takes long is done
// in pieces, and comes back after each, behind the other jobs of its host. Only some of these run at a
// time, so that something is left for the others. No I/O and no memory of its own; not safe from several
// threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace rcverbs::nvme::detail {

/// Jobs in order, linked through Job::next.
template <class Job>
class job_list {
public:
    bool is_empty() const noexcept { return first_ == nullptr; }
    void push(Job& j) noexcept {
        j.next = nullptr;
        (first_ == nullptr ? first_ : last_->next) = &j;
        last_ = &j;
    }
    Job& pop() noexcept {
        Job& j = *first_;
        first_ = std::exchange(j.next, nullptr);
        return j;
    }
    void append(job_list& other) noexcept {
        while (!other.is_empty()) push(other.pop());
    }

private:
    Job* first_ = nullptr;
    Job* last_ = nullptr;
};

/// The most bytes that one piece of a long job zeroes.
inline constexpr std::uint64_t long_piece_bytes = 1U << 20;

/// The size of the next piece of a long job: to the next multiple of long_piece_bytes at most.
constexpr std::uint64_t piece_bytes(std::uint64_t offset, std::uint64_t left) noexcept {
    return std::min(left, long_piece_bytes - offset % long_piece_bytes);
}

/// A job has `next`, and these.
template <class Job>
struct scheduled {
    std::uint64_t host = 0;
    bool is_long = false;
    /// The schedule's, of the first waiting job of a host: the last one, and the first one of the host
    /// whose turn is next.
    Job* last_of_host = nullptr;
    Job* next_host = nullptr;
};

template <class Job>
class store_schedule {
public:
    /// @param long_max  How many long jobs run at a time; 1 at least.
    explicit store_schedule(unsigned long_max) noexcept : long_max_{long_max} {}

    bool is_empty() const noexcept { return turns_ == nullptr; }

    /// Adds a job behind the others of its host.
    void push(Job& j) noexcept {
        j.next = nullptr;
        for (Job* first = turns_; first != nullptr; first = first->next_host) {
            if (first->host != j.host) continue;
            first->last_of_host->next = &j;
            first->last_of_host = &j;
            return;
        }
        j.last_of_host = &j;
        add_turn(j);
    }

    /// Takes the job whose turn it is; null if there is none, or only long ones that must wait.
    Job* take() noexcept {
        Job* const j = take_first(long_under_way_ < long_max_);
        if (j != nullptr && j->is_long) ++long_under_way_;
        return j;
    }
    /// Takes a job that is not to be carried out; null if there is none.
    Job* remove() noexcept { return take_first(true); }

    /// A job that was taken, or a piece of it, has been carried out.
    void on_carried_out(Job const& j) noexcept {
        if (j.is_long) --long_under_way_;
    }

private:
    Job* take_first(bool may_be_long) noexcept {
        Job* before = nullptr;
        for (Job* j = turns_; j != nullptr; before = j, j = j->next_host) {
            if (j->is_long && !may_be_long) continue;
            (before == nullptr ? turns_ : before->next_host) = j->next_host;
            if (last_turn_ == j) last_turn_ = before;
            if (Job* const behind = std::exchange(j->next, nullptr)) {
                behind->last_of_host = j->last_of_host;
                add_turn(*behind);
            }
            return j;
        }
        return nullptr;
    }
    void add_turn(Job& first) noexcept {
        first.next_host = nullptr;
        (turns_ == nullptr ? turns_ : last_turn_->next_host) = &first;
        last_turn_ = &first;
    }

    unsigned const long_max_;
    unsigned long_under_way_ = 0;
    Job* turns_ = nullptr;
    Job* last_turn_ = nullptr;
};

}  // namespace rcverbs::nvme::detail
