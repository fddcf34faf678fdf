#include "rdma-bench/output.hpp"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace rdma_bench {

namespace {

double us(std::chrono::nanoseconds d) { return static_cast<double>(d.count()) / 1000; }

// printf's formats align columns.
template <class... Arguments>
std::string format(char const* how, Arguments... arguments) {
    char line[256];
    int const length = std::snprintf(line, sizeof line, how, arguments...);
    return {line, std::min(static_cast<std::size_t>(length), sizeof line - 1)};
}

nlohmann::json latency_json(histogram const& h) {
    return {
        {"count", h.total()},
        {"min", us(h.min())},
        {"median", us(h.quantile(0.5))},
        {"p99", us(h.quantile(0.99))},
        {"p99_9", us(h.quantile(0.999))},
        {"max", us(h.max())},
        {"mean", h.mean_ns() / 1000},
        {"relative_error", histogram::relative_error},
    };
}

double fairness(result const& r) {
    return r.most > 0 ? static_cast<double>(r.least) / static_cast<double>(r.most) : 0;
}

nlohmann::json over_time_json(timeline const& t) {
    nlohmann::json all = nlohmann::json::array();
    double const width = std::chrono::duration<double>(t.width()).count();
    double until = 0;
    for (timeline::interval const& i : t.intervals()) {
        until += width;
        all.push_back({
            {"until_s", until},
            {"operations", i.count},
            {"mean_us", i.mean_ns() / 1000},
            {"max_us", static_cast<double>(i.max_ns) / 1000},
        });
    }
    return all;
}

}  // namespace

std::string size_text(std::uint64_t bytes) {
    if (bytes >= (1U << 20) && bytes % (1U << 20) == 0) return std::to_string(bytes >> 20) + "M";
    if (bytes >= 1024 && bytes % 1024 == 0) return std::to_string(bytes >> 10) + "K";
    return std::to_string(bytes);
}

std::string describe(plan const& p) {
    std::ostringstream out;
    out << name(p.what) << ", " << name(p.how) << (p.is_bidirectional ? ", both directions" : "")
        << ": " << p.connections << (p.connections == 1 ? " connection" : " connections");
    if (p.own_threads) {
        out << ", a polling thread each";
    } else if (p.threads == 0) {
        out << ", no polling thread";
    } else {
        out << ", " << p.threads << (p.threads == 1 ? " polling thread" : " polling threads");
    }
    out << ", poll " << name(p.polling.mode) << ", depth " << p.depth << ", batch " << p.batch
        << (p.how == measure::paced ? ", " + std::to_string(p.rate) + " per second and connection"
                                    : "")
        << ", inline " << p.inline_bytes << ", " << name(p.pages) << " pages, alignment "
        << p.alignment_bytes << (p.verifies ? ", verified" : "");
    if (p.registers == registration::per_operation) out << ", registered per operation";
    return out.str();
}

std::string overload_note(plan const& p, unsigned processors, bool is_one_process) {
    std::uint64_t const each = p.own_threads ? p.connections : p.threads;
    std::uint64_t const all = each * (is_one_process ? 2 : 1);
    if (p.polling.mode == rcverbs::poll_mode::event || all <= processors) return {};
    return std::to_string(all) + " polling threads" + (is_one_process ? " of both sides" : "") +
           " share " + std::to_string(processors) +
           (processors == 1 ? " processor" : " processors") +
           ": they take turns, and operations wait for them. See --threads, and --poll event";
}

std::string describe(side_facts const& f) {
    std::string text = f.kernel + ", " + std::to_string(f.processors) +
                       (f.processors == 1 ? " processor" : " processors");
    if (!f.device.empty()) text += ", " + f.device + " at " + f.address;
    if (f.path_mtu > 0) text += ", path MTU " + std::to_string(f.path_mtu);
    return text;
}

std::string table_head(plan const& p) {
    std::string const more = p.connections > 1 ? "  least/most" : "";
    std::string const rate = p.how == measure::paced ? "      ops/s" : "";
    if (p.is_timed()) {
        return "    bytes  operations" + rate +
               "  min[us]  median[us]   99%[us]  99.9%[us]   max[us]  "
               "CPU[us/op]  server CPU[us/op]" +
               more;
    }
    return "    bytes  operations         MB/s     Gbit/s     Mops/s  CPU[us/op]  server "
           "CPU[us/op]  doorbells/op  completions/op" +
           more;
}

// Behind a row whose rate was not reached: then operations wait, each longer than the one before.
std::string late_note(plan const& p, result const& r) {
    constexpr double nearly = 0.95;
    double const asked = static_cast<double>(p.rate) * p.connections * (p.is_bidirectional ? 2 : 1);
    if (p.how != measure::paced || r.operations_per_second() >= nearly * asked) return {};
    return format("  LATE: %.0f ops/s were due", asked);
}

std::string table_row(plan const& p, result const& r) {
    auto const bytes = static_cast<unsigned long long>(r.size_bytes);
    auto const operations = static_cast<unsigned long long>(r.operations());
    auto const server_cpu = r.server_cpu_us();
    std::string const server_text = server_cpu ? format("%.3f", *server_cpu) : "-";
    // How evenly connections were served.
    std::string const more = p.connections > 1 ? format(" %11.3f", fairness(r)) : std::string{};
    if (p.is_timed()) {
        histogram const& h = r.latencies;
        std::string const rate =
            p.how == measure::paced ? format(" %10.0f", r.operations_per_second()) : std::string{};
        std::string const start = format("%9llu %11llu", bytes, operations) + rate;
        return start +
               format(
                   " %8.2f %11.2f %9.2f %10.2f %9.2f %11.3f %18s",
                   us(h.min()),
                   us(h.quantile(0.5)),
                   us(h.quantile(0.99)),
                   us(h.quantile(0.999)),
                   us(h.max()),
                   r.cpu_us(),
                   server_text.c_str()
               ) +
               more + late_note(p, r);
    }
    double const count = std::max(1.0, static_cast<double>(r.client.operations));
    return format(
               "%9llu %11llu %12.2f %10.3f %10.5f %11.3f %18s %13.3f %15.3f",
               bytes,
               operations,
               r.megabytes_per_second(),
               r.gigabits_per_second(),
               r.operations_per_second() / 1e6,
               r.cpu_us(),
               server_text.c_str(),
               static_cast<double>(r.client.doorbells) / count,
               static_cast<double>(r.client.completions) / count
           ) +
           more;
}

std::string describe(opening const& o) {
    auto const each = static_cast<double>(o.connections);
    std::string text = format(
        "%llu connections in %.3f s: %.0f per second; memory per connection: %.1f KiB in this "
        "program, %.1f KiB on this machine",
        static_cast<unsigned long long>(o.connections),
        o.seconds,
        o.seconds > 0 ? each / o.seconds : 0,
        o.process_bytes / 1024,
        o.system_bytes / 1024
    );
    if (o.idle_seconds > 0 && o.is_one_process) {
        text += format(
            "\nidle for %.2f s: %.3f %% of a processor, both sides together",
            o.idle_seconds,
            100 * o.idle_cpu_seconds / o.idle_seconds
        );
    } else if (o.idle_seconds > 0) {
        text += format(
            "\nidle for %.2f s: %.3f %% of a processor, the server's program %.3f %%",
            o.idle_seconds,
            100 * o.idle_cpu_seconds / o.idle_seconds,
            100 * o.server_idle_cpu_seconds / o.idle_seconds
        );
    }
    return text;
}

nlohmann::json to_json_record(record const& r) {
    nlohmann::json rounds = nlohmann::json::array();
    for (result const& one : r.rounds) {
        nlohmann::json row = {
            {"size_bytes", one.size_bytes},
            {"operations", one.operations()},
            {"seconds", one.seconds()},
            {"MB_per_s", one.megabytes_per_second()},
            {"Gbit_per_s", one.gigabits_per_second()},
            {"Mops_per_s", one.operations_per_second() / 1e6},
            {"cpu_us_per_operation", one.cpu_us()},
            {"server_cpu_us_per_operation", nullptr},
            {"damaged", one.client.damaged + one.server.damaged},
            {"client", one.client},
            {"server", one.server},
        };
        if (auto const cpu = one.server_cpu_us()) {
            row["server_cpu_us_per_operation"] = *cpu;
        } else {
            row["server"]["cpu_seconds"] = nullptr;
        }
        row["served"] = {{"least", one.least}, {"most", one.most}};
        if (one.latencies.total() > 0) {
            row["latency_us"] = latency_json(one.latencies);
            row["latency_over_time"] = over_time_json(one.over_time);
        }
        rounds.push_back(std::move(row));
    }
    nlohmann::json opened = {
        {"connections", r.opened.connections},
        {"seconds", r.opened.seconds},
        {"process_bytes_per_connection", r.opened.process_bytes},
        {"system_bytes_per_connection", r.opened.system_bytes},
    };
    if (r.opened.idle_seconds > 0) {
        opened["idle_seconds"] = r.opened.idle_seconds;
        opened["idle_cpu_seconds"] = r.opened.idle_cpu_seconds;
        if (!r.is_one_process) opened["server_idle_cpu_seconds"] = r.opened.server_idle_cpu_seconds;
    }
    return {
        {"program", "rdma-bench"},
        {"format", 1},
        {"machine", r.client_side},
        {"server", r.server},
        {"server_machine", r.server_side},
        {"is_one_process", r.is_one_process},
        {"plan", r.wanted},
        {"opening", opened},
        {"rounds", rounds},
    };
}

void write_file(std::string const& path, std::string const& text) {
    std::ofstream out{path, std::ios::binary};
    out << text;
    out.close();
    if (!out) throw std::runtime_error{"cannot write " + path};
}

std::string histogram_text(record const& r) {
    std::ostringstream out;
    for (result const& one : r.rounds) {
        if (one.latencies.total() == 0) continue;
        out << "#[" << name(r.wanted.what) << " of " << one.size_bytes << " bytes, microseconds]\n";
        one.latencies.write_percentiles(out);
    }
    return out.str();
}

// --- console -------------------------------------------------------------------------------------

console::console(record& keeps) : record_{keeps}, is_terminal_{::isatty(STDERR_FILENO) == 1} {}

void console::clear_line() {
    if (has_line_) std::fputs("\r\033[K", stderr);
    has_line_ = false;
}

void console::on_connected(side_facts const& client, side_facts const& server) {
    record_.client_side = client;
    record_.server_side = server;
    std::puts(("client: " + describe(client)).c_str());
    if (!server.kernel.empty()) std::puts(("server: " + describe(server)).c_str());
    if (record_.wanted.what != operation::connect) std::puts(table_head(record_.wanted).c_str());
}

void console::on_progress(
    std::uint64_t size_bytes, std::uint64_t done, std::uint64_t all, double seconds
) {
    if (!is_terminal_ || seconds <= 0) return;
    double const rate = static_cast<double>(done) / seconds;
    double const left =
        all > 0 ? (rate > 0 ? static_cast<double>(all - done) / rate : 0)
                : std::max(
                      0.0, std::chrono::duration<double>(record_.wanted.duration).count() - seconds
                  );
    clear_line();
    std::fputs(
        format(
            "%s bytes: %.0f operations/s, %.1f MB/s, %llu done, %.0f s to go",
            size_text(size_bytes).c_str(),
            rate,
            rate * static_cast<double>(size_bytes) / (1 << 20),
            static_cast<unsigned long long>(done),
            left
        )
            .c_str(),
        stderr
    );
    std::fflush(stderr);
    has_line_ = true;
}

void console::on_result(result const& r) {
    clear_line();
    record_.rounds.push_back(r);
    record_.rounds.back().is_one_process = record_.is_one_process;
    std::puts(table_row(record_.wanted, record_.rounds.back()).c_str());
}

}  // namespace rdma_bench
