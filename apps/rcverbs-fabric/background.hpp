// background.hpp — processes beside the command that `rcverbs-fabric run` becomes: the bridge and the stepper of a network.
#pragma once

#include <functional>
#include <string>

#include "directory.hpp"

namespace rcverbs::fabric {

/// In such a process: what it has of the command.
class background {
public:
    background(detail::descriptor life, detail::descriptor status)
        : life_{std::move(life)},
          status_{std::move(status)} {}

    /// Readable as soon as the command and its children have ended.
    detail::descriptor const& life() const noexcept { return life_; }
    /// Says once, in a line, how its start went; false if that has been said.
    bool report(std::string const& text);

private:
    detail::descriptor life_;
    detail::descriptor status_;
};

/// Forks; the child runs `body`, and ends with it. What `body` throws is reported, or complained of if the start has
/// been reported before.
struct started_background {
    std::string report;
    /// Keeps life() as it is, also in child processes, which inherit it.
    detail::descriptor life;
};
/// Throws std::runtime_error if there can be no such process.
started_background start_background(std::function<void(background&)> const& body);

/// Prints a line to standard error.
void complain(std::string const& what);

}  // namespace rcverbs::fabric
