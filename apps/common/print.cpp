#include "common/print.hpp"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <csignal>
#include <cstdio>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "common/printable.hpp"

namespace demo {

namespace {

std::atomic<int> first_output_error{0};

void note_output_error(int error) {
    int none = 0;
    if (error != EPIPE) first_output_error.compare_exchange_strong(none, error);
}

std::string error_line(std::string const& line) {
    return std::string{program_invocation_short_name} + ": " + one_line(line) + '\n';
}

}  // namespace

class background_printing::printer : public std::enable_shared_from_this<printer> {
public:
    void start() {
        // The thread keeps the printer alive: it may still wait for a reader when the program ends.
        std::thread{[self = shared_from_this()] { self->run(); }}.detach();
        is_started_ = true;
    }

    void add(int fd, std::string line) {
        {
            std::lock_guard const lock{mutex_};
            // A note and the line behind it may be one more.
            if (lines_.size() >= lines_max) {
                ++missed_;
                return;
            }
            if (missed_ > 0) lines_.emplace_back(STDERR_FILENO, missing_lines());
            lines_.emplace_back(fd, std::move(line));
        }
        changed_.notify_all();
    }

    void finish() {
        if (!is_started_) return;
        std::unique_lock lock{mutex_};
        is_finishing_ = true;
        changed_.notify_all();
        changed_.wait_for(lock, std::chrono::seconds{1}, [this] { return is_finished_; });
    }

private:
    void run() {
        // Signals are for the program's own threads. SIGPIPE stays pending here, and write() fails.
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, nullptr);
        std::unique_lock lock{mutex_};
        for (;;) {
            changed_.wait(lock, [this] { return !lines_.empty() || is_finishing_; });
            if (lines_.empty() && missed_ > 0) lines_.emplace_back(STDERR_FILENO, missing_lines());
            if (lines_.empty()) break;
            auto [fd, line] = std::move(lines_.front());
            lines_.pop_front();
            lock.unlock();
            write(fd, line);
            lock.lock();
        }
        is_finished_ = true;
        changed_.notify_all();
    }

    std::string missing_lines() {
        return error_line(
            std::to_string(std::exchange(missed_, 0)) +
            " lines were not printed, because nobody read them"
        );
    }

    static void write(int fd, std::string const& line) {
        std::size_t done = 0;
        while (done < line.size()) {
            ssize_t const n = ::write(fd, line.data() + done, line.size() - done);
            if (n > 0) done += static_cast<std::size_t>(n);
            if (n >= 0 || errno == EINTR) continue;
            if (errno != EAGAIN) {  // nobody can read it
                if (fd == STDOUT_FILENO) note_output_error(errno);
                return;
            }
            pollfd room{fd, POLLOUT, 0};
            ::poll(&room, 1, -1);
        }
    }

    bool is_started_ = false;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::pair<int, std::string>> lines_;
    std::uint64_t missed_ = 0;
    bool is_finishing_ = false;
    bool is_finished_ = false;
};

// Returns the printer in use, and replaces it unless `with` is null.
std::shared_ptr<background_printing::printer> background_printing::exchange(
    std::shared_ptr<printer> const* with
) {
    static std::mutex mutex;
    static std::shared_ptr<printer> current;
    std::lock_guard const lock{mutex};
    auto found = current;
    if (with != nullptr) current = *with;
    return found;
}

background_printing::background_printing() : printer_{std::make_shared<printer>()} {
    std::fflush(stdout);
    try {
        printer_->start();
    } catch (std::system_error const&) {
        return;  // no thread can be started: lines are printed by those who have them
    }
    exchange(&printer_);
}

background_printing::~background_printing() {
    std::shared_ptr<printer> const none;
    exchange(&none);
    printer_->finish();
}

void print(std::string const& line) {
    std::string const text = one_line(line) + '\n';
    auto const to = background_printing::exchange(nullptr);
    if (to != nullptr) to->add(STDOUT_FILENO, text);
    else if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
        note_output_error(errno);
}

int output_error() noexcept { return first_output_error; }

void print_error(std::string const& line) {
    std::string const text = error_line(line);
    auto const to = background_printing::exchange(nullptr);
    if (to != nullptr) to->add(STDERR_FILENO, text);
    else std::fputs(text.c_str(), stderr);
}

}  // namespace demo
