#include "rdma-copy/progress.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "common/printable.hpp"

namespace copy {

namespace {

template <class... Values>
std::string formatted(char const* format, Values... values) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), format, values...);
    return text.data();
}

// 0 to 1; a file may have grown since all were counted.
double share_of(result const& r) {
    if (!r.total || r.total->bytes == 0) return 0;
    return std::min(1.0, static_cast<double>(r.moved) / static_cast<double>(r.total->bytes));
}

std::string time_left(result const& r, double bytes_per_second) {
    if (!r.total || bytes_per_second <= 0 || r.total->bytes <= r.moved) return {};
    double const seconds = static_cast<double>(r.total->bytes - r.moved) / bytes_per_second;
    constexpr double longest = 100.0 * 3600;
    if (seconds > longest) return {};
    return in_minutes(std::chrono::seconds{static_cast<long>(std::ceil(seconds))}) + " left";
}

std::string entries_and_bytes(result const& r) {
    return std::to_string(r.entries) + (r.entries == 1 ? " entry, " : " entries, ") +
           in_units(r.bytes);
}

// The bytes of a text that is no UTF-8 are shown as they are printed.
std::string json_text(std::string const& text) { return demo::one_line(text); }

}  // namespace

std::string in_units(std::uint64_t bytes) {
    constexpr std::array<char const*, 6> units{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) return std::to_string(bytes) + " B";
    auto value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
    return formatted("%.1f ", value) + units[unit];
}

std::string in_minutes(std::chrono::seconds time) {
    long const all = time.count();
    long const seconds = all % 60;
    long const minutes = all / 60 % 60;
    long const hours = all / 3600;
    if (hours > 0) return formatted("%ld:%02ld:%02ld", hours, minutes, seconds);
    return formatted("%ld:%02ld", minutes, seconds);
}

void pace::sample(std::chrono::steady_clock::time_point now, result const& r) {
    constexpr std::chrono::seconds memory{5};
    samples_.emplace_back(now, r.moved - r.continued);
    while (samples_.size() > 2 && now - samples_.front().first > memory) samples_.pop_front();
}

double pace::rate() const noexcept {
    if (samples_.size() < 2) return 0;
    std::chrono::duration<double> const time = samples_.back().first - samples_.front().first;
    if (time.count() <= 0) return 0;
    return static_cast<double>(samples_.back().second - samples_.front().second) / time.count();
}

std::string progress_line(result const& r, double bytes_per_second, std::size_t width) {
    std::string line = in_units(r.moved);
    if (r.total) {
        line += " of " + in_units(r.total->bytes);
        line += formatted(", %.0f %%", 100 * share_of(r));
    }
    line += ", " + in_units(static_cast<std::uint64_t>(bytes_per_second)) + "/s";
    if (std::string const left = time_left(r, bytes_per_second); !left.empty()) line += ", " + left;
    line += ", " + std::to_string(r.entries);
    if (r.total) line += " of " + std::to_string(r.total->entries);
    line += " entries";
    if (r.failed > 0) line += ", " + std::to_string(r.failed) + " failed";
    constexpr std::size_t bar_most = 30;
    constexpr std::size_t frame = 3;  // brackets and a space
    if (r.total && line.size() + frame + 10 <= width) {
        std::size_t const columns = std::min(bar_most, width - line.size() - frame);
        auto const done = static_cast<std::size_t>(share_of(r) * static_cast<double>(columns));
        line = '[' + std::string(done, '#') + std::string(columns - done, ' ') + "] " + line;
    }
    return line.substr(0, width);
}

std::string text_of(not_kept const& lost) {
    std::string text;
    auto const add = [&](char const* what, std::uint64_t entries) {
        if (entries == 0) return;
        text += (text.empty() ? "not kept: " : ", ") + std::string{what} + " of " +
                std::to_string(entries) + (entries == 1 ? " entry" : " entries");
    };
    add("owners", lost.owners);
    add("set-user-ID, set-group-ID or sticky bits", lost.special_modes);
    add("extended attributes", lost.attributes);
    add("ACLs", lost.acls);
    return text;
}

std::string served(result const& r) {
    bool const is_here = r.asked->way == direction::to_server;
    std::string const name = r.asked->name.empty() ? "." : demo::printable(r.asked->name);
    std::string const what = r.asked->lists ? (is_here ? "dry run into " : "dry run of ")
                                            : (is_here ? "received into " : "sent ");
    return what + name + ": " + entries_and_bytes(r) +
           (r.deleted > 0 ? ", " + std::to_string(r.deleted) + " deleted" : "") +
           (r.failed > 0 ? ", " + std::to_string(r.failed) + " failed" : "");
}

std::string summary(result const& r, std::chrono::duration<double> took) {
    std::string text = entries_and_bytes(r);
    if (r.continued > 0) text += ", " + in_units(r.continued) + " of them were there";
    if (r.deleted > 0) text += ", " + std::to_string(r.deleted) + " deleted";
    if (r.failed > 0) text += ", " + std::to_string(r.failed) + " failed";
    return text + formatted(" in %.3f s", took.count());
}

std::string progress_json(result const& r, double bytes_per_second) {
    nlohmann::ordered_json out;
    out["type"] = "progress";
    out["entries"] = r.entries;
    out["failed"] = r.failed;
    out["moved_bytes"] = r.moved;
    out["bytes_per_second"] = static_cast<std::uint64_t>(bytes_per_second);
    if (r.total) out["total_entries"] = r.total->entries;
    if (r.total) out["total_bytes"] = r.total->bytes;
    out["file"] = json_text(r.current);
    return out.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string listed_json(std::string const& type, std::string const& path) {
    nlohmann::ordered_json const out{{"type", type}, {"path", json_text(path)}};
    return out.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string result_json(
    result const& r,
    std::vector<failed_entry> const& failures,
    std::string const& error,
    std::chrono::duration<double> took
) {
    nlohmann::ordered_json out;
    out["type"] = "result";
    out["entries"] = r.entries;
    out["bytes"] = r.bytes;
    out["continued_bytes"] = r.continued;
    out["deleted"] = r.deleted;
    out["failed"] = r.failed;
    out["seconds"] = took.count();
    out["not_kept"] = {
        {"owners", r.lost.owners},
        {"special_modes", r.lost.special_modes},
        {"extended_attributes", r.lost.attributes},
        {"acls", r.lost.acls}};
    out["failures"] = nlohmann::ordered_json::array();
    for (failed_entry const& f : failures)
        out["failures"].push_back({{"path", json_text(f.path)}, {"error", json_text(f.why)}});
    if (!error.empty()) out["error"] = error;
    return out.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace copy
