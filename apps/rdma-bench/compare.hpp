// compare.hpp — the results of two measurements beside each other, and conditions on their ratios.
//
// A figure has a name: TEST.SIZE.WHAT, such as write.8.rate, send.4096.cpu, read.8.median. Sizes that were
// measured several times (--repeat) have a range: without one, no difference can be told from noise.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace rdma_bench {

/// The results of one figure, in the order of the measurement.
struct series {
    std::string name;
    /// Smaller is better: times.
    bool is_cost = false;
    std::vector<double> values;

    /// The middle one; of an even number the mean of both.
    double median() const;
    /// The least and the largest, and their difference as a part of the median.
    double least() const;
    double most() const;
    double spread() const;
};

/// The figures of a file that --json has written. Throws std::runtime_error: it is none of those.
std::vector<series> read_figures(nlohmann::json const& record);

/// In what the two measurements were not asked for the same, but for the sizes; one text for each.
/// REQUIRES: read_figures() has accepted both.
std::vector<std::string> differences(nlohmann::json const& before, nlohmann::json const& after);

enum class verdict {
    better,
    worse,
    /// The ranges overlap.
    no_difference,
    /// Less than five results on a side.
    unknown,
};

struct comparison {
    series before;
    series after;

    /// Of the medians: after by before.
    double ratio() const;
    verdict decided() const;
};

/// The figures that both have. Throws std::runtime_error if there are none.
std::vector<comparison> compare(
    std::vector<series> const& before, std::vector<series> const& after
);
/// A table, one line for each figure.
std::string describe(std::vector<comparison> const& all);

/// A condition on a ratio: "write.8.rate>=0.95", or with <=.
struct condition {
    std::string name;
    bool is_at_least = true;
    double ratio = 0;

    std::string text() const;
};
/// Throws std::runtime_error.
condition parse_condition(std::string const& text);
/// Empty if it holds, else the ratio. Throws std::runtime_error if there is no such figure.
std::string problem_of(condition const& wanted, std::vector<comparison> const& all);

}  // namespace rdma_bench
