// report.hpp — a self-contained HTML page with tables and plots: no network, no scripts.
#pragma once

#include <string>
#include <vector>

#include "rdma-bench/output.hpp"

namespace rdma_bench {

/// A line of points in a plot.
struct curve {
    struct point {
        double x;
        double y;
        /// The tooltip.
        std::string label;
    };
    std::string name;
    std::vector<point> points;
};

/// A plot. x is logarithmic, or linear from 0; y is linear from 0, or logarithmic.
struct plot {
    std::string title;
    std::string x_title;
    std::string y_title;
    /// True if x is in bytes (powers of two), false for powers of ten.
    bool is_x_bytes = false;
    bool is_y_logarithmic = false;
    std::vector<curve> curves;
    bool is_x_linear = false;
};

/// The plot as an SVG element.
std::string to_svg(plot const& p);
/// The page.
std::string report_html(record const& r);

}  // namespace rdma_bench
