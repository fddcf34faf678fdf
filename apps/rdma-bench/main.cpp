// rdma-bench — measures RDMA operations between two machines or within one.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>

#include <ifaddrs.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <exception>
#include <memory>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "common/arguments.hpp"
#include "rdma-bench/arguments.hpp"
#include "rdma-bench/client.hpp"
#include "rdma-bench/compare.hpp"
#include "rdma-bench/machine.hpp"
#include "rdma-bench/output.hpp"
#include "rdma-bench/report.hpp"
#include "rdma-bench/server.hpp"

namespace {

namespace asio = boost::asio;
using demo::exit_code;
using namespace rdma_bench;

exit_code code_for(std::exception_ptr failed, rcverbs::failure const& known) {
    try {
        std::rethrow_exception(failed);
    } catch (bench_connection_failed const& e) {
        demo::print_error(e.what());
        exit_code const code = demo::exit_code_for(e.code(), rcverbs::step::transfer);
        return code == exit_code::done ? exit_code::other : code;
    } catch (plan_refused const& e) {
        demo::print_error(std::string{"the server refused: "} + e.what());
        return exit_code::refused;
    } catch (protocol_error const& e) {
        demo::print_error(e.what());
        return exit_code::refused;
    } catch (boost::system::system_error const& e) {
        demo::print_error(known.code ? known.message() : e.what());
        return demo::exit_code_for(
            known.code ? known.code : e.code(), known.code ? known.where : rcverbs::step::transfer
        );
    } catch (std::exception const& e) {
        demo::print_error(e.what());
        return exit_code::other;
    }
}

void write_files(arguments const& a, record const& r) {
    if (!a.json_file.empty()) write_file(a.json_file, to_json_record(r).dump(2) + "\n");
    if (!a.histogram_file.empty()) write_file(a.histogram_file, histogram_text(r));
    if (!a.report_file.empty()) write_file(a.report_file, report_html(r));
}

// Before measuring, which may take hours.
void check_files(arguments const& a) {
    for (std::string const& file : {a.json_file, a.histogram_file, a.report_file}) {
        if (!file.empty() && !std::ofstream{file, std::ios::app})
            throw std::runtime_error{"cannot write " + file};
    }
}

exit_code run_client(
    arguments const& a,
    rcverbs::endpoint const& server,
    std::string const& server_name,
    bool is_one_process
) {
    check_files(a);
    asio::io_context io;
    record kept;
    kept.wanted = a.wanted;
    kept.server = server_name;
    kept.is_one_process = is_one_process;
    console shows{kept};
    std::optional<asio::ip::address> from;
    if (!a.from.empty()) from = asio::ip::make_address(a.from);
    client measuring{io, {server, from}, a.wanted, a.bounds, shows};
    std::puts(describe(a.wanted).c_str());
    std::string const note = overload_note(a.wanted, processors(), is_one_process);
    if (!note.empty()) std::puts(("note: " + note).c_str());
    exit_code code = exit_code::done;
    asio::co_spawn(io, measuring.run(), [&](std::exception_ptr failed) {
        if (failed) code = code_for(failed, measuring.failure());
        measuring.end();
    });
    io.run();
    kept.opened = measuring.opened();
    kept.opened.is_one_process = is_one_process;
    if (code == exit_code::done &&
        (a.wanted.what == operation::connect || a.wanted.connections > 1)) {
        std::puts(describe(kept.opened).c_str());
    }
    write_files(a, kept);
    for (result const& r : kept.rounds) {
        if (std::uint64_t const damaged = r.client.damaged + r.server.damaged; damaged > 0) {
            demo::print_error(
                std::to_string(damaged) +
                " times the received data differed from the sent data, with " +
                size_text(r.size_bytes) + " bytes"
            );
            code = exit_code::not_verified;
        }
    }
    return code;
}

exit_code run_client(arguments const& a) {
    auto const server = demo::resolve_with_route(a.host, a.port, a.from);
    return server ? run_client(a, *server, server->to_string(), false)
                  : exit_code::could_not_connect;
}

exit_code run_server(arguments const& a) {
    demo::background_printing const printing;
    asio::io_context io;
    std::unique_ptr<server> serving;
    try {
        serving = demo::listen_at(a.bind, a.port, [&](rcverbs::endpoint const& here) {
            return std::make_unique<server>(io, here, a.bounds);
        });
    } catch (boost::system::system_error const& e) {
        demo::print_error(std::string{"cannot listen: "} + e.what());
        return exit_code::could_not_connect;
    }
    demo::print("listening on port " + std::to_string(serving->local_endpoint().port()) + ".");
    asio::signal_set signals{io, SIGINT, SIGTERM};
    signals.async_wait([&](rcverbs::error_code ec, int) {
        if (!ec) serving->stop();
    });
    asio::co_spawn(io, serving->run(a.count), [&](std::exception_ptr failed) {
        if (failed) static_cast<void>(code_for(failed, {}));
        signals.cancel();
    });
    io.run();
    return exit_code::done;
}

nlohmann::json read_json(std::string const& file) {
    std::ifstream in{file};
    if (!in) throw std::runtime_error{"cannot read " + file};
    nlohmann::json read = nlohmann::json::parse(in, nullptr, false);
    if (read.is_discarded()) throw std::runtime_error{file + " is no JSON"};
    return read;
}

std::vector<series> figures_of(nlohmann::json const& record, std::string const& file) {
    try {
        return read_figures(record);
    } catch (std::runtime_error const& e) {
        throw std::runtime_error{file + ": " + e.what()};
    }
}

exit_code run_compare(arguments const& a) {
    std::vector<condition> wanted;
    try {
        for (std::string const& one : a.conditions) wanted.push_back(parse_condition(one));
    } catch (std::runtime_error const& e) {
        demo::print_error(std::string{"--require: "} + e.what());
        return exit_code::usage;
    }
    nlohmann::json const before = read_json(a.before_file);
    nlohmann::json const after = read_json(a.after_file);
    auto const all = compare(figures_of(before, a.before_file), figures_of(after, a.after_file));
    for (std::string const& one : differences(before, after)) demo::print_error(one);
    std::fputs(describe(all).c_str(), stdout);
    exit_code code = exit_code::done;
    for (condition const& one : wanted) {
        try {
            std::string const problem = problem_of(one, all);
            if (problem.empty()) continue;
            demo::print_error(problem);
            if (code == exit_code::done) code = exit_code::not_verified;
        } catch (std::runtime_error const& e) {
            demo::print_error(std::string{"--require: "} + e.what());
            code = exit_code::usage;
        }
    }
    return code;
}

// The first local address that belongs to an RDMA device.
std::optional<rcverbs::endpoint> rdma_address(asio::io_context& io) {
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return std::nullopt;
    std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> const keep{all, ::freeifaddrs};
    for (ifaddrs const* i = all; i != nullptr; i = i->ifa_next) {
        if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
        auto const& in =
            *reinterpret_cast<sockaddr_in const*>(i->ifa_addr);  // sa_family is AF_INET
        asio::ip::address_v4 const address{ntohl(in.sin_addr.s_addr)};
        if (address.is_loopback()) continue;
        try {
            rcverbs::endpoint const here{address, 0};
            rcverbs::acceptor const tried{io, here};
            return here;
        } catch (boost::system::system_error const&) {
            continue;  // not the address of an RDMA device
        }
    }
    return std::nullopt;
}

exit_code run_loopback(arguments const& a) {
    asio::io_context io;
    std::optional<rcverbs::endpoint> here;
    if (a.address.empty()) {
        here = rdma_address(io);
    } else {
        here = rcverbs::endpoint{asio::ip::make_address(a.address), 0};
    }
    if (!here) {
        demo::print_error("none of this machine's addresses is an RDMA device's: see rdma link");
        return exit_code::could_not_connect;
    }
    limits own = a.bounds;
    own.memory_bytes = UINT64_MAX;  // the plan is this user's
    server serving{io, *here, std::move(own)};
    rcverbs::endpoint const at = serving.local_endpoint();
    asio::co_spawn(io, serving.run(), asio::detached);
    std::thread other{[&io] { io.run(); }};
    exit_code code = exit_code::other;
    try {
        code = run_client(a, at, at.to_string() + ", the same program", true);
    } catch (std::exception const& e) {
        demo::print_error(e.what());
    }
    asio::post(io, [&serving] { serving.stop(); });
    other.join();
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered: a script reads it line by line
    arguments a;
    exit_code code = exit_code::other;
    if (!parse(argc, argv, a, code)) return static_cast<int>(code);
    raise_file_limit();
    try {
        switch (a.what) {
        case command::server: code = run_server(a); break;
        case command::client: code = run_client(a); break;
        case command::loopback: code = run_loopback(a); break;
        case command::compare: code = run_compare(a); break;
        }
    } catch (std::exception const& e) {
        demo::print_error(e.what());
    }
    return static_cast<int>(code);
}
