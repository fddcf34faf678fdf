// Checks the library's lock-free parts with Relacy, which executes their threads in many orders and lets each load return every value
// that the memory model of C++ allows. A race, a lost wake-up or a wrong result is a failure.
//
// Then each memory order in them is weakened, one at a time, and a model must fail: an order that may be weaker is too strong, or not
// tested. The headers are copies of the library's, made by generate.py.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <ostream>
#include <utility>

#include <rcverbs/detail/handler_memory.hpp>
#include <relacy/relacy.hpp>

// Relacy's words for its own allocations.
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno

namespace model {

// The order that is weakened, by number, and what it is then.
int weakened = -1;
rl::memory_order weaker = rl::mo_relaxed;

rl::memory_order order(int number, rl::memory_order written) {
    return number == weakened ? weaker : written;
}

// With waits as std::atomic has them. A wait that misses its wake-up is a deadlock.
template <class T>
class atomic : public rl::atomic<T> {
public:
    explicit atomic(T value) : rl::atomic<T>(value) {}

    void wait(T old, rl::memory_order how, rl::debug_info const& where) {
        mutex_.lock(where);
        while (this->load(how, where) == old) changed_.wait(mutex_, where);
        mutex_.unlock(where);
    }
    void notify_one() {
        mutex_.lock($);
        changed_.notify_one($);
        mutex_.unlock($);
    }

private:
    rl::mutex mutex_;
    rl::condition_variable changed_;
};

// Memory that must not be used by two threads at a time.
template <class T>
class plain {
public:
    explicit plain(T value) { value_($) = value; }
    plain(plain const& other) : plain{static_cast<T>(other)} {}
    plain& operator=(T value) {
        value_($) = value;
        return *this;
    }
    operator T() const { return value_($); }

private:
    mutable rl::var<T> value_;
};

}  // namespace model

#include "hosting/gate.hpp"
#include "hosting/light_mutex.hpp"

namespace {

using rcverbs::hosting::gate;
using rcverbs::hosting::light_mutex;
using rcverbs::hosting::order_task;

struct counted {
    model::plain<int> value{0};
    void add() { value = value + 1; }
};

// Three threads count under a mutex: one waits, and one comes when another one has woken it.
struct mutex_model : rl::test_suite<mutex_model, 3> {
    light_mutex mutex;
    counted count;

    void thread(unsigned /*index*/) {
        for (int i = 0; i < 2; ++i) {
            mutex.lock();
            count.add();
            mutex.unlock();
        }
    }
    void after() { RL_ASSERT(count.value == 6); }
};

// A task that reads what its thread has written before.
struct task final : order_task {
    counted* count = nullptr;
    model::plain<int> argument{0};
    model::plain<int> runs{0};
    model::plain<int> drops{0};

    void run(bool is_wanted) override {
        RL_ASSERT(argument == 7);
        if (!is_wanted) return void(drops = drops + 1);
        count->add();
        runs = runs + 1;
    }
};

void leave(gate& g) {
    while (!g.try_leave()) g.run_handed_over();
}

void run_in(gate& g, task& t) {
    t.argument = 7;
    if (g.hand_over(t)) return;
    t.run(true);
    leave(g);
}

// Three threads: each enters, or has who is inside run its task.
struct gate_model : rl::test_suite<gate_model, 3> {
    gate g;
    counted count;
    task tasks[3];

    void before() {
        for (task& t : tasks) t.count = &count;
    }
    void thread(unsigned index) {
        if (index == 0 && g.try_enter()) {
            tasks[0].argument = 7;
            tasks[0].run(true);
            return leave(g);
        }
        run_in(g, tasks[index]);
    }
    void after() {
        RL_ASSERT(count.value == 3);
        for (task& t : tasks) RL_ASSERT(t.runs == 1 && t.drops == 0);
    }
};

// One thread closes: each task is run or cleaned up, once.
struct closed_gate_model : rl::test_suite<closed_gate_model, 3> {
    gate g;
    counted count;
    task tasks[3];

    void before() {
        for (task& t : tasks) t.count = &count;
    }
    void thread(unsigned index) {
        if (index != 0) return run_in(g, tasks[index]);
        while (!g.try_enter()) rl::yield(1, $);
        count.add();
        g.close();
    }
    void after() {
        int runs = 0;
        for (int i = 1; i < 3; ++i) {
            RL_ASSERT(tasks[i].runs + tasks[i].drops == 1);
            runs += tasks[i].runs;
        }
        RL_ASSERT(count.value == 1 + runs);
    }
};

struct numbered_order {
    char const* file;
    int line;
    rl::memory_order order;
};
constexpr numbered_order orders[] = {
#include "orders.inc"
};

template <class Model>
bool holds(rl::iteration_t iterations, bool prints) {
    std::ostream ignored{nullptr};
    rl::test_params how;
    how.iteration_count = iterations;
    how.output_history = prints;
    if (!prints) how.output_stream = how.progress_stream = &ignored;
    return rl::simulate<Model>(how);
}

constexpr int failed = 3;

bool all_hold(rl::iteration_t iterations, bool prints) {
    return holds<mutex_model>(iterations, prints) && holds<gate_model>(iterations, prints) &&
           holds<closed_gate_model>(iterations, prints);
}

// True if a model fails with the order weakened. In a process of its own, because Relacy does not survive a failure.
bool is_needed(int number, rl::memory_order weaker) {
    std::fflush(nullptr);
    pid_t const child = ::fork();
    if (child == 0) {
        model::weakened = number;
        model::weaker = weaker;
        ::_exit(all_hold(20'000, false) ? 0 : failed);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    bool const is_noticed = WIFEXITED(status) && WEXITSTATUS(status) == failed;
    numbered_order const& o = orders[number];
    std::printf(
        "%s:%d: %s as %s: %s\n",
        o.file,
        o.line,
        rl::format(o.order),
        rl::format(weaker),
        is_noticed ? "fails" : "NOT NOTICED"
    );
    return is_noticed;
}

}  // namespace

int main() {
    bool is_good = all_hold(50'000, true);
    for (int i = 0; i < static_cast<int>(std::size(orders)); ++i) {
        if (orders[i].order == rl::mo_acq_rel) {
            is_good &= is_needed(i, rl::mo_acquire);
            is_good &= is_needed(i, rl::mo_release);
        } else {
            is_good &= is_needed(i, rl::mo_relaxed);
        }
    }
    std::puts(is_good ? "passed" : "FAILED");
    return is_good ? 0 : 1;
}
