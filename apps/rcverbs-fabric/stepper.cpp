#include "stepper.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "background.hpp"
#include "stepping.hpp"

namespace rcverbs::fabric {

namespace {

using detail::descriptor;
using detail::directory;
using detail::step_message;
using detail::step_source;
using detail::step_word;
using std::chrono::nanoseconds;
using steady = std::chrono::steady_clock;

constexpr nanoseconds step_time = std::chrono::microseconds{1};
// A process that neither runs nor is stopped, and says nothing for so long, is left out from then on.
constexpr std::chrono::seconds answer_max{10};
constexpr std::chrono::microseconds between_looks{100};
// A thread that computes for so long without waiting looks at memory until a peer writes there. Longer than a program takes to
// start, also where the processor is shared with other machines.
constexpr nanoseconds spin_time = std::chrono::milliseconds{20};

// --- threads of a process ------------------------------------------------------------------------

struct thread_look {
    pid_t number = 0;
    char state = 'R';
    std::uint64_t switches = 0;
    std::uint64_t cpu_ns = 0;
};

std::string read_file(std::string const& path) {
    descriptor const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    std::string text(4096, '\0');
    ssize_t const size = file ? ::read(file.get(), text.data(), text.size()) : -1;
    text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return text;
}

std::uint64_t number_after(std::string_view text, std::string_view name) {
    std::size_t const at = text.find(name);
    if (at == std::string_view::npos) return 0;
    std::size_t const begin = text.find_first_of("0123456789", at + name.size());
    std::uint64_t number = 0;
    if (begin != std::string_view::npos)
        std::from_chars(text.data() + begin, text.data() + text.size(), number);
    return number;
}

// Source: proc_pid_status(5), proc_pid_schedstat (Documentation/scheduler/sched-stats.rst).
std::vector<thread_look> look_at(pid_t process) {
    std::vector<thread_look> threads;
    std::string const folder = "/proc/" + std::to_string(process) + "/task";
    std::unique_ptr<DIR, int (*)(DIR*)> const all{::opendir(folder.c_str()), ::closedir};
    while (dirent const* const entry = all ? ::readdir(all.get()) : nullptr) {
        if (entry->d_name[0] == '.') continue;
        std::string const thread = folder + '/' + entry->d_name;
        std::string const status = read_file(thread + "/status");
        std::size_t const state = status.find("State:\t");
        if (state == std::string::npos) continue;  // it has ended
        thread_look t;
        t.number = std::atoi(entry->d_name);
        t.state = status[state + 7];
        t.switches = number_after(status, "\nvoluntary_ctxt_switches:");
        if (t.state == 'R') t.cpu_ns = number_after(read_file(thread + "/schedstat"), "");
        threads.push_back(t);
    }
    std::ranges::sort(threads, {}, &thread_look::number);
    return threads;
}

// --- processes -----------------------------------------------------------------------------------

struct member {
    explicit member(descriptor of) : socket{std::move(of)} {}

    descriptor socket;
    pid_t process = 0;
    // Unknown until its hello has arrived and was found true.
    std::optional<step_source> who;
    pid_t network_thread = 0;
    std::vector<thread_look> threads;
    // Of each thread that computes: how it was seen first in this step.
    std::map<pid_t, thread_look> computing;
    step_message answer;
    std::vector<step_source> ready;
    bool is_asked = false;
    bool is_working = false;
    // What it could do next has changed since its last answer.
    bool has_changed = false;
    bool has_ended = false;

    bool is_stopped() const {
        return std::ranges::any_of(threads, [](auto const& t) {
            return t.state == 'T' || t.state == 't';
        });
    }
    void look() {
        threads = look_at(process);
        for (thread_look const& t : threads) {
            if (t.state != 'R') continue;
            auto const [first, is_new] = computing.emplace(t.number, t);
            if (!is_new && first->second.switches != t.switches) first->second = t;
        }
    }
    bool has_spun(thread_look const& t) const {
        auto const first = computing.find(t.number);
        return t.state == 'R' && first != computing.end() &&
               t.cpu_ns > first->second.cpu_ns + std::uint64_t(spin_time.count());
    }
    bool rests() const {
        return std::ranges::all_of(threads, [this](thread_look const& t) {
            return std::strchr("STtZXI", t.state) != nullptr || has_spun(t);
        });
    }
    // True if a thread of the program has run between two looks.
    bool has_run_since(std::vector<thread_look> const& before) const {
        return !std::ranges::equal(threads, before, [this](auto const& a, auto const& b) {
            return a.number == b.number &&
                   (a.number == network_thread || a.switches == b.switches || has_spun(a));
        });
    }
};

// What may be done next: by whom, and the timers of that process if there is no source.
struct choice {
    member* who = nullptr;
    std::optional<step_source> source;
};

class stepper {
public:
    stepper(directory in, background& of, std::uint64_t seed)
        : where_{std::move(in)},
          of_{of},
          random_{seed} {
        lock_ = where_.take_stepper(seed);
        if (!lock_) throw std::runtime_error{"this network has a stepper already"};
        listener_ = detail::listen_at(where_.stepper_path());
        if (!listener_) throw std::runtime_error{where_.stepper_path() + ": no socket can be made"};
    }
    ~stepper() {
        if (listener_) ::unlink(where_.stepper_path().c_str());
    }
    void run() {
        while (!is_over()) {
            if (!settle()) continue;
            std::vector<choice> const all = choices();
            if (all.empty()) wait_for_change();
            else take(all[random_() % all.size()]);
        }
    }

private:
    bool is_over() {
        if (!is_command_over_) {
            pollfd p{of_.life().get(), POLLIN, 0};
            is_command_over_ = ::poll(&p, 1, 0) > 0;
        }
        return is_command_over_ && members_.empty();
    }
    // Waits until something arrives, and takes it.
    void hear(nanoseconds at_most) {
        std::vector<pollfd> all{{listener_.get(), POLLIN, 0}};
        if (!is_command_over_) all.push_back({of_.life().get(), POLLIN, 0});
        for (auto const& m : members_) all.push_back({m->socket.get(), POLLIN, 0});
        timespec const t{at_most.count() / 1'000'000'000, at_most.count() % 1'000'000'000};
        if (::ppoll(all.data(), all.size(), &t, nullptr) <= 0) return;
        for (;;) {
            descriptor socket{
                ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
            if (!socket) break;
            if (auto made = welcome(std::move(socket))) members_.push_back(std::move(made));
        }
        for (auto const& m : members_) {
            while (!m->has_ended && take_message(*m)) continue;
        }
        std::erase_if(members_, [](auto const& m) { return m->has_ended; });
    }
    bool take_message(member& from) {
        std::array<std::byte, sizeof(step_message) + detail::step_sources_max * sizeof(step_source)>
            bytes;
        ssize_t const size = ::recv(from.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        step_message m;
        bool is_right = size >= static_cast<ssize_t>(sizeof m);
        if (is_right) {
            std::memcpy(&m, bytes.data(), sizeof m);
            is_right = m.count <= detail::step_sources_max &&
                       static_cast<std::size_t>(size) == sizeof m + m.count * sizeof(step_source) &&
                       (m.what == step_word::hello) == !from.who;
        }
        if (is_right && m.what == step_word::hello) is_right = introduce(from, m.source);
        if (!is_right) {
            from.has_ended = true;
            return false;
        }
        if (m.what == step_word::answer) {
            from.is_asked = false;
            from.has_changed = false;
            from.network_thread = m.thread;
            from.answer = m;
            from.ready.resize(m.count);
            std::memcpy(from.ready.data(), bytes.data() + sizeof m, m.count * sizeof(step_source));
            std::ranges::sort(from.ready);
        } else if (m.what == step_word::changed) {
            from.has_changed = true;
        } else if (m.what == step_word::done) {
            from.is_working = false;
        }
        return true;
    }
    // The kernel says which process it is; before its hello, too, nothing is done while it runs.
    static std::unique_ptr<member> welcome(descriptor socket) {
        ucred peer{};
        socklen_t size = sizeof peer;
        ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
        if (peer.pid == 0) {
            complain("a process of another PID namespace cannot be stepped");
            return nullptr;
        }
        auto made = std::make_unique<member>(std::move(socket));
        made->process = peer.pid;
        return made;
    }
    // The lock of its slot says that it is what it says.
    bool introduce(member& m, step_source const& who) {
        if (!where_.is_end_of(m.socket.get(), who.node, who.slot)) return false;
        m.who = who;
        return true;
    }
    void tell(member& to, step_word what, step_source const& source = {}) {
        step_message m;
        m.what = what;
        m.source = source;
        m.step = step_;
        m.now_ns = now_.count();
        static_cast<void>(::send(to.socket.get(), &m, sizeof m, MSG_NOSIGNAL));
    }
    bool look() {
        bool all = true;
        for (auto const& m : members_) {
            m->look();
            all = all && m->rests();
        }
        return all;
    }
    // True once all processes rest and have said what they could do next. Then nothing happens without a step, save for what comes from outside.
    bool settle() {
        hear(nanoseconds{0});
        if (!look()) {
            hear(between_looks);
            return false;
        }
        std::vector<std::vector<thread_look>> before;
        for (auto const& m : members_) {
            before.push_back(m->threads);
            // Who is stopped says nothing.
            m->is_asked = m->who && !m->is_stopped();
            m->ready.clear();
            m->answer = {};
            if (m->is_asked) tell(*m, step_word::query);
        }
        std::size_t const asked = members_.size();
        auto const deadline = steady::now() + answer_max;
        while (std::ranges::any_of(members_, [](auto const& m) { return m->is_asked; })) {
            hear(std::chrono::milliseconds{1});
            if (members_.size() != asked) return false;
            for (auto const& m : members_) {
                if (m->is_asked) m->look();
                if (m->is_stopped()) m->is_asked = false;
                if (m->is_asked && steady::now() > deadline) m->has_ended = true;
            }
        }
        bool has_run = !look();
        for (std::size_t i = 0; i < members_.size(); ++i) {
            member const& m = *members_[i];
            has_run =
                has_run || m.answer.is_restless || m.has_changed || m.has_run_since(before[i]);
        }
        if (has_run) hear(between_looks);
        return !has_run;
    }
    std::vector<choice> choices() {
        std::ranges::sort(members_, {}, [](auto const& m) {
            return m->who.value_or(step_source{});
        });
        std::vector<choice> all;
        for (auto const& m : members_) {
            for (step_source const& s : m->ready) all.push_back({m.get(), s});
            if (m->answer.next_ns >= 0 && m->answer.next_ns <= now_.count())
                all.push_back({m.get(), {}});
        }
        return all;
    }
    // Time goes on, until the next timer or until a program does something by itself.
    void wait_for_change() {
        nanoseconds until = now_ + std::chrono::hours{1};
        for (auto const& m : members_) {
            if (m->answer.next_ns >= 0) until = std::min(until, nanoseconds{m->answer.next_ns});
        }
        auto const began = steady::now();
        hear(until - now_);
        now_ = std::min(until, now_ + (steady::now() - began));
    }
    void take(choice const& next) {
        ++step_;
        now_ += step_time;
        for (auto const& m : members_) m->computing.clear();
        member* const who = next.who;
        who->is_working = true;
        if (next.source) tell(*who, step_word::take, *next.source);
        else tell(*who, step_word::run);
        // Until it has ended or has done it.
        auto const works = [&] {
            return std::ranges::any_of(members_, [&](auto const& m) {
                return m.get() == who && m->is_working;
            });
        };
        while (works()) hear(std::chrono::seconds{1});
    }

    directory const where_;
    background& of_;
    std::mt19937_64 random_;
    descriptor lock_;
    descriptor listener_;
    std::vector<std::unique_ptr<member>> members_;
    bool is_command_over_ = false;
    std::uint64_t step_ = 0;
    nanoseconds now_{0};
};

}  // namespace

descriptor start_stepper(directory const& where, std::uint64_t seed) {
    auto [report, life] = start_background([&](background& self) {
        stepper s{directory{where.path()}, self, seed};
        self.report("ready");
        s.run();
    });
    if (report != "ready") throw std::runtime_error{"the stepper: " + report};
    return std::move(life);
}

}  // namespace rcverbs::fabric
