#include "rdma-bench/compare.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <stdexcept>

namespace rdma_bench {

namespace {

// Two sets of so many results of one program are apart by chance alone in 1 of 126 cases; of three
// results, in 1 of 10.
constexpr std::size_t results_min = 5;

void add(std::vector<series>& all, std::string const& name, bool is_cost, double value) {
    auto found = std::ranges::find(all, name, &series::name);
    if (found == all.end()) found = all.insert(all.end(), {name, is_cost, {}});
    found->values.push_back(value);
}

std::string short_text(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
}

std::string text_of(series const& s) {
    std::string text = short_text(s.median());
    if (s.values.size() > 1)
        text += " (" + short_text(s.least()) + " to " + short_text(s.most()) + ")";
    return text;
}

char const* text_of(verdict v) {
    switch (v) {
    case verdict::better: return "better";
    case verdict::worse: return "worse";
    case verdict::no_difference: return "no difference seen";
    case verdict::unknown: break;
    }
    return "unknown: measure both with --repeat 5 or more";
}

}  // namespace

double series::median() const {
    std::vector<double> sorted = values;
    std::ranges::sort(sorted);
    std::size_t const half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double series::least() const { return *std::ranges::min_element(values); }
double series::most() const { return *std::ranges::max_element(values); }
double series::spread() const { return median() > 0 ? (most() - least()) / median() : 0; }

std::vector<series> read_figures(nlohmann::json const& record) {
    try {
        if (record.at("program") != "rdma-bench" || record.at("format") != 1)
            throw std::runtime_error{"it is not of rdma-bench's format 1"};
        std::string const test = record.at("plan").at("test");
        std::vector<series> all;
        for (nlohmann::json const& round : record.at("rounds")) {
            std::string const prefix =
                test + '.' + std::to_string(round.at("size_bytes").get<std::uint64_t>()) + '.';
            add(all, prefix + "rate", false, round.at("Mops_per_s").get<double>() * 1e6);
            add(all, prefix + "cpu", true, round.at("cpu_us_per_operation").get<double>());
            if (!round.contains("latency_us")) continue;
            nlohmann::json const& latency = round.at("latency_us");
            for (char const* const what : {"median", "p99", "p99_9"})
                add(all, prefix + what, true, latency.at(what).get<double>());
        }
        return all;
    } catch (nlohmann::json::exception const& e) {
        throw std::runtime_error{std::string{"it is not what --json writes: "} + e.what()};
    }
}

std::vector<std::string> differences(nlohmann::json const& before, nlohmann::json const& after) {
    std::vector<std::string> all;
    for (auto const& [key, value] : before.at("plan").items()) {
        nlohmann::json const other = after.at("plan").value(key, nlohmann::json{});
        if (key != "sizes_bytes" && other != value)
            all.push_back(key + " is " + value.dump() + " in A and " + other.dump() + " in B");
    }
    return all;
}

double comparison::ratio() const { return after.median() / before.median(); }

verdict comparison::decided() const {
    if (before.values.size() < results_min || after.values.size() < results_min)
        return verdict::unknown;
    bool const is_above = after.least() > before.most();
    bool const is_below = after.most() < before.least();
    if (!is_above && !is_below) return verdict::no_difference;
    return is_above != before.is_cost ? verdict::better : verdict::worse;
}

std::vector<comparison> compare(
    std::vector<series> const& before, std::vector<series> const& after
) {
    std::vector<comparison> all;
    for (series const& one : before) {
        auto const other = std::ranges::find(after, one.name, &series::name);
        if (other != after.end() && one.median() > 0) all.push_back({one, *other});
    }
    if (all.empty()) throw std::runtime_error{"the two files have no figure in common"};
    return all;
}

std::string describe(std::vector<comparison> const& all) {
    std::vector<std::vector<std::string>> rows{{"figure", "A", "B", "B / A", "verdict"}};
    for (comparison const& c : all) {
        char ratio[32];
        std::snprintf(ratio, sizeof ratio, "%.3f", c.ratio());
        rows.push_back(
            {c.before.name, text_of(c.before), text_of(c.after), ratio, text_of(c.decided())}
        );
    }
    std::vector<std::size_t> widths(rows[0].size());
    for (auto const& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (auto const& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            text += row[i];
            if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
        }
        text += '\n';
    }
    return text;
}

std::string condition::text() const {
    return name + (is_at_least ? ">=" : "<=") + short_text(ratio);
}

condition parse_condition(std::string const& text) {
    std::size_t const at = text.find_first_of("<>");
    condition c;
    if (at != std::string::npos && at > 0 && text.substr(at + 1).starts_with('=')) {
        c.name = text.substr(0, at);
        c.is_at_least = text[at] == '>';
        char const* const end = text.data() + text.size();
        auto const [stopped, ec] = std::from_chars(text.data() + at + 2, end, c.ratio);
        if (ec == std::errc{} && stopped == end && c.ratio > 0) return c;
    }
    throw std::runtime_error{"a figure, >= or <=, and a ratio: write.8.rate>=0.95, not " + text};
}

std::string problem_of(condition const& wanted, std::vector<comparison> const& all) {
    auto const found = std::ranges::find_if(all, [&](comparison const& c) {
        return c.before.name == wanted.name;
    });
    if (found == all.end()) {
        std::string known;
        for (comparison const& c : all) known += (known.empty() ? "" : ", ") + c.before.name;
        throw std::runtime_error{
            wanted.text() + ": there is no such figure in both files, but " + known};
    }
    double const ratio = found->ratio();
    if (wanted.is_at_least ? ratio >= wanted.ratio : ratio <= wanted.ratio) return {};
    return wanted.text() + ": the ratio is " + short_text(ratio);
}

}  // namespace rdma_bench
