// report.hpp — one page of HTML that holds all it shows: tables and plots, as a browser draws them without a network and without
// a program of the page's own.
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
        /// What is said of it when it is pointed at.
        std::string label;
    };
    std::string name;
    std::vector<point> points;
};

/// A plot. x grows by powers; y begins at 0 or grows by powers.
struct plot {
    std::string title;
    std::string x_title;
    std::string y_title;
    /// Whether x is of bytes (powers of two) or not (powers of ten).
    bool is_x_bytes = false;
    bool is_y_logarithmic = false;
    std::vector<curve> curves;
};

/// The plot as an SVG element.
std::string to_svg(plot const& p);
/// The page.
std::string report_html(record const& r);

}  // namespace rdma_bench
