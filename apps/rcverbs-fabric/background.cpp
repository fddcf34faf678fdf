#include "background.hpp"

#include <boost/system/system_error.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

namespace rcverbs::fabric {

namespace {

using detail::descriptor;

constexpr std::chrono::milliseconds answer_timeout{10'000};

struct pipe_ends {
    descriptor out;
    descriptor in;
};
pipe_ends make_pipe(int flags) {
    int ends[2];
    if (::pipe2(ends, flags) != 0)
        throw std::runtime_error{std::string{"pipe: "} + std::strerror(errno)};
    return {descriptor{ends[0]}, descriptor{ends[1]}};
}

std::string read_line(int from) {
    std::string line;
    pollfd p{from, POLLIN, 0};
    while (::poll(&p, 1, static_cast<int>(answer_timeout.count())) > 0) {
        char c = 0;
        ssize_t const n = ::read(from, &c, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0 || c == '\n') return line;
        line += c;
    }
    return "error it does not answer";
}

}  // namespace

bool background::report(std::string const& text) {
    descriptor const to = std::exchange(status_, descriptor{});
    if (!to) return false;
    std::string const line = text + '\n';
    return ::write(to.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

started_background start_background(std::function<void(background&)> const& body) {
    pipe_ends status = make_pipe(O_CLOEXEC);
    pipe_ends life = make_pipe(0);
    pid_t const child = ::fork();
    if (child < 0) throw std::runtime_error{std::string{"fork: "} + std::strerror(errno)};
    if (child > 0) {
        static_cast<void>(::waitpid(child, nullptr, 0));
        status.in = {};
        return {read_line(status.out.get()), std::move(life.in)};
    }
    // Twice, so that the command has no child that it does not know.
    if (::fork() != 0) ::_exit(0);
    // Not a part of the command: signals of the terminal are not for it, nor is what it prints.
    ::setpgid(0, 0);
    ::signal(SIGPIPE, SIG_IGN);
    int const nowhere = ::open("/dev/null", O_RDWR);
    ::dup2(nowhere, STDIN_FILENO);
    ::dup2(nowhere, STDOUT_FILENO);
    status.out = {};
    life.in = {};
    {
        background self{std::move(life.out), std::move(status.in)};
        try {
            body(self);
        } catch (boost::system::system_error const& e) {
            self.report("error " + e.code().message());  // what() names Boost's source, too
        } catch (std::exception const& e) {
            self.report(std::string{"error "} + e.what());
        }
    }
    std::fflush(nullptr);
    ::_exit(0);
}

void complain(std::string const& what) {
    std::fprintf(stderr, "rcverbs-fabric: %s\n", what.c_str());
}

}  // namespace rcverbs::fabric
