#include "rdma-bench/report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "rdma-bench/machine.hpp"

namespace rdma_bench {

namespace {

constexpr double width = 760;
constexpr double height = 380;
constexpr double left = 84;
constexpr double right = 20;
constexpr double top = 40;
constexpr double bottom = 56;
// Distinguishable with colour blindness. Source: Okabe and Ito, "Color universal design".
constexpr std::array colours{
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};

std::string escape(std::string const& text) {
    std::string out;
    for (char const c : text) {
        switch (c) {
        case '&': out += "&amp;"; break;
        case '<': out += "&lt;"; break;
        case '>': out += "&gt;"; break;
        case '"': out += "&quot;"; break;
        default: out += c;
        }
    }
    return out;
}

std::string number(double v) {
    char text[32];
    std::snprintf(
        text,
        sizeof text,
        v != 0 && std::fabs(v) < 0.01 ? "%.2g"
        : v < 10                      ? "%.2f"
        : v < 1000                    ? "%.1f"
                                      : "%.0f",
        v
    );
    return text;
}

std::string short_number(double v) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", v);
    return text;
}

// One axis: its scale and its marks.
class axis {
public:
    struct mark {
        double value;
        std::string text;
    };

    static axis of_powers(double low, double high, double base) {
        axis a;
        a.low_ = std::floor(std::log(low) / std::log(base) + 1e-9);
        a.high_ = std::max(a.low_ + 1, std::ceil(std::log(high) / std::log(base) - 1e-9));
        a.base_ = base;
        int const step = std::max(
            1,
            static_cast<int>((a.high_ - a.low_) / 12) + (base == 2 && a.high_ - a.low_ > 12 ? 1 : 0)
        );
        for (double e = a.low_; e <= a.high_; e += step) {
            double const v = std::pow(base, e);
            a.marks_.push_back(
                {v, base == 2 ? size_text(static_cast<std::uint64_t>(v)) : short_number(v)}
            );
        }
        return a;
    }
    static axis from_zero(double high) {
        axis a;
        double const rough = high > 0 ? high / 5 : 1;
        double const power = std::pow(10, std::floor(std::log10(rough)));
        double const step = power * (rough / power > 5   ? 10
                                     : rough / power > 2 ? 5
                                     : rough / power > 1 ? 2
                                                         : 1);
        for (double v = 0;; v += step) {
            a.marks_.push_back({v, short_number(v)});
            a.high_ = v;
            if (v >= high && v > 0) break;
        }
        return a;
    }

    double share(double v) const {
        double const at = base_ > 0 ? std::log(v) / std::log(base_) : v;
        return (at - low_) / (high_ - low_);
    }
    std::vector<mark> const& marks() const { return marks_; }

private:
    double low_ = 0;
    double high_ = 1;
    double base_ = 0;
    std::vector<mark> marks_;
};

struct extent {
    double low;
    double high;
};

extent extent_of(plot const& p, double curve::point::*coordinate) {
    extent e{0, 0};
    bool is_first = true;
    for (curve const& c : p.curves) {
        for (curve::point const& at : c.points) {
            double const v = at.*coordinate;
            e = is_first ? extent{v, v} : extent{std::min(e.low, v), std::max(e.high, v)};
            is_first = false;
        }
    }
    return e;
}

void draw_axes(std::ostream& out, plot const& p, axis const& x, axis const& y) {
    for (axis::mark const& m : y.marks()) {
        double const at = top + (height - top - bottom) * (1 - y.share(m.value));
        out << "<line class=\"grid\" x1=\"" << left << "\" x2=\"" << width - right << "\" y1=\""
            << at << "\" y2=\"" << at << "\"/>"
            << "<text x=\"" << left - 8 << "\" y=\"" << at + 4 << "\" text-anchor=\"end\">"
            << m.text << "</text>\n";
    }
    for (axis::mark const& m : x.marks()) {
        double const at = left + (width - left - right) * x.share(m.value);
        out << "<line class=\"grid\" x1=\"" << at << "\" x2=\"" << at << "\" y1=\"" << top
            << "\" y2=\"" << height - bottom << "\"/>"
            << "<text x=\"" << at << "\" y=\"" << height - bottom + 18
            << "\" text-anchor=\"middle\">" << m.text << "</text>\n";
    }
    out << "<text class=\"title\" x=\"" << left << "\" y=\"20\">" << escape(p.title) << "</text>"
        << "<text x=\"" << (left + width - right) / 2 << "\" y=\"" << height - 12
        << "\" text-anchor=\"middle\">" << escape(p.x_title) << "</text>"
        << "<text transform=\"translate(18 " << height / 2
        << ") rotate(-90)\" text-anchor=\"middle\">" << escape(p.y_title) << "</text>\n";
}

void draw_curve(
    std::ostream& out, curve const& c, axis const& x, axis const& y, std::size_t index
) {
    char const* const colour = colours[index % colours.size()];
    auto const place = [&](curve::point const& at) {
        return std::pair{
            left + (width - left - right) * x.share(at.x),
            top + (height - top - bottom) * (1 - y.share(at.y))};
    };
    out << "<polyline fill=\"none\" stroke=\"" << colour << "\" stroke-width=\"2\" points=\"";
    for (curve::point const& at : c.points)
        out << place(at).first << ',' << place(at).second << ' ';
    out << "\"/>\n";
    for (curve::point const& at : c.points) {
        out << "<circle cx=\"" << place(at).first << "\" cy=\"" << place(at).second
            << "\" r=\"3\" fill=\"" << colour << "\"><title>" << escape(at.label)
            << "</title></circle>\n";
    }
    double const line = top + 16 + 16 * static_cast<double>(index);
    out << "<text x=\"" << left + 14 << "\" y=\"" << line << "\" style=\"fill:" << colour << "\">"
        << escape(c.name) << "</text>\n";
}

// A curve over size: one figure of each round.
template <class Figure>
curve over_size(record const& r, std::string const& curve_name, char const* unit, Figure figure) {
    curve c{curve_name, {}};
    for (result const& one : r.rounds) {
        double const v = figure(one);
        c.points.push_back(
            {static_cast<double>(one.size_bytes),
             v,
             size_text(one.size_bytes) + ": " + number(v) + " " + unit}
        );
    }
    return c;
}

// The share of operations that took at least so long, for one round.
curve tail_of(result const& one) {
    curve c{size_text(one.size_bytes) + " bytes", {}};
    std::uint64_t seen = 0;
    auto const total = static_cast<double>(one.latencies.total());
    for (histogram::bin const& b : one.latencies.bins()) {
        double const longer = std::max((total - static_cast<double>(seen)) / total, 0.5 / total);
        double const at_us = static_cast<double>(std::max<std::uint64_t>(b.low_ns, 1)) / 1000;
        c.points.push_back(
            {at_us, longer, number(at_us) + " us or more: " + number(100 * longer) + " %"}
        );
        seen += b.count;
    }
    return c;
}

// Means and maxima over the time of one round.
plot over_time(result const& one) {
    plot p{
        "Latency over time, " + size_text(one.size_bytes) + " bytes",
        "seconds",
        "microseconds",
        false,
        true,
        {{"mean", {}}, {"longest", {}}},
        true};
    double const step = std::chrono::duration<double>(one.over_time.width()).count();
    double at = 0;
    for (timeline::interval const& i : one.over_time.intervals()) {
        at += step;
        if (i.count == 0) continue;
        double const mean = i.mean_ns() / 1000;
        double const longest = static_cast<double>(i.max_ns) / 1000;
        std::string const until = "until " + number(at) + " s: ";
        p.curves[0].points.push_back({at, mean, until + number(mean) + " us"});
        p.curves[1].points.push_back({at, longest, until + number(longest) + " us"});
    }
    return p;
}

std::vector<plot> plots_of(record const& r) {
    std::vector<plot> all;
    if (r.rounds.empty()) return all;
    if (r.wanted.how == measure::bandwidth) {
        all.push_back(
            {"Throughput over size",
             "bytes of an operation",
             "MB/s (2^20 bytes)",
             true,
             false,
             {over_size(
                 r,
                 name(r.wanted.what),
                 "MB/s",
                 [](result const& o) { return o.megabytes_per_second(); }
             )}}
        );
        all.push_back(
            {"Operations over size",
             "bytes of an operation",
             "operations per second",
             true,
             false,
             {over_size(
                 r,
                 name(r.wanted.what),
                 "per second",
                 [](result const& o) { return o.operations_per_second(); }
             )}}
        );
        return all;
    }
    auto const quantile = [](double share) {
        return [share](result const& o) {
            return static_cast<double>(o.latencies.quantile(share).count()) / 1000;
        };
    };
    all.push_back(
        {"Latency over size",
         "bytes of an operation",
         "microseconds",
         true,
         true,
         {over_size(r, "median", "us", quantile(0.5)),
          over_size(r, "99 %", "us", quantile(0.99)),
          over_size(r, "99.9 %", "us", quantile(0.999))}}
    );
    plot tails{
        "Latency distribution",
        "microseconds",
        "share of operations that took longer",
        false,
        true,
        {}};
    // Too many curves would overlap: the smallest, the largest, and some between.
    std::size_t const step = (r.rounds.size() + colours.size() - 1) / colours.size();
    for (std::size_t i = 0; i < r.rounds.size(); i += step)
        tails.curves.push_back(tail_of(r.rounds[i]));
    all.push_back(std::move(tails));
    for (std::size_t i = 0; i < r.rounds.size(); i += step) {
        if (!r.rounds[i].over_time.intervals().empty()) all.push_back(over_time(r.rounds[i]));
    }
    return all;
}

constexpr char const* style =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 "
    "1em;color:#222;background:#fff}"
    "pre{overflow-x:auto;background:#f6f6f6;padding:.8em;font-size:12px}svg{width:100%;height:auto;"
    "margin:1em 0}"
    "svg text{font:12px system-ui,sans-serif;fill:#444}svg "
    ".title{font-size:15px;font-weight:600;fill:#222}"
    "svg .grid{stroke:#ddd;stroke-width:1}";

}  // namespace

std::string to_svg(plot const& p) {
    extent const xs = extent_of(p, &curve::point::x);
    extent const ys = extent_of(p, &curve::point::y);
    axis const x = p.is_x_linear
                       ? axis::from_zero(xs.high)
                       : axis::of_powers(
                             std::max(xs.low, 1e-3), std::max(xs.high, 1e-3), p.is_x_bytes ? 2 : 10
                         );
    axis const y = p.is_y_logarithmic
                       ? axis::of_powers(std::max(ys.low, 1e-9), std::max(ys.high, 1e-9), 10)
                       : axis::from_zero(ys.high);
    std::ostringstream out;
    out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << height
        << "\" role=\"img\">\n";
    draw_axes(out, p, x, y);
    for (std::size_t i = 0; i < p.curves.size(); ++i) draw_curve(out, p.curves[i], x, y, i);
    out << "</svg>\n";
    return out.str();
}

std::string report_html(record const& r) {
    std::ostringstream out;
    out << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
        << "<meta name=\"viewport\" content=\"width=device-width, "
           "initial-scale=1\"/>\n<title>rdma-bench: "
        << name(r.wanted.what) << "</title>\n<style>" << style
        << "</style>\n</head>\n<body>\n<h1>rdma-bench: " << name(r.wanted.what) << ", "
        << name(r.wanted.how) << "</h1>\n<p>" << escape(describe(r.wanted))
        << "</p>\n<p>Client: " << escape(describe(r.client_side))
        << ".</p>\n<p>Server: " << escape(r.server)
        << (r.server_side.kernel.empty() ? "" : ": " + escape(describe(r.server_side)))
        << ".</p>\n";
    for (plot const& p : plots_of(r)) out << to_svg(p);
    out << "<pre>";
    if (!r.rounds.empty()) out << table_head(r.wanted) << '\n';
    for (result const& one : r.rounds) out << table_row(r.wanted, one) << '\n';
    out << "\n" << escape(describe(r.opened)) << "</pre>\n";
    if (r.wanted.is_timed()) {
        out << "<p>Latencies are counted in a log-linear histogram whose values are at most "
            << number(100 * histogram::relative_error)
            << " % too high. What goes to and fro is half of the round trip.</p>\n";
    }
    out << "</body>\n</html>\n";
    return out.str();
}

}  // namespace rdma_bench
