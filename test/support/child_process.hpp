// child_process.hpp — a program under test: starts it, reads its output, waits for it with a
// deadline, and always cleans up.
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
    /// Starts `arguments[0]` (found in the PATH) and captures both outputs.
    explicit child_process(std::vector<std::string> arguments);
    child_process(child_process&& other) noexcept;
    child_process& operator=(child_process&& other) noexcept;
    /// Kills it if it still runs.
    ~child_process();

    pid_t pid() const noexcept { return pid_; }
    /// Reads until standard output (or error) contains `text`; false if the deadline passes or the
    /// program ends first.
    bool wait_for_output(std::string const& text, std::chrono::milliseconds deadline = 120s);
    bool wait_for_error(std::string const& text, std::chrono::milliseconds deadline = 120s);
    /// Waits for its end. Returns the exit code, 128 + the signal that killed it, or nothing if it
    /// is still running.
    std::optional<int> wait(std::chrono::milliseconds deadline = 120s);
    void signal(int number) const;

    /// The output so far.
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

    std::string command_;
    pid_t pid_ = -1;
    std::optional<int> status_;
    stream streams_[2];
};

/// What the destroyed child processes of this test case were: command, end and output. Printed if
/// the test case fails.
std::string& transcript();

/// The standard output of a short command.
std::string output_of(std::vector<std::string> arguments);

}  // namespace test
