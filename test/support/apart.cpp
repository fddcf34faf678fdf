#include "support/apart.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string_view>

namespace {

using test::apart_options;
using test::apart_role;
using steady = std::chrono::steady_clock;

[[noreturn]] void give_up(std::string const& why, int status) {
    std::fprintf(stderr, "--apart: %s\n", why.c_str());
    std::exit(status);
}

/// A file in memory for the output of a process.
int make_output() {
    int const descriptor = memfd_create("output", MFD_CLOEXEC);
    if (descriptor < 0) give_up(std::string{"memfd_create: "} + std::strerror(errno), 3);
    return descriptor;
}

std::string take_output(int descriptor) {
    std::string text;
    std::array<char, 1 << 14> part;
    lseek(descriptor, 0, SEEK_SET);
    for (ssize_t n = 0; (n = read(descriptor, part.data(), part.size())) > 0;)
        text.append(part.data(), static_cast<std::size_t>(n));
    close(descriptor);
    return text;
}

/// Returns 0 in the child. The child writes to `output` and leads its own process group, so that
/// its descendants can be killed with it.
pid_t fork_into(int output) {
    std::fflush(nullptr);
    pid_t const child = fork();
    if (child < 0) give_up(std::string{"fork: "} + std::strerror(errno), 3);
    if (child == 0) {
        setpgid(0, 0);
        dup2(output, STDOUT_FILENO);
        dup2(output, STDERR_FILENO);
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGCHLD);
        sigprocmask(SIG_UNBLOCK, &signals, nullptr);
    }
    return child;
}

/// Escapes a name for Catch2's command line.
std::string escaped(std::string const& name) {
    std::string text;
    for (char const c : name) {
        if (c == '\\' || c == ',' || c == '[' || c == ']') text += '\\';
        text += c;
    }
    return text;
}

/// Quotes a word for a shell.
std::string quoted(std::string const& word) {
    std::string text = "'";
    for (char const c : word) text += c == '\'' ? std::string{"'\\''"} : std::string{c};
    return text + "'";
}

struct running {
    std::size_t index = 0;
    pid_t pid = -1;
    int output = -1;
    steady::time_point began;
    bool is_late = false;
};

class report {
public:
    report(std::string const& program, std::vector<std::string> const& names)
        : program_{program},
          names_{names} {
        for (auto const& name : names) width_ = std::max(width_, name.size());
    }

    void ended(running const& one, int status, std::string const& output) {
        std::chrono::duration<double> const took = steady::now() - one.began;
        bool const has_passed = WIFEXITED(status) && WEXITSTATUS(status) == 0 && !one.is_late;
        bool const was_left_out = has_passed && output.find("skipped: ") != std::string::npos;
        std::string verdict = "   Passed ";
        if (one.is_late) verdict = "***Timeout";
        else if (WIFSIGNALED(status))
            verdict = "***Exception: signal " + std::to_string(WTERMSIG(status));
        else if (!has_passed) verdict = "***Failed ";
        else if (was_left_out) verdict = "***Skipped";
        std::string const& name = names_[one.index];
        std::printf(
            "%3zu/%zu Test %4s: %s %s%s %6.2f sec\n",
            ++done_,
            names_.size(),
            ("#" + std::to_string(one.index + 1)).c_str(),
            name.c_str(),
            std::string(width_ + 3 - name.size(), '.').c_str(),
            verdict.c_str(),
            took.count()
        );
        if (!has_passed) failed_.push_back(one.index);
        if (!has_passed || was_left_out) std::fwrite(output.data(), 1, output.size(), stdout);
        if (!has_passed)
            std::printf("\nalone: %s %s\n", program_.c_str(), quoted(escaped(name)).c_str());
        std::fflush(stdout);
    }

    int conclude(steady::time_point began) const {
        std::size_t const all = names_.size();
        std::printf(
            "\n%zu%% tests passed, %zu tests failed out of %zu\n\nTotal Test time (real) = %.2f "
            "sec\n",
            all == 0 ? 0 : (all - failed_.size()) * 100 / all,
            failed_.size(),
            all,
            std::chrono::duration<double>(steady::now() - began).count()
        );
        if (!failed_.empty()) std::printf("\nThe following tests FAILED:\n");
        for (std::size_t const index : failed_)
            std::printf("%5zu - %s\n", index + 1, names_[index].c_str());
        if (all == 0) std::printf("No tests were found!!!\n");
        std::fflush(stdout);
        return all == 0 || !failed_.empty() ? 1 : 0;
    }

private:
    std::string const& program_;
    std::vector<std::string> const& names_;
    std::size_t width_ = 0;
    std::size_t done_ = 0;
    std::vector<std::size_t> failed_;
};

std::vector<std::string> lines_of(std::string const& text) {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
        std::size_t const end = std::min(text.find('\n', at), text.size());
        if (end > at) lines.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return lines;
}

template <class Number>
Number number_in(std::string_view argument, std::string_view option) {
    Number value{};
    auto const text = argument.substr(option.size());
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < 1)
        give_up("not a number above 0: " + std::string{argument}, 2);
    return value;
}

}  // namespace

std::optional<apart_options> test::asks_for_apart(int argc, char** argv) {
    if (argc < 2 || std::string_view{argv[1]} != "--apart") return std::nullopt;
    apart_options options;
    for (int i = 2; i < argc; ++i) {
        std::string_view const argument{argv[i]};
        if (argument.starts_with("--timeout="))
            options.timeout = std::chrono::seconds{number_in<int>(argument, "--timeout=")};
        else if (argument.starts_with("--jobs="))
            options.jobs = number_in<unsigned>(argument, "--jobs=");
        else if (options.spec.empty() && !argument.starts_with("-")) options.spec = argument;
        else give_up("unexpected argument " + std::string{argument}, 2);
    }
    return options;
}

apart_role test::run_apart(
    apart_options const& options,
    std::string const& program,
    std::vector<std::string> const& arguments_to_list
) {
    auto const began = steady::now();
    sigset_t child_signal;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_signal, nullptr);

    // Catch2 allows one session per process: a separate process lists the names.
    int const list = make_output();
    pid_t const lister = fork_into(list);
    if (lister == 0) {
        std::vector<std::string> arguments{program};
        arguments.insert(arguments.end(), arguments_to_list.begin(), arguments_to_list.end());
        if (!options.spec.empty()) arguments.push_back(options.spec);
        return {std::nullopt, arguments};
    }
    int status = 0;
    waitpid(lister, &status, 0);
    std::string const listed = take_output(list);
    if (!WIFEXITED(status)) give_up("the test cases cannot be listed:\n" + listed, 3);
    std::vector<std::string> const names = lines_of(listed);

    report report{program, names};
    std::deque<running> all;
    for (std::size_t next = 0; next < names.size() || !all.empty();) {
        while (next < names.size() && all.size() < options.jobs) {
            running one;
            one.index = next;
            one.output = make_output();
            one.began = steady::now();
            one.pid = fork_into(one.output);
            if (one.pid == 0) return {std::nullopt, {program, escaped(names[next])}};
            all.push_back(one);
            ++next;
        }
        timespec const patience{0, 100'000'000};
        sigtimedwait(&child_signal, nullptr, &patience);
        for (auto it = all.begin(); it != all.end();) {
            if (steady::now() - it->began > options.timeout && !it->is_late) {
                it->is_late = true;
                kill(-it->pid, SIGKILL);
            }
            if (waitpid(it->pid, &status, WNOHANG) != it->pid) {
                ++it;
                continue;
            }
            // Kills the processes that the test case left behind.
            kill(-it->pid, SIGKILL);
            report.ended(*it, status, take_output(it->output));
            it = all.erase(it);
        }
    }
    return {report.conclude(began), {}};
}
