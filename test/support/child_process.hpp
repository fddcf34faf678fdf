// child_process.hpp — a program under test: started, listened to, waited for with a deadline, and always cleaned up.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace test {

using namespace std::chrono_literals;

class child_process {
public:
    /// Starts `arguments[0]` (found in the PATH) with both outputs caught.
    explicit child_process(std::vector<std::string> arguments);
    child_process(child_process&& other) noexcept;
    child_process& operator=(child_process&&) = delete;
    /// Kills it if it still runs.
    ~child_process();

    pid_t pid() const noexcept { return pid_; }
    /// Reads until standard output (or error) contains `text`; false if the deadline passes or the program ends before.
    bool wait_for_output(std::string const& text, std::chrono::milliseconds deadline = 20s);
    bool wait_for_error(std::string const& text, std::chrono::milliseconds deadline = 20s);
    /// Waits for its end: the exit code, 128 + the signal that killed it, or nothing if it is still running.
    std::optional<int> wait(std::chrono::milliseconds deadline = 30s);
    void signal(int number) const;

    /// What it has said so far.
    std::string const& output() const noexcept { return streams_[0].text; }
    std::string const& error() const noexcept { return streams_[1].text; }
    std::vector<std::string> output_lines() const;

private:
    struct stream {
        int descriptor = -1;
        std::string text;
    };
    bool read_some(std::chrono::milliseconds patience);
    bool reap(bool block);
    bool wait_for(stream const& s, std::string const& text, std::chrono::milliseconds deadline);

    pid_t pid_ = -1;
    std::optional<int> status_;
    stream streams_[2];
};

/// The whole of a short command's standard output.
std::string output_of(std::vector<std::string> arguments);

}  // namespace test
