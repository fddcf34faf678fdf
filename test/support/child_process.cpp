#include "support/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

extern char** environ;

namespace test {

using clock = std::chrono::steady_clock;

child_process::child_process(std::vector<std::string> arguments) {
    int out[2];
    int err[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0)
        throw std::runtime_error{"pipe2"};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    std::vector<char*> argv;
    for (std::string& a : arguments) {
        argv.push_back(a.data());
        command_ += a + ' ';
    }
    argv.push_back(nullptr);
    int const failed = ::posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(out[1]);
    ::close(err[1]);
    streams_[0].descriptor = out[0];
    streams_[1].descriptor = err[0];
    if (failed != 0) throw std::system_error{failed, std::generic_category(), arguments[0]};
}

child_process::child_process(child_process&& other) noexcept
    : command_{std::move(other.command_)},
      pid_{std::exchange(other.pid_, -1)},
      status_{other.status_} {
    for (int i = 0; i < 2; ++i) {
        streams_[i].descriptor = std::exchange(other.streams_[i].descriptor, -1);
        streams_[i].text = std::move(other.streams_[i].text);
    }
}

child_process& child_process::operator=(child_process&& other) noexcept {
    child_process moved{std::move(other)};
    std::swap(command_, moved.command_);
    std::swap(pid_, moved.pid_);
    std::swap(status_, moved.status_);
    std::swap(streams_, moved.streams_);
    return *this;
}

child_process::~child_process() {
    bool const is_running = pid_ > 0 && !status_;
    if (is_running) {
        ::kill(pid_, SIGKILL);
        reap(true);
    }
    if (pid_ > 0) {
        // The end of an output says most.
        constexpr std::size_t shown_max = 30000;
        std::string const end = is_running ? "killed by the test" : std::to_string(*status_);
        transcript() += "--- " + command_ + "(exit status: " + end + ")\n";
        for (stream const& s : streams_)
            transcript() += s.text.substr(s.text.size() - std::min(s.text.size(), shown_max));
    }
    for (stream& s : streams_) {
        if (s.descriptor >= 0) ::close(s.descriptor);
    }
}

std::string& transcript() {
    static std::string text;
    return text;
}

bool child_process::reap(bool block) {
    int status = 0;
    if (status_ || ::waitpid(pid_, &status, block ? 0 : WNOHANG) != pid_)
        return status_.has_value();
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}

// Waits for output for at most `patience`; false once both streams have ended.
bool child_process::read_some(std::chrono::milliseconds patience) {
    pollfd waits[2] = {{streams_[0].descriptor, POLLIN, 0}, {streams_[1].descriptor, POLLIN, 0}};
    ::poll(waits, 2, static_cast<int>(patience.count()));
    for (int i = 0; i < 2; ++i) {
        stream& s = streams_[i];
        if (s.descriptor < 0 || waits[i].revents == 0) continue;
        char buffer[4096];
        ssize_t const count = ::read(s.descriptor, buffer, sizeof buffer);
        if (count > 0) {
            s.text.append(buffer, static_cast<std::size_t>(count));
        } else {
            ::close(s.descriptor);
            s.descriptor = -1;
        }
    }
    return streams_[0].descriptor >= 0 || streams_[1].descriptor >= 0;
}

bool child_process::wait_for(
    stream const& s, std::string const& text, std::chrono::milliseconds deadline
) {
    auto const until = clock::now() + deadline;
    while (s.text.find(text) == std::string::npos) {
        if (clock::now() >= until || !read_some(20ms))
            return s.text.find(text) != std::string::npos;
    }
    return true;
}

bool child_process::wait_for_output(std::string const& text, std::chrono::milliseconds deadline) {
    return wait_for(streams_[0], text, deadline);
}

bool child_process::wait_for_error(std::string const& text, std::chrono::milliseconds deadline) {
    return wait_for(streams_[1], text, deadline);
}

std::optional<int> child_process::wait(std::chrono::milliseconds deadline) {
    auto const until = clock::now() + deadline;
    while (!reap(false) && clock::now() < until) {
        if (!read_some(10ms)) {
            // Both streams have ended; the process will exit shortly.
            pollfd none{-1, 0, 0};
            ::poll(&none, 1, 1);
        }
    }
    while (status_ && read_some(0ms)) {
        // Reads the last output; does not wait for a stream that a grandchild holds open.
        pollfd waits[2] = {
            {streams_[0].descriptor, POLLIN, 0}, {streams_[1].descriptor, POLLIN, 0}};
        if (::poll(waits, 2, 0) == 0) break;
    }
    return status_;
}

void child_process::signal(int number) const { ::kill(pid_, number); }

std::vector<std::string> child_process::output_lines() const {
    std::vector<std::string> lines;
    std::istringstream in{output()};
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

std::string output_of(std::vector<std::string> arguments) {
    child_process child{std::move(arguments)};
    child.wait();
    return child.output();
}

}  // namespace test
