// The request machine: its decisions one by one, two machines in every interleaving of a bounded
// exchange, and one beside a peer that lies.
#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "machines/request_machine.hpp"
#include "support/catch.hpp"
#include "support/state_space.hpp"

using namespace rcverbs::machines;

namespace {

using request_message = request_actions::kind;
using request_outcome = request_actions::outcome;
using request_violation = request_machine::violation;
using taken_back = request_actions::taken_back;

char const* name_of(request_message what) {
    static constexpr std::array names{
        "?", "request", "notice", "answer", "dropped", "cancel", "end", "released"};
    return names[static_cast<std::size_t>(what)];
}

// Writes down what a machine has its owner do.
struct requests_recorder final : request_actions {
    std::string all;
    taken_back next_taken_back = taken_back::copied;
    bool has_memory = true;

    void add(std::string const& what) { all += (all.empty() ? "" : ", ") + what; }
    bool send_request(std::uint32_t request, std::uint16_t id) override {
        if (has_memory) add("send " + std::to_string(request) + " as " + std::to_string(id));
        return has_memory;
    }
    void send_control(kind what, std::uint16_t id) override {
        add(std::string{name_of(what)} + ' ' + std::to_string(id));
    }
    taken_back take_back_request(std::uint32_t request) override {
        add("take back " + std::to_string(request));
        return next_taken_back;
    }
    void await_release(std::uint32_t request) override {
        add("await release " + std::to_string(request));
    }
    void complete_request(std::uint32_t request, outcome how) override {
        static constexpr std::array names{
            "answered", "sent", "dropped", "cancelled", "failed", "ended"};
        add("complete " + std::to_string(request) + ' ' + names[static_cast<std::size_t>(how)]);
    }
    void finish_messages() override { add("finish"); }

    std::string taken() { return std::exchange(all, {}); }
};

struct requests_bench {
    request_machine m;
    requests_recorder r;

    explicit requests_bench(std::uint16_t own = 2, std::uint16_t peer = 2) : m{own, peer} {}

    std::uint32_t ask(bool is_notice = false, bool has_target = false) {
        std::uint32_t const i = m.add(is_notice, has_target);
        m.proceed(r);
        return i;
    }
    request_violation arrive(request_message what, std::uint16_t id = 0, bool is_empty = true) {
        return m.arrived(what, id, is_empty, false, r);
    }
    request_violation arrive_with_target(std::uint16_t id) {
        return m.arrived(request_message::request, id, false, true, r);
    }
    std::string taken() { return r.taken(); }
};

}  // namespace

TEST_CASE("requests are sent in order, as many as the peer takes", "[machines]") {
    requests_bench b;
    CHECK(b.m.next_index() == 0);
    CHECK(b.ask() == 0);
    CHECK(b.ask() == 1);
    CHECK(b.ask() == 2);
    CHECK(b.taken() == "send 0 as 0, send 1 as 1");
    CHECK(b.m.waiting() == 1);
    CHECK(b.m.outstanding() == 2);
    b.m.sent(0, false, b.r);
    CHECK(b.taken().empty());
    CHECK(b.m.wants_answer(0) == 0);
    CHECK(b.arrive(request_message::answer, 0, false) == request_violation::none);
    CHECK(b.taken() == "complete 0 answered, send 2 as 0");
    b.m.forget(0);
    CHECK(b.m.next_index() == 0);
    // The answer overtakes the acknowledgement.
    CHECK(b.arrive(request_message::answer, 1) == request_violation::none);
    CHECK(b.taken().empty());
    CHECK(b.arrive(request_message::answer, 1) == request_violation::unexpected);
    b.m.sent(1, false, b.r);
    CHECK(b.taken() == "complete 1 answered");
    CHECK_FALSE(request_machine{}.may_ask());
}

TEST_CASE(
    "a notice is over when it is sent, and its number free when it is answered", "[machines]"
) {
    requests_bench b{2, 1};
    b.ask(true);
    b.ask(true);
    CHECK(b.taken() == "send 0 as 0");
    b.m.sent(0, false, b.r);
    CHECK(b.taken() == "complete 0 sent");
    b.m.forget(0);
    CHECK(b.m.next_index() == 2);  // 0 still has its number
    CHECK(b.m.wants_answer(0) == request_machine::nobody);
    CHECK(b.arrive(request_message::answer, 0, false) == request_violation::malformed);
    CHECK(b.arrive(request_message::answer) == request_violation::none);
    CHECK(b.taken() == "send 1 as 0");
    CHECK(b.m.next_index() == 0);
}

TEST_CASE("a request that is over early keeps its number until it is answered", "[machines]") {
    requests_bench b{2, 1};
    b.ask();
    b.ask();
    b.m.sent(0, false, b.r);
    b.taken();
    b.m.cancel(0, b.r);
    CHECK(b.taken() == "cancel 0, complete 0 cancelled");
    b.m.cancel(0, b.r);
    CHECK(b.taken().empty());
    b.m.forget(0);
    CHECK(b.m.wants_answer(0) == request_machine::nobody);
    CHECK(b.arrive(request_message::answer, 0, false) == request_violation::none);
    CHECK(b.taken() == "send 1 as 0");
    CHECK(b.arrive(request_message::dropped) == request_violation::none);
    b.m.sent(1, false, b.r);
    CHECK(b.taken() == "complete 1 dropped");
    b.ask();
    b.ask();
    b.m.cancel(2, b.r);  // it waits
    CHECK(b.taken() == "send 0 as 0, complete 2 cancelled");
}

TEST_CASE("what is cancelled depends on where its message is", "[machines]") {
    requests_bench b{1, 4};
    for (int i = 0; i < 4; ++i) b.ask();
    b.taken();
    b.r.next_taken_back = taken_back::unsent;
    b.m.cancel(0, b.r);
    CHECK(b.taken() == "take back 0, complete 0 cancelled");  // the peer never hears of it
    b.m.sent(0, true, b.r);
    CHECK(b.m.outstanding() == 3);
    b.r.next_taken_back = taken_back::copied;
    b.m.cancel(1, b.r);
    CHECK(b.taken() == "take back 1, cancel 1, complete 1 cancelled");
    // The peer may read the body: not over before it has let go.
    b.r.next_taken_back = taken_back::exposed;
    b.m.cancel(2, b.r);
    CHECK(b.taken() == "take back 2, cancel 2");
    b.m.cancel(2, b.r);
    CHECK(b.taken().empty());
    b.m.sent(2, false, b.r);
    CHECK(b.taken() == "complete 2 cancelled");
    // An answer that came before is not lost.
    CHECK(b.arrive(request_message::answer, 3) == request_violation::none);
    b.m.cancel(3, b.r);
    CHECK(b.taken() == "take back 3");
    b.m.sent(3, false, b.r);
    CHECK(b.taken() == "complete 3 answered");
}

TEST_CASE("the peer has as many requests as it may", "[machines]") {
    requests_bench b;
    CHECK(b.arrive(request_message::request, 2) == request_violation::unexpected);
    CHECK(b.arrive(request_message::request, 1) == request_violation::none);
    CHECK(b.arrive(request_message::request, 1) == request_violation::unexpected);
    CHECK(b.arrive(request_message::notice, 0) == request_violation::none);
    CHECK(b.m.open() == 2);
    CHECK(b.m.is_notice(0));
    CHECK_FALSE(b.m.is_notice(1));
    CHECK(b.arrive(request_message::cancel, 1) == request_violation::none);
    CHECK(b.m.is_cancelled(1));
    CHECK(b.arrive(request_message::cancel, 2) == request_violation::unexpected);
    b.m.answered(1, b.r);
    CHECK_FALSE(b.m.is_open(1));
    CHECK(b.arrive(request_message::cancel, 1) == request_violation::none);  // too late
    b.m.drop(0, b.r);
    CHECK(b.taken() == "answer 0");
    CHECK(b.arrive(request_message::request, 0) == request_violation::none);
    CHECK_FALSE(b.m.is_cancelled(0));
    b.m.drop(0, b.r);
    CHECK(b.taken() == "dropped 0");
    CHECK(b.arrive(request_message::answer, 0) == request_violation::unexpected);
    CHECK(b.arrive(request_message::end) == request_violation::none);
    CHECK(b.arrive(request_message::end) == request_violation::unexpected);
    CHECK(b.arrive(request_message::request, 0) == request_violation::unexpected);
}

TEST_CASE("END follows the last answer, and CLOSE when nothing is open", "[machines]") {
    requests_bench b;
    b.ask();
    CHECK(b.arrive(request_message::request) == request_violation::none);
    b.m.finish(b.r);
    CHECK_FALSE(b.m.may_ask());
    CHECK(b.taken() == "send 0 as 0");
    b.m.sent(0, false, b.r);
    CHECK(b.arrive(request_message::answer) == request_violation::none);
    CHECK(b.taken() == "complete 0 answered, end 0");
    CHECK(b.arrive(request_message::end) == request_violation::none);
    CHECK_FALSE(b.m.is_finished());
    b.m.answered(0, b.r);
    CHECK(b.taken() == "finish");
    CHECK(b.m.is_finished());
}

TEST_CASE("at the end every request is over once", "[machines]") {
    requests_bench b{1, 3};
    for (int i = 0; i < 4; ++i) b.ask();
    b.m.sent(0, false, b.r);
    b.r.next_taken_back = taken_back::exposed;
    b.m.cancel(2, b.r);
    b.taken();
    b.m.end(b.r);
    CHECK(b.taken() == "complete 3 ended, complete 0 ended");
    b.m.sent(1, true, b.r);
    b.m.sent(2, true, b.r);
    CHECK(b.taken() == "complete 1 ended, complete 2 cancelled");
    CHECK_FALSE(b.m.may_ask());
    b.m.end(b.r);
    b.m.finish(b.r);
    CHECK(b.taken().empty());
}

TEST_CASE("a request with a target is over when the peer writes no more", "[machines]") {
    requests_bench b{1, 4};
    for (int i = 0; i < 4; ++i) b.ask(false, true);
    b.m.sent(0, false, b.r);
    b.taken();
    CHECK(b.arrive(request_message::released, 0) == request_violation::unexpected);
    b.m.cancel(0, b.r);
    CHECK(b.taken() == "cancel 0, await release 0");
    b.m.cancel(0, b.r);
    CHECK(b.taken().empty());
    CHECK(b.arrive(request_message::released, 0) == request_violation::none);
    CHECK(b.taken() == "complete 0 cancelled");
    CHECK(b.arrive(request_message::released, 0) == request_violation::unexpected);
    // The peer reads the body of one, too.
    b.r.next_taken_back = taken_back::exposed;
    b.m.cancel(1, b.r);
    CHECK(b.taken() == "take back 1, cancel 1, await release 1");
    CHECK(b.arrive(request_message::released, 1) == request_violation::none);
    CHECK(b.taken().empty());
    b.m.sent(1, false, b.r);
    CHECK(b.taken() == "complete 1 cancelled");
    // The answer was under way, and overtakes the acknowledgement.
    b.r.next_taken_back = taken_back::copied;
    b.m.cancel(2, b.r);
    CHECK(b.taken() == "take back 2, cancel 2, await release 2");
    CHECK(b.m.wants_answer(2) == request_machine::nobody);
    CHECK(b.arrive(request_message::answer, 2) == request_violation::none);
    CHECK(b.taken().empty());
    b.m.sent(2, false, b.r);
    CHECK(b.taken() == "complete 2 cancelled");
    b.r.next_taken_back = taken_back::unsent;
    b.m.cancel(3, b.r);
    CHECK(b.taken() == "take back 3, complete 3 cancelled");
    b.m.sent(3, true, b.r);
    CHECK(b.arrive(request_message::dropped, 0) == request_violation::none);
    CHECK(b.arrive(request_message::answer, 1) == request_violation::none);
    CHECK(b.m.outstanding() == 0);
}

TEST_CASE("the memory of a request that its peer cancels is let go at once", "[machines]") {
    requests_bench b;
    CHECK(b.arrive_with_target(0) == request_violation::none);
    CHECK(b.arrive(request_message::request, 1) == request_violation::none);
    CHECK(b.m.has_target(0));
    CHECK_FALSE(b.m.has_target(1));
    CHECK(b.arrive(request_message::cancel, 0) == request_violation::none);
    CHECK(b.arrive(request_message::cancel, 1) == request_violation::none);
    CHECK(b.taken() == "released 0");
    CHECK_FALSE(b.m.has_target(0));
    CHECK(b.arrive(request_message::cancel, 0) == request_violation::none);
    CHECK(b.taken().empty());
    b.m.answered(0, b.r);
    CHECK(b.arrive_with_target(0) == request_violation::none);
    CHECK(b.m.has_target(0));
}

TEST_CASE("a request with a target outlives the channel, until its connection ends", "[machines]") {
    requests_bench b{1, 5};
    for (int i = 0; i < 5; ++i) b.ask(false, i != 4);
    b.m.sent(0, false, b.r);
    b.m.sent(1, false, b.r);
    b.m.sent(4, false, b.r);
    b.m.cancel(1, b.r);
    b.taken();
    b.m.sent(2, true, b.r);  // before the end is known
    b.m.end(b.r);
    CHECK(b.taken() == "complete 4 ended");
    b.m.sent(3, true, b.r);
    CHECK(b.taken().empty());
    b.m.connection_ended(b.r);
    CHECK(
        b.taken() == "complete 0 ended, complete 1 cancelled, complete 2 failed, complete 3 ended"
    );
    b.m.connection_ended(b.r);
    CHECK(b.taken().empty());
}

TEST_CASE("a request that cannot be sent gives its number back", "[machines]") {
    requests_bench b{1, 1};
    b.r.has_memory = false;
    b.ask();
    CHECK(b.taken() == "complete 0 failed");
    b.r.has_memory = true;
    CHECK(b.ask() == 1);
    CHECK(b.taken() == "send 1 as 0");
    b.m.sent(1, true, b.r);
    CHECK(b.taken() == "complete 1 failed");
    CHECK(b.m.outstanding() == 0);
}

namespace {

// Two machines, and the messages between them, which arrive in order. The first two that have not
// arrived are posted; others can be taken back.
struct dialogue {
    struct message {
        request_message what = request_message::request;
        std::uint16_t id = 0;
        std::uint64_t tag = 0;  // of the request that it is, or answers
        std::uint32_t request = request_machine::nobody;
        bool has_target = false;  // of a request; of an answer: it is written there
    };
    struct mine {
        std::uint64_t tag = 0;
        bool is_notice = false;
        bool is_large = false;
        bool has_target = false;
        bool is_released = false;
        bool is_cancelled = false;
        bool is_over = false;
        bool is_known = false;  // to the peer
        std::uint64_t answer = 0;
    };
    struct theirs {
        std::uint16_t id = 0;
        std::uint64_t tag = 0;
    };
    struct side {
        request_machine machine;
        std::deque<message> sent;  // not arrived
        std::vector<mine> requests;  // by index
        std::vector<std::uint32_t> unsent;  // whose messages are not over
        std::vector<std::uint32_t> failed;  // whose messages were taken back
        std::vector<std::uint32_t> done;  // whose handlers are to be called
        std::vector<theirs> open;
        int to_ask = 0;
        std::uint64_t notices = 0;  // which of them are notices: bits
        std::uint64_t larges = 0;  // which are large
        std::uint64_t targets = 0;  // which have a target
        std::uint64_t asked = 0;
        bool has_finished = false;
        bool may_close = false;
    };
    std::array<side, 2> sides;
    int cancels_left = 0;
    int losses_left = 0;
    bool is_lost = false;
    bool can_write = true;  // the peers are connected
    std::string wrong;

    struct actions final : request_actions {
        dialogue& d;
        side& s;
        actions(dialogue& of, side& who) : d{of}, s{who} {}

        bool send_request(std::uint32_t i, std::uint16_t id) override {
            mine const& m = s.requests[i];
            auto const what = m.is_notice ? request_message::notice : request_message::request;
            s.sent.push_back({what, id, m.tag, i, m.has_target});
            s.unsent.push_back(i);
            return true;
        }
        void send_control(kind what, std::uint16_t id) override {
            auto const of = std::ranges::find(s.open, id, &theirs::id);
            bool const is_known =
                of != s.open.end() && (what == kind::released || what == kind::dropped);
            s.sent.push_back({what, id, is_known ? of->tag : 0, request_machine::nobody});
        }
        void await_release(std::uint32_t i) override {
            if (!s.requests[i].has_target) d.wrong = "waits for what the peer does not send";
        }
        taken_back take_back_request(std::uint32_t i) override {
            auto const m = std::ranges::find(s.sent, i, &message::request);
            bool const is_posted = m == s.sent.end() || m - s.sent.begin() < 2;
            if (!is_posted) {
                s.sent.erase(m);
                std::erase(s.unsent, i);
                s.failed.push_back(i);
                return taken_back::unsent;
            }
            return s.requests[i].is_large ? taken_back::exposed : taken_back::copied;
        }
        void complete_request(std::uint32_t i, outcome how) override {
            mine& m = s.requests[i];
            if (m.is_over) d.wrong = "a request was over twice";
            m.is_over = true;
            s.done.push_back(i);
            bool const is_exposed = m.is_large && m.is_known && !m.is_notice &&
                                    std::ranges::find(s.unsent, i) != s.unsent.end();
            bool const is_fair = how == outcome::answered    ? m.answer == m.tag
                                 : how == outcome::sent      ? m.is_notice
                                 : how == outcome::dropped   ? !m.is_notice
                                 : how == outcome::cancelled ? m.is_cancelled
                                                             : d.is_lost;
            if (!is_fair) d.wrong = "a request ended as it cannot";
            bool const is_written = m.has_target && m.is_known && !m.is_released && d.can_write &&
                                    how != outcome::answered && how != outcome::dropped &&
                                    m.answer == 0;
            if (is_written) d.wrong = "a request was over while the peer could write";
            if (is_exposed && !d.is_lost) d.wrong = "a request was over while the peer could read";
        }
        void finish_messages() override {
            if (s.may_close) d.wrong = "finished twice";
            s.may_close = true;
        }
    };

    dialogue(
        std::uint16_t limit,
        std::array<int, 2> requests,
        std::array<std::uint64_t, 2> notices,
        std::array<std::uint64_t, 2> larges,
        std::array<std::uint64_t, 2> targets
    ) {
        for (std::size_t i = 0; i < 2; ++i) {
            side& s = sides[i];
            s.machine = request_machine{limit, limit};
            s.to_ask = requests[i];
            s.notices = notices[i];
            s.larges = larges[i];
            s.targets = targets[i];
        }
    }

    void ask(side& s) {
        std::uint32_t const i = s.machine.next_index();
        if (i == s.requests.size()) s.requests.emplace_back();
        s.requests[i] = {};
        s.requests[i].is_notice = (s.notices >> s.asked & 1U) != 0;
        s.requests[i].is_large = (s.larges >> s.asked & 1U) != 0;
        bool const has_target = (s.targets >> s.asked & 1U) != 0 && !s.requests[i].is_notice;
        s.requests[i].has_target = has_target;
        s.requests[i].tag = ++s.asked;
        if (s.machine.add(s.requests[i].is_notice, has_target) != i) wrong = "another index";
        --s.to_ask;
        actions out{*this, s};
        s.machine.proceed(out);
    }
    void arrive(side& from, side& to) {
        message const m = from.sent.front();
        from.sent.pop_front();
        if (m.request != request_machine::nobody) from.requests[m.request].is_known = true;
        auto const asked = std::ranges::find(to.requests, m.tag, &mine::tag);
        bool const is_asked = asked != to.requests.end() && m.tag != 0;
        if (m.what == request_message::answer && is_asked) asked->answer = m.tag;
        bool const is_released = m.what == request_message::released;
        if (is_released && !is_asked) wrong = "memory of a request that is over was let go";
        if ((is_released || m.what == request_message::dropped) && is_asked)
            asked->is_released = true;
        bool const is_written = m.what == request_message::answer && m.has_target;
        if (is_written && (!is_asked || asked->is_over))
            wrong = "memory of a request that is over was written";
        actions out{*this, to};
        auto const v = to.machine.arrived(m.what, m.id, m.tag == 0, m.has_target, out);
        if (v != request_violation::none) wrong = "an honest message was refused";
        if (m.what == request_message::request || m.what == request_message::notice)
            to.open.push_back({m.id, m.tag});
    }
    // A message of a request is over: acknowledged, and a large one fetched or declined.
    void acknowledge(side& s, std::size_t which) {
        std::uint32_t const i = s.unsent[which];
        s.unsent.erase(s.unsent.begin() + static_cast<std::ptrdiff_t>(which));
        actions out{*this, s};
        s.machine.sent(i, false, out);
    }
    void end_unsent(side& s) {
        std::uint32_t const i = s.failed.front();
        s.failed.erase(s.failed.begin());
        actions out{*this, s};
        s.machine.sent(i, true, out);
    }
    void call_handler(side& s) {
        s.machine.forget(s.done.front());
        s.done.erase(s.done.begin());
    }
    void close(side& s, std::size_t which, bool is_answer) {
        theirs const t = s.open[which];
        actions out{*this, s};
        if (is_answer) {
            bool const is_written = s.machine.has_target(t.id);
            s.sent.push_back(
                {request_message::answer, t.id, t.tag, request_machine::nobody, is_written}
            );
            s.machine.answered(t.id, out);
        } else {
            s.machine.drop(t.id, out);
        }
        s.open.erase(s.open.begin() + static_cast<std::ptrdiff_t>(which));
    }
    void cancel(side& s, std::uint32_t i) {
        --cancels_left;
        s.requests[i].is_cancelled = true;
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
            for (auto* const list : {&s.unsent, &s.failed}) {
                for (std::uint32_t const i : std::exchange(*list, {})) s.machine.sent(i, true, out);
            }
        }
        can_write = false;
        for (side& s : sides) {
            actions out{*this, s};
            s.machine.connection_ended(out);
            while (!s.done.empty()) call_handler(s);
            s.sent.clear();
            s.open.clear();
        }
    }

    template <class Visit>
    void for_each_step(Visit const& visit) const {
        if (is_lost) return;
        for (std::size_t k = 0; k < 2; ++k) {
            side const& s = sides[k];
            if (s.to_ask > 0 && s.machine.may_ask()) visit([k](dialogue& d) { d.ask(d.sides[k]); });
            if (!s.sent.empty()) visit([k](dialogue& d) { d.arrive(d.sides[k], d.sides[1 - k]); });
            for (std::size_t i = 0; i < s.unsent.size(); ++i) {
                // A small one may be acknowledged before the peer looks at it.
                if (!s.requests[s.unsent[i]].is_large || s.requests[s.unsent[i]].is_known)
                    visit([k, i](dialogue& d) { d.acknowledge(d.sides[k], i); });
            }
            if (!s.failed.empty()) visit([k](dialogue& d) { d.end_unsent(d.sides[k]); });
            if (!s.done.empty()) visit([k](dialogue& d) { d.call_handler(d.sides[k]); });
            for (std::size_t i = 0; i < s.open.size(); ++i) {
                visit([k, i](dialogue& d) { d.close(d.sides[k], i, false); });
                if (!s.machine.is_notice(s.open[i].id))
                    visit([k, i](dialogue& d) { d.close(d.sides[k], i, true); });
            }
            for (std::uint32_t i = 0; cancels_left > 0 && i < s.requests.size(); ++i) {
                if (!s.requests[i].is_over) visit([k, i](dialogue& d) { d.cancel(d.sides[k], i); });
            }
            if (s.to_ask == 0 && !s.has_finished) visit([k](dialogue& d) { d.finish(d.sides[k]); });
        }
        if (losses_left > 0) visit([](dialogue& d) { d.lose(); });
    }

    void check() {
        for (side const& s : sides) {
            if (!is_lost && s.machine.open() != s.open.size())
                wrong = "another number of open requests";
        }
    }
    // Nothing can happen any more.
    void check_end() {
        for (side const& s : sides) {
            for (mine const& m : s.requests) {
                if (!m.is_over) wrong = "a request is never over";
            }
            if (is_lost) continue;
            if (!s.may_close) wrong = "the dialogue stalls";
            if (s.machine.outstanding() != 0) wrong = "a number is never free";
        }
    }

    void append_to(std::vector<std::uint64_t>& all) const {
        for (side const& s : sides) {
            s.machine.append_to(all);
            for (message const& m : s.sent) {
                all.push_back(static_cast<std::uint64_t>(m.what) * 100 + m.id);
                all.push_back(m.tag * 100 + m.request);
                all.push_back(m.has_target);
            }
            for (mine const& m : s.requests) {
                all.push_back(m.is_cancelled + 2U * m.is_over + 4U * m.is_known + 8U * m.answer);
                all.push_back(m.tag * 2 + m.is_released);
            }
            for (auto const* const list : {&s.unsent, &s.failed, &s.done}) {
                for (std::uint32_t const i : *list) all.push_back(i);
                all.push_back(UINT64_MAX);
            }
            for (theirs const& t : s.open) all.push_back(t.tag * 100 + t.id);
            all.push_back(s.asked * 4 + s.has_finished * 2U + s.may_close);
        }
        all.push_back(static_cast<std::uint64_t>(cancels_left * 4 + losses_left * 2 + is_lost));
    }
};

}  // namespace

TEST_CASE("two sides agree in every interleaving of a few requests", "[machines]") {
    struct row {
        std::uint16_t limit;
        std::array<int, 2> requests;
        std::array<std::uint64_t, 2> notices;
        std::array<std::uint64_t, 2> larges;
        std::array<std::uint64_t, 2> targets;
        int cancels;
        int losses;
    };
    std::vector<row> rows{
        {1, {2, 0}, {0, 0}, {0, 0}, {0, 0}, 1, 1},
        {1, {1, 1}, {0, 0}, {1, 0}, {0, 0}, 1, 0},
        {1, {2, 0}, {0, 0}, {1, 0}, {3, 0}, 1, 1},
        {1, {2, 0}, {1, 0}, {2, 0}, {0, 0}, 1, 1}};
    // A sanitizer makes it 30 times as slow.
#if !defined(RCVERBS_ADDRESS_SANITIZER) && !defined(RCVERBS_THREAD_SANITIZER)
    rows.insert(
        rows.end(),
        {{2, {3, 0}, {0, 0}, {0, 0}, {0, 0}, 1, 0},
         {1, {3, 0}, {2, 0}, {4, 0}, {0, 0}, 1, 1},
         {2, {2, 0}, {0, 0}, {3, 0}, {0, 0}, 2, 1},
         {1, {2, 1}, {0, 0}, {1, 0}, {0, 0}, 1, 0},
         {1, {2, 1}, {2, 0}, {1, 1}, {0, 0}, 1, 1},
         {2, {2, 0}, {0, 0}, {1, 0}, {3, 0}, 2, 1},
         {1, {3, 0}, {0, 0}, {4, 0}, {5, 0}, 2, 1},
         {1, {1, 1}, {0, 0}, {0, 0}, {1, 1}, 2, 1},
         {2, {3, 0}, {5, 0}, {6, 0}, {0, 0}, 1, 1}}
    );
#endif
    row const r = rows[GENERATE_REF(range(std::size_t{0}, rows.size()))];
    dialogue first{r.limit, r.requests, r.notices, r.larges, r.targets};
    first.cancels_left = r.cancels;
    first.losses_left = r.losses;
    std::string wrong;
    std::size_t const states = test::explore(first, wrong);
    INFO(
        "limit " << r.limit << ", requests " << r.requests[0] << '+' << r.requests[1]
                 << ", cancels " << r.cancels << ", states " << states
    );
    CHECK(wrong == "");
    CHECK(states > 100);
}

TEST_CASE("the end cancels what the program has, which counts until it is given up", "[machines]") {
    requests_bench b;
    CHECK(b.arrive(request_message::request, 0) == request_violation::none);
    CHECK(b.arrive(request_message::notice, 1) == request_violation::none);
    CHECK_FALSE(b.m.is_cancelled(0));
    b.m.end(b.r);
    CHECK(b.m.is_cancelled(0));
    CHECK(b.m.is_cancelled(1));
    CHECK(b.m.open() == 2);
    b.m.drop(0, b.r);
    CHECK_FALSE(b.m.is_open(0));
    CHECK(b.m.open() == 1);
    b.m.drop(1, b.r);
    CHECK(b.m.open() == 0);
    // The peer is not told.
    CHECK(b.taken().empty());
}

TEST_CASE("two sides agree in long dialogues, at random", "[machines]") {
    std::mt19937 random{GENERATE(1U, 2U, 3U, 4U)};
    for (int round = 0; round < 200; ++round) {
        dialogue d{
            static_cast<std::uint16_t>(1 + random() % 4),
            {static_cast<int>(random() % 16), static_cast<int>(random() % 16)},
            {random() & random(), random() & random()},
            {random() & random(), random() & random()},
            {random(), random()}};
        d.cancels_left = static_cast<int>(random() % 6);
        d.losses_left = random() % 10 == 0 ? 1 : 0;
        for (;;) {
            std::vector<std::function<void(dialogue&)>> steps;
            d.for_each_step([&](auto const& step) { steps.emplace_back(step); });
            if (steps.empty()) break;
            // A loss is one of many steps, and rare.
            std::size_t const pick = random() % steps.size();
            bool const is_loss = d.losses_left > 0 && pick == steps.size() - 1;
            if (is_loss && steps.size() > 1 && random() % 20 != 0) continue;
            steps[pick](d);
            d.check();
            REQUIRE(d.wrong == "");
        }
        d.check_end();
        REQUIRE(d.wrong == "");
    }
}

TEST_CASE(
    "a peer of requests that lies is refused, and takes no more than its share", "[machines]"
) {
    std::mt19937 random{GENERATE(1U, 2U, 3U, 4U)};
    for (int round = 0; round < 3000; ++round) {
        request_machine m{2, 2};
        requests_recorder out;
        std::vector<std::uint16_t> open;
        std::vector<std::uint32_t> unsent;
        for (int i = 0; i < 40; ++i) {
            if (random() % 4 == 0) {
                bool const is_notice = random() % 2 == 0;
                unsent.push_back(m.add(is_notice, !is_notice && random() % 2 == 0));
                m.proceed(out);
            }
            if (random() % 4 == 0 && !open.empty()) {
                m.drop(open.back(), out);
                open.pop_back();
            }
            auto const what = static_cast<request_message>(1 + random() % 7);
            auto const id = static_cast<std::uint16_t>(random() % 4);
            std::size_t const outstanding = m.outstanding();
            bool const has_target = what == request_message::request && random() % 2 == 0;
            request_violation const v = m.arrived(what, id, random() % 2 == 0, has_target, out);
            if (v != request_violation::none) {
                CHECK(m.outstanding() == outstanding);
                break;
            }
            if (what == request_message::request || what == request_message::notice)
                open.push_back(id);
            REQUIRE(open.size() <= 2);
            REQUIRE(m.open() == open.size());
            REQUIRE(m.outstanding() <= 2);
        }
    }
}
