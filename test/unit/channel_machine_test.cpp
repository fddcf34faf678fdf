// The channel machine: its decisions one by one, two machines in every interleaving of a bounded
// exchange, and one beside a peer that lies.
#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "machines/channel_machine.hpp"
#include "support/catch.hpp"
#include "support/state_space.hpp"

using namespace rcverbs::machines;

namespace {

using message_type = channel_actions::type;
using message_outcome = channel_actions::outcome;
using violation = channel_machine::violation;

// Writes down what a machine has its owner do.
struct recorder final : channel_actions {
    std::string all;
    std::vector<posting> postings;

    void add(std::string const& what) { all += (all.empty() ? "" : ", ") + what; }
    void post(posting const& p) override {
        static constexpr std::array names{
            "?", "eager", "large", "large_done", "credit", "close", "withdraw"};
        std::string text = names[static_cast<std::size_t>(p.what)];
        if (p.what == message_type::eager || p.what == message_type::large)
            text += ' ' + std::to_string(p.message);
        if (p.what == message_type::large_done)
            text += ' ' + std::to_string(p.number) + (p.is_declined ? " declined" : " fetched");
        if (p.what == message_type::withdraw) text += ' ' + std::to_string(p.number);
        add(text);
        postings.push_back(p);
    }
    void repost(std::uint32_t receive) override { add("repost " + std::to_string(receive)); }
    void complete(std::uint32_t message, message_outcome how) override {
        static constexpr std::array names{"sent", "declined", "withdrawn", "cancelled", "ended"};
        add("complete " + std::to_string(message) + ' ' + names[static_cast<std::size_t>(how)]);
    }
    void disconnect() override { add("disconnect"); }

    std::string taken() { return std::exchange(all, {}); }
};

// A machine, and a peer's messages with right counts.
struct bench {
    channel_machine m;
    recorder r;
    credit_window peer;

    explicit bench(
        std::uint16_t own = 6, std::uint16_t theirs = 6, std::uint32_t sends = 4, bool active = true
    )
        : m{{own, theirs, sends, 0, active}},
          peer{theirs, own} {}

    violation arrive(
        message_type what, std::uint32_t receive, std::uint64_t number = 0, bool no = false
    ) {
        static constexpr std::array kinds{
            credit_window::kind::data,
            credit_window::kind::data,
            credit_window::kind::data,
            credit_window::kind::answer,
            credit_window::kind::credit,
            credit_window::kind::close,
            credit_window::kind::answer};
        auto const counts = peer.on_send(kinds[static_cast<std::size_t>(what)]);
        return m.arrived({what, counts, receive, number, no}, r);
    }
    // The peer gives receives back.
    void peer_gives_back(int count) {
        for (int i = 0; i < count; ++i) peer.give_back(credit_window::kind::data);
    }
    std::uint32_t send(bool is_large) {
        std::uint32_t const i = m.add(is_large);
        m.proceed(r);
        return i;
    }
    std::string taken() { return r.taken(); }
};

}  // namespace

TEST_CASE("messages are posted in order, as far as credits and slots allow", "[machines]") {
    bench b{6, 7, 2};  // three credits, two slots
    CHECK(b.send(false) == 0);
    CHECK(b.send(false) == 1);
    CHECK(b.send(false) == 2);
    CHECK(b.send(false) == 3);
    CHECK(b.taken() == "eager 0, eager 1");
    CHECK(b.m.waiting() == 2);
    b.m.acknowledged(b.r.postings[0].slot, false, b.r);
    CHECK(b.taken() == "complete 0 sent, eager 2");
    b.m.acknowledged(b.r.postings[1].slot, false, b.r);
    CHECK(b.taken() == "complete 1 sent");  // no credit
    b.peer_gives_back(1);
    CHECK(b.arrive(message_type::credit, 0) == violation::none);
    CHECK(b.taken() == "repost 0, eager 3");
    b.m.forget(0);
    CHECK(b.send(false) == 0);  // used again
}

TEST_CASE(
    "a message is over when it is acknowledged, a large one when it is answered, too", "[machines]"
) {
    bench b{9, 9};
    std::uint32_t const first = b.send(true);
    std::uint32_t const second = b.send(true);
    CHECK(b.taken() == "large 0, large 1");
    CHECK(b.r.postings[1].number == 1);
    b.m.acknowledged(b.r.postings[0].slot, false, b.r);
    CHECK(b.taken().empty());
    CHECK(b.arrive(message_type::large_done, 2, 0, false) == violation::none);
    CHECK(b.taken() == "complete 0 sent, repost 2");
    // The answer overtakes the acknowledgement.
    CHECK(b.arrive(message_type::large_done, 3, 1, true) == violation::none);
    CHECK(b.taken() == "repost 3");
    b.m.acknowledged(b.r.postings[1].slot, false, b.r);
    CHECK(b.taken() == "complete 1 declined");
    CHECK(b.arrive(message_type::large_done, 4, 1, true) == violation::unexpected);
    CHECK(b.m.cancel(first, b.r) == channel_machine::cancelled::over);
    CHECK(b.m.cancel(second, b.r) == channel_machine::cancelled::over);
}

TEST_CASE("a message is taken back, stays as a copy, or is withdrawn", "[machines]") {
    using cancelled = channel_machine::cancelled;
    bench b{6, 8, 8};  // four credits
    for (int i = 0; i < 4; ++i) b.send(i == 1);
    std::uint32_t const waiting = b.send(false);
    b.taken();
    CHECK(b.m.cancel(waiting, b.r) == cancelled::unsent);
    CHECK(b.taken() == "complete 4 cancelled");
    CHECK(b.m.cancel(0, b.r) == cancelled::copied);
    CHECK(b.taken().empty());
    CHECK(b.m.cancel(1, b.r) == cancelled::exposed);
    CHECK(b.m.is_withdrawing(1));
    CHECK(b.taken() == "withdraw 0");
    CHECK(b.m.cancel(1, b.r) == cancelled::exposed);
    CHECK(b.taken().empty());  // once
    for (auto const& p : std::vector{b.r.postings}) b.m.acknowledged(p.slot, false, b.r);
    b.taken();
    CHECK(b.arrive(message_type::large_done, 0, 0, true) == violation::none);
    CHECK(b.taken() == "complete 1 withdrawn, repost 0");
    CHECK_FALSE(b.m.is_withdrawing(1));
}

TEST_CASE("no more large messages are unanswered than this side allows", "[machines]") {
    recorder r;
    channel_machine m{{6, 100, 8, 50, true, 2}};
    for (int i = 0; i < 3; ++i) m.add(true);
    m.proceed(r);
    CHECK(r.taken() == "large 0, large 1");
    m.acknowledged(r.postings[0].slot, false, r);
    CHECK(r.taken().empty());
    CHECK(m.arrived({message_type::large_done, {}, 0, 0, true}, r) == violation::none);
    CHECK(r.taken() == "complete 0 declined, repost 0, large 2");
}

TEST_CASE(
    "the receive of a message is given back once, and a large message answered once", "[machines]"
) {
    bench b{16, 6};
    CHECK(b.arrive(message_type::eager, 0) == violation::none);
    CHECK(b.arrive(message_type::large, 1) == violation::none);
    CHECK(b.arrive(message_type::large, 2) == violation::none);
    CHECK(b.arrive(message_type::large, 3) == violation::none);
    CHECK(b.taken().empty());
    auto small = b.m.take();
    auto const fetched = b.m.take();
    auto const declined = b.m.take();
    auto const withdrawn = b.m.take();
    CHECK_FALSE(b.m.has_kept());
    CHECK(b.m.held() == 4);
    b.m.detach(small, b.r);
    CHECK(b.taken() == "repost 0");
    b.m.release(small, b.r);
    CHECK(b.taken().empty());
    CHECK(b.m.begin_fetch(fetched));
    CHECK(b.arrive(message_type::withdraw, 4, 0) == violation::none);  // too late
    CHECK(b.taken() == "repost 4");
    b.m.end_fetch(fetched, b.r);
    CHECK(b.taken() == "repost 1, large_done 0 fetched");
    b.m.release(declined, b.r);
    CHECK(b.taken() == "repost 2, large_done 1 declined");
    CHECK(b.arrive(message_type::withdraw, 5, 2) == violation::none);
    CHECK(b.taken() == "repost 5, large_done 2 declined");
    CHECK_FALSE(b.m.begin_fetch(withdrawn));
    b.m.release(withdrawn, b.r);
    CHECK(b.taken() == "repost 3");
    CHECK(b.m.held() == 0);
}

TEST_CASE(
    "a credit waits while messages are delivered, unless half of the receives are owed",
    "[machines]"
) {
    bench b{6, 9};
    b.m.set_delivering(true, b.r);
    CHECK(b.arrive(message_type::eager, 0) == violation::none);
    CHECK(b.arrive(message_type::eager, 1) == violation::none);
    b.m.release(b.m.take(), b.r);
    CHECK(b.taken() == "repost 0");
    b.m.set_delivering(false, b.r);
    CHECK(b.taken() == "credit");
}

TEST_CASE("both sides close, and the connecting one disconnects", "[machines]") {
    bench b;
    b.send(true);
    b.m.finish(b.r);
    CHECK_FALSE(b.m.may_send());
    CHECK(b.taken() == "large 0");
    b.m.acknowledged(b.r.postings[0].slot, false, b.r);
    CHECK(b.taken().empty());  // not answered
    CHECK(b.arrive(message_type::large_done, 0, 0) == violation::none);
    CHECK(b.taken() == "complete 0 sent, repost 0, close");
    CHECK(b.arrive(message_type::close, 1) == violation::none);
    CHECK(b.m.is_finished());
    CHECK(b.taken() == "repost 1");
    CHECK(b.arrive(message_type::eager, 2) == violation::unexpected);
    b.m.acknowledged(b.r.postings[1].slot, false, b.r);
    CHECK(b.taken() == "disconnect");
    CHECK_FALSE(b.m.is_open());

    bench passive{6, 6, 4, false};
    passive.m.finish(passive.r);
    CHECK(passive.arrive(message_type::close, 0) == violation::none);
    passive.m.acknowledged(passive.r.postings[0].slot, false, passive.r);
    CHECK(passive.taken() == "close, repost 0");
}

TEST_CASE("at the end every message is over once", "[machines]") {
    bench b{6, 8, 8};  // four credits
    for (int i = 0; i < 5; ++i) b.send(i == 0);
    b.taken();
    b.m.acknowledged(b.r.postings[0].slot, false, b.r);
    b.m.end(b.r);
    CHECK(b.taken() == "complete 4 ended, complete 0 ended");
    b.m.acknowledged(b.r.postings[1].slot, true, b.r);
    b.m.acknowledged(b.r.postings[2].slot, false, b.r);
    b.m.acknowledged(b.r.postings[3].slot, true, b.r);
    CHECK(b.taken() == "complete 1 ended, complete 2 sent, complete 3 ended");
    CHECK(b.arrive(message_type::eager, 0) == violation::none);
    CHECK_FALSE(b.m.has_kept());
    b.m.end(b.r);
    CHECK(b.taken().empty());
}

namespace {

// Two machines, and the connection between them. Messages arrive in order; acknowledgements come in
// order, after the message has arrived.
struct exchange {
    struct flying {
        channel_actions::posting what;
        bool has_arrived = false;
        std::uint64_t tag = 0;  // of the program's message
    };
    struct mine {
        std::uint64_t tag = 0;
        bool is_large = false;
        bool is_cancelled = false;
        bool is_over = false;
        bool was_fetched = false;  // by the other side
        message_outcome how = message_outcome::sent;
    };
    struct side {
        channel_machine machine;
        std::deque<flying> sent;  // not acknowledged
        std::vector<mine> messages;  // by index
        std::vector<std::uint32_t> receives;  // that are posted
        std::vector<std::uint64_t> arrived_tags;  // of kept messages, by receive
        std::vector<channel_machine::kept> held;
        bool is_fetching = false;  // the first that is held
        int to_send = 0;
        std::uint64_t larges = 0;  // which of them are large: bits
        std::uint64_t tags_sent = 0;
        std::uint64_t tag_arrived = 0;  // the next that must arrive, or later
        bool has_finished = false;
        bool has_disconnected = false;
    };
    std::array<side, 2> sides;
    int cancels_left = 0;
    int losses_left = 0;
    bool is_lost = false;
    std::string wrong;

    // The actions of one side.
    struct actions final : channel_actions {
        exchange& e;
        side& s;
        actions(exchange& of, side& who) : e{of}, s{who} {}

        void post(posting const& p) override {
            bool const is_message = p.what == message_type::eager || p.what == message_type::large;
            s.sent.push_back({p, false, is_message ? s.messages[p.message].tag : 0});
        }
        void repost(std::uint32_t receive) override { s.receives.push_back(receive); }
        void complete(std::uint32_t i, message_outcome how) override {
            mine& m = s.messages[i];
            if (m.is_over) e.wrong = "a message was over twice";
            m.is_over = true;
            m.how = how;
            bool const is_fair = how == message_outcome::ended       ? e.is_lost
                                 : how == message_outcome::cancelled ? m.is_cancelled
                                 : how == message_outcome::withdrawn ? m.is_cancelled && m.is_large
                                 : how == message_outcome::declined  ? m.is_large && !m.was_fetched
                                                                     : !m.is_large || m.was_fetched;
            if (!is_fair) e.wrong = "a message ended as it cannot";
        }
        void disconnect() override { s.has_disconnected = true; }
    };

    exchange(
        std::uint16_t receives, std::array<int, 2> messages, std::array<std::uint64_t, 2> larges
    ) {
        for (std::size_t i = 0; i < 2; ++i) {
            side& s = sides[i];
            s.machine = channel_machine{{receives, receives, 8, 0, i == 0}};
            for (std::uint32_t r = 0; r < receives; ++r) s.receives.push_back(r);
            s.arrived_tags.resize(receives);
            s.to_send = messages[i];
            s.larges = larges[i];
        }
    }

    void send(side& s) {
        bool const is_large = (s.larges >> s.tags_sent & 1U) != 0;
        std::uint32_t const i = s.machine.add(is_large);
        if (i != s.messages.size()) wrong = "an index that is in use";
        s.messages.push_back({s.tags_sent++, is_large});
        --s.to_send;
        actions out{*this, s};
        s.machine.proceed(out);
    }
    void arrive(side& from, side& to) {
        auto const f = std::ranges::find(from.sent, false, &flying::has_arrived);
        f->has_arrived = true;
        if (to.receives.empty()) {
            wrong = "a message met no receive";
            return;
        }
        std::uint32_t const receive = to.receives.front();
        to.receives.erase(to.receives.begin());
        to.arrived_tags[receive] = f->tag;
        actions out{*this, to};
        auto const& p = f->what;
        violation const v =
            to.machine.arrived({p.what, p.carried, receive, p.number, p.is_declined}, out);
        if (v != violation::none) wrong = "an honest message was refused";
    }
    void acknowledge(side& s) {
        flying const f = s.sent.front();
        s.sent.pop_front();
        actions out{*this, s};
        s.machine.acknowledged(f.what.slot, false, out);
    }
    void take(side& s) {
        auto const k = s.machine.take();
        std::uint64_t const tag = s.arrived_tags[k.receive];
        if (tag < s.tag_arrived) wrong = "a message came twice, or late";
        s.tag_arrived = tag + 1;
        s.held.push_back(k);
    }
    void release(side& s) {
        actions out{*this, s};
        s.machine.release(s.held.front(), out);
        s.held.erase(s.held.begin());
    }
    void begin_fetch(side& s) {
        if (s.machine.begin_fetch(s.held.front())) s.is_fetching = true;
        else release(s);
    }
    void end_fetch(side& s, side& peer) {
        // The peer's memory must still be there.
        std::uint64_t const tag = s.arrived_tags[s.held.front().receive];
        auto const m = std::ranges::find(peer.messages, tag, &mine::tag);
        if (m->is_over) wrong = "memory was read after its message was over";
        m->was_fetched = true;
        s.is_fetching = false;
        actions out{*this, s};
        s.machine.end_fetch(s.held.front(), out);
        s.held.erase(s.held.begin());
    }
    void cancel(side& s, std::uint32_t i) {
        --cancels_left;
        s.messages[i].is_cancelled = true;
        actions out{*this, s};
        s.machine.cancel(i, out);
    }
    void finish(side& s) {
        s.has_finished = true;
        actions out{*this, s};
        s.machine.finish(out);
    }
    void lose() {
        --losses_left;
        is_lost = true;
        for (side& s : sides) {
            actions out{*this, s};
            s.machine.end(out);
            while (!s.sent.empty()) {
                auto const slot = s.sent.front().what.slot;
                s.sent.pop_front();
                s.machine.acknowledged(slot, true, out);
            }
            s.held.clear();
        }
    }

    // Every step that can come next.
    template <class Visit>
    void for_each_step(Visit const& visit) const {
        if (is_lost) return;
        for (std::size_t i = 0; i < 2; ++i) {
            side const& s = sides[i];
            if (s.has_disconnected) continue;
            if (s.to_send > 0 && s.machine.may_send())
                visit([i](exchange& e) { e.send(e.sides[i]); });
            if (std::ranges::find(s.sent, false, &flying::has_arrived) != s.sent.end())
                visit([i](exchange& e) { e.arrive(e.sides[i], e.sides[1 - i]); });
            if (!s.sent.empty() && s.sent.front().has_arrived)
                visit([i](exchange& e) { e.acknowledge(e.sides[i]); });
            if (s.machine.has_kept()) visit([i](exchange& e) { e.take(e.sides[i]); });
            if (s.is_fetching) {
                visit([i](exchange& e) { e.end_fetch(e.sides[i], e.sides[1 - i]); });
            } else if (!s.held.empty()) {
                visit([i](exchange& e) { e.release(e.sides[i]); });
                if (s.held.front().is_large) visit([i](exchange& e) { e.begin_fetch(e.sides[i]); });
            }
            for (std::uint32_t k = 0; cancels_left > 0 && k < s.messages.size(); ++k) {
                if (!s.messages[k].is_over) visit([i, k](exchange& e) { e.cancel(e.sides[i], k); });
            }
            if (s.to_send == 0 && !s.has_finished)
                visit([i](exchange& e) { e.finish(e.sides[i]); });
        }
        if (losses_left > 0) visit([](exchange& e) { e.lose(); });
    }

    void check() {
        for (side& s : sides) {
            if (s.receives.size() + s.machine.held() > s.arrived_tags.size())
                wrong = "a receive was given back twice";
        }
    }
    // Nothing can happen any more.
    void check_end() {
        for (side const& s : sides) {
            for (mine const& m : s.messages) {
                if (!m.is_over) wrong = "a message is never over";
            }
        }
        if (is_lost) return;
        if (!sides[0].has_disconnected) wrong = "the channel stalls";
        if (sides[1].receives.size() != sides[1].arrived_tags.size())
            wrong = "a receive was not given back";
    }

    void append_to(std::vector<std::uint64_t>& all) const {
        for (side const& s : sides) {
            s.machine.append_to(all);
            for (flying const& f : s.sent) {
                all.push_back(static_cast<std::uint64_t>(f.what.what) * 2 + f.has_arrived);
                all.push_back(f.what.number * 1000 + f.what.slot);
                all.push_back(f.what.carried.given_back * 256U + f.what.carried.credits_taken);
                all.push_back(f.tag * 2 + f.what.is_declined);
            }
            for (mine const& m : s.messages)
                all.push_back(m.is_cancelled + 2U * m.is_over + 4U * m.was_fetched);
            for (std::uint32_t const r : s.receives) all.push_back(r);
            for (auto const& k : s.held) all.push_back(k.receive * 2 + k.is_detached);
            all.push_back(s.tags_sent * 4 + s.is_fetching * 2U + s.has_finished);
            all.push_back(s.tag_arrived * 2 + s.has_disconnected);
            all.push_back(UINT64_MAX);
        }
        all.push_back(static_cast<std::uint64_t>(cancels_left * 4 + losses_left * 2 + is_lost));
    }
};

}  // namespace

TEST_CASE("two channels agree in every interleaving of a few messages", "[machines]") {
    struct row {
        std::uint16_t receives;
        std::array<int, 2> messages;
        std::array<std::uint64_t, 2> larges;
        int cancels;
        int losses;
    };
    std::vector<row> rows{
        {6, {2, 0}, {0, 0}, 1, 1},
        {6, {1, 1}, {1, 1}, 0, 0},
        {7, {2, 0}, {2, 0}, 1, 1},
        {8, {2, 1}, {0, 0}, 0, 1}};
    // A sanitizer makes it 30 times as slow.
#if !defined(RCVERBS_ADDRESS_SANITIZER) && !defined(RCVERBS_THREAD_SANITIZER)
    rows.insert(
        rows.end(),
        {{6, {4, 0}, {0, 0}, 0, 0},
         {6, {2, 1}, {0, 0}, 1, 1},
         {7, {4, 0}, {0, 0}, 1, 1},
         {6, {2, 2}, {0, 0}, 0, 0},
         {8, {4, 1}, {0, 0}, 0, 0},
         {7, {1, 1}, {1, 1}, 1, 1}}
    );
#endif
    row const r = rows[GENERATE_REF(range(std::size_t{0}, rows.size()))];
    exchange first{r.receives, r.messages, r.larges};
    first.cancels_left = r.cancels;
    first.losses_left = r.losses;
    std::string wrong;
    std::size_t const states = test::explore(first, wrong);
    INFO(
        "receives " << r.receives << ", messages " << r.messages[0] << '+' << r.messages[1]
                    << ", states " << states
    );
    CHECK(wrong.empty());
    CHECK(wrong == "");
    CHECK(states > 100);
}

TEST_CASE("two channels agree in long exchanges, at random", "[machines]") {
    std::mt19937 random{GENERATE(1U, 2U, 3U, 4U)};
    for (int round = 0; round < 200; ++round) {
        auto const receives = static_cast<std::uint16_t>(6 + random() % 6);
        exchange e{
            receives,
            {static_cast<int>(random() % 20), static_cast<int>(random() % 20)},
            {random() & random(), random() & random()}};
        e.cancels_left = static_cast<int>(random() % 4);
        e.losses_left = random() % 10 == 0 ? 1 : 0;
        for (;;) {
            std::vector<std::function<void(exchange&)>> steps;
            e.for_each_step([&](auto const& step) { steps.emplace_back(step); });
            if (steps.empty()) break;
            // A loss is one of many steps, and rare.
            std::size_t const pick = random() % steps.size();
            bool const is_loss = e.losses_left > 0 && pick == steps.size() - 1;
            if (is_loss && steps.size() > 1 && random() % 20 != 0) continue;
            steps[pick](e);
            e.check();
            REQUIRE(e.wrong == "");
        }
        e.check_end();
        REQUIRE(e.wrong == "");
    }
}

TEST_CASE("a peer that lies is refused, and takes no more than its share", "[machines]") {
    std::mt19937 random{GENERATE(1U, 2U, 3U, 4U)};
    for (int round = 0; round < 3000; ++round) {
        channel_machine m{{6, 6, 4, 0, true}};
        recorder out;
        std::vector<std::uint32_t> receives{0, 1, 2, 3, 4, 5};
        std::vector<channel_machine::kept> held;
        std::size_t acknowledged = 0;
        for (int i = 0; i < 40; ++i) {
            if (random() % 8 == 0) {
                m.add(random() % 2 == 0);
                m.proceed(out);
            }
            if (random() % 4 == 0 && m.has_kept()) held.push_back(m.take());
            if (random() % 4 == 0 && !held.empty()) {
                m.release(held.back(), out);
                held.pop_back();
            }
            if (random() % 3 == 0 && acknowledged < out.postings.size())
                m.acknowledged(out.postings[acknowledged++].slot, false, out);
            // Its device refuses what finds no receive.
            if (receives.empty()) {
                receives = {0, 1, 2, 3, 4, 5};
                break;
            }
            std::uint32_t const receive = receives.back();
            receives.pop_back();
            std::string const before = out.taken();
            violation const v = m.arrived(
                {static_cast<message_type>(1 + random() % 6),
                 {static_cast<std::uint16_t>(random() % 3),
                  static_cast<std::uint8_t>(random() % 2)},
                 receive,
                 random() % 3,
                 random() % 2 == 0},
                out
            );
            if (v != violation::none) break;
            for (std::string all = out.all; all.find("repost ") != std::string::npos;) {
                std::size_t const at = all.find("repost ");
                receives.push_back(static_cast<std::uint32_t>(std::stoul(all.substr(at + 7))));
                all.erase(at, 7);
            }
            // Each receive is posted, or held, or has a kept message: never two of it.
            CHECK(receives.size() <= 6);
            CHECK(m.held() == held.size());
        }
        out.taken();
        m.end(out);
        CHECK_FALSE(m.is_open());
    }
}
