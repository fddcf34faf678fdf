// nbd_schedule.hpp — which request of an NBD store goes to which connection, what is repeated after a connection is lost,
// and whether a flush can still keep its promise. No I/O; not safe from several threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "store_schedule.hpp"

namespace rcverbs::nvme::detail {

/// What a request means to others.
enum class nbd_kind : std::uint8_t { read, write, durable_write, flush };

struct nbd_request : scheduled<nbd_request> {
    nbd_request* next = nullptr;
    nbd_kind kind = nbd_kind::read;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;

    // The schedule's.
    std::uint64_t serial = 0;
    unsigned connection = 0;  // while it is there
    bool is_repeated = false;
    std::uint64_t covers = 0;  // of a flush: writes that were acknowledged before
    std::uint64_t opens = 0;  // when it was sent
    bool has_turn = false;
};

class nbd_schedule {
public:
    /// @param connections  Their number.
    /// @param under_way    How many requests a connection may have.
    nbd_schedule(unsigned connections, unsigned under_way)
        : all_(connections),
          under_way_max_{under_way} {}

    /// A request of a host, or the next piece of one.
    void add(nbd_request& r) {
        r.serial = ++serials_;
        r.is_repeated = false;
        waiting_.push(r);
    }

    void on_open(unsigned connection) noexcept {
        auto& c = all_[connection];
        c.is_open = true;
        c.opened = ++opens_;
        c.proven = 0;
        c.last_write = 0;
    }

    /// The connection is lost: what it has is repeated before what waits.
    void on_lost(unsigned connection) {
        auto& c = all_[connection];
        c.is_open = false;
        if (c.last_write > flushed_) {
            auto const other = std::ranges::find_if(all_, [&c](connection_state const& each) {
                return each.is_open && is_same_server(each, c);
            });
            if (other == all_.end()) has_lost_writes_ = true;
            else other->last_write = std::max(other->last_write, c.last_write);
        }
        for (nbd_request* r : std::exchange(c.under_way, {})) {
            if (writes(*r) && !r->is_repeated) repeated_writes_.insert(r);
            r->is_repeated = true;
            auto const behind = std::ranges::find_if(again_, [r](nbd_request const* other) {
                return other->serial > r->serial;
            });
            again_.insert(behind, r);
        }
    }

    /// The next request for a connection, which then has it; null if there is none.
    nbd_request* take(unsigned connection) {
        auto& c = all_[connection];
        if (!c.is_open || c.under_way.size() >= under_way_max_) return nullptr;
        nbd_request* r = take_from(again_, c);
        if (r == nullptr) r = take_from(held_, c);
        while (r == nullptr) {
            r = waiting_.take();
            if (r == nullptr) return nullptr;
            r->has_turn = true;
            if (may_go(*r, c)) break;
            held_.push_back(std::exchange(r, nullptr));
        }
        if (r->kind == nbd_kind::flush) r->covers = acknowledged_;
        r->opens = opens_;
        r->connection = connection;
        c.under_way.push_back(r);
        return r;
    }

    /// A request that a connection had was not sent.
    void on_dropped(nbd_request& r) {
        std::erase(all_[r.connection].under_way, &r);
        forget(r);
    }
    /// The server has answered a request.
    void on_answered(nbd_request& r, bool has_succeeded) {
        on_dropped(r);
        auto& c = all_[r.connection];
        c.proven = std::max(c.proven, r.opens);
        if (!has_succeeded) return;
        if (r.kind == nbd_kind::write) c.last_write = ++acknowledged_;
        if (r.kind == nbd_kind::flush) flushed_ = std::max(flushed_, r.covers);
    }

    /// Takes out the requests that wait and meet a condition.
    template <class Condition>
    std::vector<nbd_request*> remove_waiting(Condition const& meets) {
        std::vector<nbd_request*> removed;
        while (nbd_request* const r = waiting_.remove()) held_.push_back(r);
        held_.sort([](nbd_request const* a, nbd_request const* b) { return a->serial < b->serial; }
        );
        for (auto* const list : {&again_, &held_}) {
            std::erase_if(*list, [&](nbd_request* r) {
                if (!meets(*r)) return false;
                removed.push_back(r);
                return true;
            });
        }
        for (nbd_request* const r : removed) forget(*r);
        return removed;
    }

    /// What a connection has.
    std::vector<nbd_request*> const& under_way(unsigned connection) const noexcept {
        return all_[connection].under_way;
    }
    /// True once writes that were acknowledged may be lost.
    bool has_lost_writes() const noexcept { return has_lost_writes_; }

private:
    struct connection_state {
        bool is_open = false;
        std::uint64_t opened = 0;  // its place in the order of openings
        std::uint64_t proven =
            0;  // the last one that was there when a request was sent that it has answered
        std::uint64_t last_write =
            0;  // the number of the last write that it, or one like it, has acknowledged
        std::vector<nbd_request*> under_way;
    };

    // There is one server at a time. So if the older connection has answered a request that was sent after the younger one was
    // opened, its server was the one that the younger one found.
    static bool is_same_server(connection_state const& a, connection_state const& b) noexcept {
        auto const& [older, younger] = a.opened < b.opened ? std::tie(a, b) : std::tie(b, a);
        return older.proven >= younger.opened;
    }
    // A flush that the oldest connection answers comes from the server of all.
    bool is_oldest(connection_state const& c) const noexcept {
        return std::ranges::none_of(all_, [&c](connection_state const& each) {
            return each.is_open && each.opened < c.opened;
        });
    }

    static bool writes(nbd_request const& r) noexcept {
        return r.kind == nbd_kind::write || r.kind == nbd_kind::durable_write;
    }
    void forget(nbd_request& r) {
        repeated_writes_.erase(&r);
        if (std::exchange(r.has_turn, false)) waiting_.on_carried_out(r);
    }

    bool may_go(nbd_request const& r, connection_state const& c) const {
        if (r.kind == nbd_kind::flush) return is_oldest(c);
        return std::ranges::none_of(repeated_writes_, [&r](nbd_request const* before) {
            return before->serial < r.serial && before->offset < r.offset + r.bytes &&
                   r.offset < before->offset + before->bytes;
        });
    }
    nbd_request* take_from(std::list<nbd_request*>& list, connection_state const& c) {
        for (auto at = list.begin(); at != list.end(); ++at) {
            if (!may_go(**at, c)) continue;
            nbd_request* const r = *at;
            list.erase(at);
            return r;
        }
        return nullptr;
    }

    std::vector<connection_state> all_;
    unsigned const under_way_max_;
    std::uint64_t serials_ = 0;
    // New ones, in turns of hosts; those that had to wait when their turn came; those that are repeated.
    store_schedule<nbd_request> waiting_{2};
    std::list<nbd_request*> held_;
    std::list<nbd_request*> again_;
    std::set<nbd_request*> repeated_writes_;
    std::uint64_t opens_ = 0;
    // Writes that were acknowledged without being durable, and how many of these a flush has made durable.
    std::uint64_t acknowledged_ = 0;
    std::uint64_t flushed_ = 0;
    bool has_lost_writes_ = false;
};

}  // namespace rcverbs::nvme::detail
