#include "rdma-bench/arguments.hpp"

#include <CLI/CLI.hpp>

#include <boost/asio/ip/address.hpp>

#include <map>

#include "common/arguments.hpp"
#include "rdma-bench/control.hpp"

namespace rdma_bench {

namespace {

// Digits and K, M, G or nothing; 0 if it is something else.
std::uint64_t bytes_of(std::string const& text) {
    std::size_t digits = 0;
    std::uint64_t value = 0;
    while (digits < text.size() && digits < 10 && text[digits] >= '0' && text[digits] <= '9') {
        value = value * 10 + static_cast<std::uint64_t>(text[digits++] - '0');
    }
    std::string const unit = text.substr(digits);
    if (unit == "K") value <<= 10;
    else if (unit == "M") value <<= 20;
    else if (unit == "G") value <<= 30;
    else if (!unit.empty()) value = 0;
    return value;
}

std::uint64_t parse_size(std::string const& text) {
    std::uint64_t const value = bytes_of(text);
    if (value == 0 || value > size_bytes_max) {
        throw CLI::ValidationError("--sizes", "1 to 1G bytes, such as 8, 4K or 1M, not " + text);
    }
    return value;
}

void add_measuring(CLI::App& app, arguments& out) {
    plan& p = out.wanted;
    std::map<std::string, operation> const operations{
        {"write", operation::write},
        {"read", operation::read},
        {"send", operation::send},
        {"write-imm", operation::write_imm},
        {"fetch-add", operation::fetch_add},
        {"compare-swap", operation::compare_swap},
        {"connect", operation::connect},
    };
    app.add_option(
           "test",
           p.what,
           "the operation; connect opens connections, holds them idle for --duration, closes them"
    )
        ->required()
        ->transform(CLI::CheckedTransformer(operations))
        ->option_text("write|read|send|write-imm|fetch-add|compare-swap|connect REQUIRED");
    app.add_flag_callback(
        "--latency,-l",
        [&p] { p.how = measure::latency; },
        "measure latency: one operation at a time, each timed; without it, --depth operations"
    );
    app.add_option_function<std::uint64_t>(
           "--rate,-r",
           [&p](std::uint64_t n) { p.rate = n, p.how = measure::paced; },
           "operations that each connection starts per second, however long they take; each is "
           "timed "
           "from when it was due"
    )
        ->check(CLI::Range(std::uint64_t{1}, rate_max))
        ->option_text("N");
    app.add_option_function<std::string>(
           "--sizes,-s",
           [&p](std::string const& text) { p.sizes_bytes = parse_sizes(text); },
           "bytes of an operation: one size (4K), a list (8,4K,1M), or powers of two from one to "
           "another (2..8M)"
    )
        ->option_text("SIZES [64K; with --latency 8; atomics 8]");
    app.add_option(
           "--depth,-d",
           p.depth,
           "operations in flight on each connection; with connect: connections made at a time"
    )
        ->check(CLI::Range(1U, depth_max))
        ->option_text("N [128; with --latency 1; with connect 16]");
    app.add_option(
           "--batch,-b", p.batch, "operations in one batch, with one doorbell and one completion"
    )
        ->check(CLI::Range(1U, depth_max))
        ->option_text("N [1]");
    app.add_option("--receives", p.receives, "receives kept posted on each connection")
        ->check(CLI::Range(1U, depth_max))
        ->option_text("N [512]");
    app.add_option("--inline", p.inline_bytes, "the largest size in bytes that is sent inline")
        ->option_text("BYTES [0]");
    demo::add_poll(app, p.polling.mode);
    app.add_option(
           "--connections,-c", p.connections, "the number of connections, with the same load each"
    )
        ->check(CLI::Range(1U, connections_max))
        ->option_text("N [1]");
    app.add_option_function<std::uint32_t>(
           "--threads,-t",
           [&p](std::uint32_t n) { p.threads = n, p.own_threads = false; },
           "polling threads that the connections share on each side; 0: none, the program's own "
           "thread does it"
    )
        ->check(CLI::Range(0U, threads_max))
        ->option_text("N [one for each connection]");
    app.add_flag_callback(
        "--shared-poller",
        [&p] { p.threads = 1, p.own_threads = false; },
        "one polling thread for all connections: --threads 1"
    );
    app.add_option(
           "--iterations,-n", p.iterations, "operations of each connection, instead of --duration"
    )
        ->option_text("N");
    demo::add_duration(app, "--duration,-D", p.duration, "the time to measure each size", "2s");
    app.add_option("--warm-up", p.warm_up, "operations of each connection before the measurement")
        ->option_text("N [100]");
    app.add_flag(
        "--bidirectional",
        p.is_bidirectional,
        "the server does the same at the same time; the result is the sum of both"
    );
    app.add_flag(
        "--verify",
        p.verifies,
        "check the received data: contents from a seed, order of messages, sums of atomics"
    );
    app.add_flag("--corrupt", p.corrupts, "damage a byte of the outgoing data, to test --verify");
    app.add_option("--pages", p.pages, "the page size of the memory: small, or huge (2 MiB)")
        ->transform(CLI::CheckedTransformer(std::map<std::string, page_kind>{
            {"small", page_kind::small}, {"huge", page_kind::huge}}))
        ->option_text("small|huge [small]");
    app.add_option(
           "--alignment",
           p.alignment_bytes,
           "the alignment of the memory in bytes: a multiple of this, and not of its double"
    )
        ->option_text("BYTES [4096]");
    app.add_option(
           "--registration",
           p.registers,
           "register memory once, or for each operation (write and read)"
    )
        ->transform(CLI::CheckedTransformer(std::map<std::string, registration>{
            {"once", registration::once}, {"per-operation", registration::per_operation}}))
        ->option_text("once|per-operation [once]");
    app.add_option(
           "--repeat",
           out.repeats,
           "measure all sizes so often, in turn: 5 or more, and compare tells differences from "
           "noise"
    )
        ->check(CLI::Range(1U, 64U))
        ->option_text("N [1]");
    app.add_option("--json", out.json_file, "write all results to a file")->option_text("FILE");
    app.add_option(
           "--histogram",
           out.histogram_file,
           "with --latency or --rate: write the distribution of percentiles in the format of "
           "HdrHistogram"
    )
        ->option_text("FILE");
    app.add_option("--report", out.report_file, "write an HTML page with plots to a file")
        ->option_text("FILE.html");
}

void add_limits(CLI::App& app, limits& out) {
    demo::add_duration(
        app,
        "--timeout",
        out.patience,
        "the time without progress after which the measurement ends with an error",
        "10s"
    );
    app.add_option(
           "--cpus", out.processors, "processors to pin the polling threads to, in turn: 0,1"
    )
        ->delimiter(',')
        ->option_text("LIST");
    app.footer(std::string{demo::exit_code_help});
}

}  // namespace

std::vector<std::uint64_t> parse_sizes(std::string const& text) {
    std::vector<std::uint64_t> all;
    if (std::size_t const dots = text.find(".."); dots != std::string::npos) {
        std::uint64_t const first = parse_size(text.substr(0, dots));
        std::uint64_t const last = parse_size(text.substr(dots + 2));
        for (std::uint64_t size = first; size <= last; size *= 2) all.push_back(size);
        if (all.empty())
            throw CLI::ValidationError(
                "--sizes", "from the smaller to the larger size, not " + text
            );
        return all;
    }
    for (std::size_t at = 0; at <= text.size();) {
        std::size_t const comma = std::min(text.find(',', at), text.size());
        all.push_back(parse_size(text.substr(at, comma - at)));
        at = comma + 1;
    }
    return all;
}

namespace {

/// Defines the options; parsing fills `out`.
void describe(CLI::App& app, arguments& out) {
    app.require_subcommand(1);
    CLI::App* const server = app.add_subcommand(
        "server", "Serves clients, one after another, with memory and receives."
    );
    out.port = port_default;
    std::string const port_text = "PORT [" + std::to_string(port_default) + "]";
    server->add_option("--port", out.port, "the port to listen on; 0 picks a free one")
        ->check(CLI::Range(0, 65535))
        ->option_text(port_text);
    demo::add_address(*server, "--bind", out.bind, "the local address to listen on", "all");
    server->add_option("--count", out.count, "end after this many clients; 0 for never")
        ->option_text("N [0]");
    server
        ->add_option_function<std::string>(
            "--memory",
            [&out](std::string const& text) {
                out.bounds.memory_bytes = bytes_of(text);
                if (out.bounds.memory_bytes == 0)
                    throw CLI::ValidationError(
                        "--memory", "bytes, such as 512M or 4G, not " + text
                    );
            },
            "the most memory that a client's plan may use"
        )
        ->option_text("BYTES [half of what is available]");
    demo::add_keys(*server, out.bounds.authentication, false);
    server->callback([&out] { out.what = command::server; });
    add_limits(*server, out.bounds);

    CLI::App* const client = app.add_subcommand("client", "Measures against a server.");
    client->add_option("host", out.host, "the server's address or name")
        ->required()
        ->option_text("HOST REQUIRED");
    client->add_option("port", out.port, "the server's port")
        ->required()
        ->check(CLI::Range(1, 65535))
        ->option_text("PORT REQUIRED");
    demo::add_address(*client, "--from", out.from, "the local address to connect from");
    demo::add_keys(*client, out.bounds.authentication, true);
    client->callback([&out] { out.what = command::client; });
    add_measuring(*client, out);
    add_limits(*client, out.bounds);

    CLI::App* const loopback =
        app.add_subcommand("loopback", "Measures between two connections of this program.");
    demo::add_address(
        *loopback,
        "--address",
        out.address,
        "of the RDMA device's network interface",
        "the first that has one"
    );
    loopback->callback([&out] { out.what = command::loopback; });
    add_measuring(*loopback, out);
    add_limits(*loopback, out.bounds);

    CLI::App* const compare =
        app.add_subcommand("compare", "Compares two files that --json has written.");
    compare->add_option("A", out.before_file, "the results before")
        ->required()
        ->option_text("A.json REQUIRED");
    compare->add_option("B", out.after_file, "the results after")
        ->required()
        ->option_text("B.json REQUIRED");
    compare
        ->add_option(
            "--require",
            out.conditions,
            "a condition on B / A, such as 'write.8.rate>=0.95': if one does not hold, the exit "
            "code "
            "is 7. May be given more than once"
        )
        ->allow_extra_args(false)
        ->option_text("CONDITION");
    compare->callback([&out] { out.what = command::compare; });
    compare->footer(
        "Exit codes:\n"
        "  0  done, and all conditions hold\n"
        "  1  any other error, such as a file that cannot be read\n"
        "  2  wrong usage, or a condition on a figure that the files do not have\n"
        "  7  a condition of --require does not hold\n"
    );
}

/// Fills in the defaults that depend on the test.
void complete(CLI::App& app, arguments& out) {
    if (out.what == command::server || out.what == command::compare) return;
    CLI::App const* const used = app.get_subcommands().front();
    plan& p = out.wanted;
    bool const has_sizes = used->count("--sizes") > 0;
    bool const has_depth = used->count("--depth") > 0;
    if (is_atomic(p.what) && !has_sizes) p.sizes_bytes = {8};
    if (used->count("--latency") > 0 && used->count("--rate") > 0)
        throw CLI::ValidationError("--latency and --rate exclude each other");
    if (p.how == measure::latency) {
        if (!has_sizes) p.sizes_bytes = {8};
        if (!has_depth) p.depth = 1;
    }
    if (p.what == operation::connect) {
        p.sizes_bytes = {8};
        if (!has_depth) p.depth = 16;
    }
    std::vector<std::uint64_t> const once = p.sizes_bytes;
    for (std::uint32_t i = 1; i < out.repeats; ++i)
        p.sizes_bytes.insert(p.sizes_bytes.end(), once.begin(), once.end());
    if (std::string const problem = p.problem(); !problem.empty())
        throw CLI::ValidationError(problem);
    if (!out.histogram_file.empty() && !p.is_timed())
        throw CLI::ValidationError("--histogram needs --latency or --rate");
}

}  // namespace

bool parse(int argc, char** argv, arguments& out, demo::exit_code& code) {
    CLI::App app{
        "Measures RDMA operations over reliable connections: rate, throughput, latency and CPU "
        "time."};
    describe(app, out);
    demo::add_version(app, argv[0]);
    try {
        app.parse(argc, argv);
        complete(app, out);
        return true;
    } catch (CLI::ParseError const& e) {
        code = app.exit(e) == 0 ? demo::exit_code::done : demo::exit_code::usage;
        return false;
    }
}

}  // namespace rdma_bench
