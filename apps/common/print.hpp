// print.hpp — output lines of the programs.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace demo {

/// Prints a line to standard output.
void print(std::string const& line);
/// The errno of the first line of print() that could not be written; 0 if there is none. A reader that leaves is no
/// error. While lines are printed in the background, of those that were printed.
int output_error() noexcept;
/// Prints a line to standard error, prefixed with the program's name.
void print_error(std::string const& line);

/// While it exists, a thread of its own prints the lines, and print() and print_error() never wait:
/// whoever stops reading a server's output does not stop the server. At most lines_max lines wait;
/// the number of further ones is printed when there is room again. Nor does a reader that leaves end
/// the program (SIGPIPE). At most one at a time.
class background_printing {
public:
    static constexpr std::size_t lines_max = 1000;

    background_printing();
    background_printing(background_printing const&) = delete;
    background_printing& operator=(background_printing const&) = delete;
    /// Waits until all lines are printed, for one second at most.
    ~background_printing();

private:
    class printer;
    std::shared_ptr<printer> const printer_;
    friend void print(std::string const&);
    friend void print_error(std::string const&);
    // Other threads may print until the end.
    static std::shared_ptr<printer> exchange(std::shared_ptr<printer> const* with);
};

}  // namespace demo
