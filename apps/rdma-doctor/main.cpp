// rdma-doctor — shows this machine's RDMA configuration, tries a connection, and lists what is
// missing with the command that fixes it.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "common/arguments.hpp"
#include "rdma-doctor/output.hpp"

namespace {

using demo::exit_code;

struct doctor_arguments {
    bool wants_json = false;
    bool is_quiet = false;
    std::string address;
    std::string peer;
    bool serves = false;
    std::uint16_t port = rdma_doctor::peer_port;
    std::chrono::milliseconds timeout{5000};
};

rdma_doctor::examination examine(doctor_arguments const& a) {
    rdma_doctor::examination e;
    e.seen = rdma_doctor::look_at_this_machine();
    if (e.seen.fabric_address.empty()) e.found = rdma_doctor::findings(e.seen);
    auto const addresses =
        a.address.empty() ? rdma_doctor::addresses_to_try(e.seen) : std::vector{a.address};
    for (std::string const& address : addresses) {
        e.tests.push_back(rdma_doctor::test_address(address, a.timeout));
        // Another address that the firewall lets pass is no remedy: programs take the best one.
        if (e.works_locally()) break;
    }
    if (!a.peer.empty()) {
        auto const to = demo::resolve_with_route(a.peer, a.port);
        if (!to) throw std::runtime_error{"the peer has no address"};
        e.peer = rdma_doctor::test_peer(*to, a.timeout);
        if (auto found = finding_of(e.seen, *e.peer)) e.found.push_back(std::move(*found));
    }
    return e;
}

}  // namespace

int main(int argc, char** argv) {
    doctor_arguments a;
    CLI::App app{
        "Examines this machine's RDMA devices, connects to itself, and prints for each problem the "
        "command that repairs it."};
    app.add_flag("--json", a.wants_json, "print JSON");
    app.add_flag("-q,--quiet", a.is_quiet, "print only the address at which a connection worked")
        ->excludes("--json");
    demo::add_address(
        app,
        "--address",
        a.address,
        "the IP address to try, or to serve at; without it, those of the devices, until one works, "
        "or all"
    );
    demo::add_duration(app, "--timeout", a.timeout, "the deadline of each step of a test", "5s");
    auto* const serve = app.add_flag(
        "--serve", a.serves, "wait for an rdma-doctor --peer of other machines, until SIGINT"
    );
    app.add_option(
           "--peer",
           a.peer,
           "another machine, where rdma-doctor --serve runs: test the path to it and back"
    )
        ->option_text("HOST")
        ->excludes(serve)
        ->excludes("--quiet");
    app.add_option("--port", a.port, "the port of --serve")
        ->check(CLI::Range(1, 65535))
        ->option_text("PORT [" + std::to_string(rdma_doctor::peer_port) + "]");
    app.footer(
        "Exit code: 0 if an RDMA connection worked, 1 if none did or the firewall drops those of "
        "other machines, 2 for wrong usage. With --peer: 0 if that connection worked, else 1."
    );
    exit_code code = exit_code::other;
    if (!demo::parse(app, argc, argv, code)) return static_cast<int>(code);
    try {
        if (a.serves) {
            // A script reads it line by line.
            std::setvbuf(stdout, nullptr, _IOLBF, 0);
            rdma_doctor::serve(a.address, a.port, a.timeout);
            return static_cast<int>(exit_code::done);
        }
        rdma_doctor::examination const e = examine(a);
        if (a.is_quiet) {
            if (e.works_locally()) std::printf("%s\n", e.tests.back().address.c_str());
        } else {
            std::fputs((a.wants_json ? json(e) : text(e)).c_str(), stdout);
        }
        return static_cast<int>(e.works() ? exit_code::done : exit_code::other);
    } catch (std::exception const& e) {
        std::fprintf(stderr, "rdma-doctor: %s\n", e.what());
    }
    return static_cast<int>(exit_code::other);
}
