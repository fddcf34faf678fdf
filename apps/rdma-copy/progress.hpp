// progress.hpp — what a copy says while it goes on, and at its end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "rdma-copy/result.hpp"

namespace copy {

/// With a unit of 1024s: `1.5 MiB`.
std::string in_units(std::uint64_t bytes);
/// `3:07`, `1:02:45`.
std::string in_minutes(std::chrono::seconds time);

/// The rate of the last seconds.
class pace {
public:
    /// To be called several times a second. Bytes that an earlier copy has left are not counted.
    void sample(std::chrono::steady_clock::time_point now, result const& r);
    /// Bytes per second; 0 as long as it is unknown.
    double rate() const noexcept;

private:
    std::deque<std::pair<std::chrono::steady_clock::time_point, std::uint64_t>> samples_;
};

/// One line: how much of how much, rate, time left, and the file.
///
/// @param width  Columns of the terminal; the line is not longer.
std::string progress_line(result const& r, double bytes_per_second, std::size_t width);
/// What finished entries have lost, in a line; empty if that is nothing.
std::string text_of(not_kept const& lost);
/// The line at the end.
std::string summary(result const& r, std::chrono::duration<double> took);

/// What a server has done for a client, for its log: direction, path, entries and bytes. REQUIRES: r.asked.
std::string served(result const& r);

/// An entry that was not copied.
struct failed_entry {
    std::string path;
    std::string why;
};

/// One JSON object in a line, with this type, of a copy that writes nothing.
std::string listed_json(std::string const& type, std::string const& path);
/// One JSON object in a line, `"type": "progress"`.
std::string progress_json(result const& r, double bytes_per_second);
/// One JSON object in a line, `"type": "result"`.
///
/// @param error  Why the whole copy has failed; empty if it has not.
std::string result_json(
    result const& r,
    std::vector<failed_entry> const& failures,
    std::string const& error,
    std::chrono::duration<double> took
);

}  // namespace copy
