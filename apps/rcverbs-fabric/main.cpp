// rcverbs-fabric — runs programs with RDMA devices that exist in memory only, and manages their networks.
#include <CLI/CLI.hpp>

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bridge.hpp"
#include "capture.hpp"
#include "directory.hpp"
#include "settings.hpp"
#include "stepper.hpp"
#include "frame_type.hpp"

namespace {

using rcverbs::fabric::detail::descriptor;
using rcverbs::fabric::detail::directory;
using rcverbs::fabric::detail::settings;
namespace fs = std::filesystem;

struct fabric_arguments {
    settings chosen;
    std::uint32_t node = 0;
    bool is_quiet = false;
    std::vector<std::string> command;
    std::string state;
    std::string value;
    std::string listens_at;
    std::string joins;
};

// The libraries are beside this program in a build, and in the libraries' folder once installed.
fs::path library_folder() {
    fs::path const program = fs::read_symlink("/proc/self/exe").parent_path();
    for (fs::path const& folder :
         {program / "rcverbs-fabric.d", program / RCVERBS_FABRIC_LIBRARIES}) {
        if (fs::exists(folder / "librcverbs-fabric.so")) return fs::weakly_canonical(folder);
    }
    throw std::runtime_error{"librcverbs-fabric.so is missing: reinstall rcverbs-fabric"};
}

void put_before(char const* name, std::string const& value, char separator) {
    char const* const old = std::getenv(name);
    std::string const all = old != nullptr && *old != '\0' ? value + separator + old : value;
    ::setenv(name, all.c_str(), 1);
}

// A stepper without nodes begins, or ends: waits until it has.
std::optional<std::uint64_t> seed_of_stepper(directory const& where) {
    auto const until = std::chrono::steady_clock::now() + std::chrono::seconds{5};
    std::optional<std::uint64_t> seed = where.stepper_seed();
    while (seed && where.nodes().empty() && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
        seed = where.stepper_seed();
    }
    return seed;
}

// A node of the network of another machine, joined with `life` if it is not. A bridge of earlier commands may be
// ending: the next one can only begin then.
directory::member join(
    directory const& where, rcverbs::fabric::tcp_address const& to, descriptor& life
) {
    auto const until = std::chrono::steady_clock::now() + std::chrono::seconds{10};
    do {
        if (!where.has_bridge()) life = rcverbs::fabric::bridge::join(where, to);
        if (auto given = where.take_given_node()) return *std::move(given);
        std::this_thread::sleep_for(std::chrono::milliseconds{10});
    } while (std::chrono::steady_clock::now() < until);
    throw std::runtime_error{"the bridge of network " + where.path() + " ends all the time"};
}

int run(fabric_arguments& a) {
    fs::path const libraries = library_folder();
    directory const where = directory::of_network(a.chosen.network);
    a.chosen.directory_path = where.path();
    using rcverbs::fabric::bridge;
    using rcverbs::fabric::tcp_address;
    // All processes of a network go on step by step, or none.
    std::optional<std::uint64_t> const seed = seed_of_stepper(where);
    if (seed && !(a.listens_at.empty() && a.joins.empty()))
        throw std::runtime_error{"a stepped network is joined by no other one"};
    // Stays open in the command and its children, as the lock does.
    descriptor bridged;
    if (!a.listens_at.empty()) bridged = bridge::listen(where, tcp_address::parse(a.listens_at));
    directory::member held;
    bool const gets_node = !a.joins.empty() && a.node == 0;
    if (gets_node) held = join(where, tcp_address::parse(a.joins), bridged);
    else if (!a.joins.empty() && !where.has_bridge())
        bridged = bridge::join(where, tcp_address::parse(a.joins));
    descriptor stepped;
    if (seed) {
        if (a.chosen.seed.value_or(*seed) != *seed)
            throw std::runtime_error{
                "the network " + a.chosen.network + " has --seed " + std::to_string(*seed)};
        a.chosen.is_stepped = true;
        a.chosen.seed = seed;
    } else if (a.chosen.is_stepped) {
        if (!where.nodes().empty())
            throw std::runtime_error{
                "the network " + a.chosen.network + " is in use, and not stepped"};
        if (!a.chosen.seed) a.chosen.seed = std::random_device{}();
        stepped = rcverbs::fabric::start_stepper(where, *a.chosen.seed);
    }
    // The lock stays open in the command and its children: the node is theirs until the last one ends.
    if (a.node != 0) held = {a.node, where.hold_node(a.node)};
    else if (!gets_node) held = where.take_node();
    a.chosen.node = held.number;
    if (!a.chosen.capture.empty()) {
        // Commands in other folders write to the same file. What is there already belongs to the same network.
        a.chosen.capture = fs::absolute(a.chosen.capture);
        rcverbs::fabric::detail::capture::create(a.chosen.capture);
    }
    a.chosen.to_environment();
    auto const addresses = rcverbs::fabric::detail::addresses_of(held.number, 0);
    ::setenv("RCVERBS_FABRIC_ADDRESS", addresses[0].c_str(), 1);
    ::setenv("RCVERBS_FABRIC_ADDRESS6", addresses[1].c_str(), 1);
    put_before("LD_PRELOAD", libraries / "librcverbs-fabric.so", ' ');
    put_before("LD_LIBRARY_PATH", libraries, ':');
    if (!a.is_quiet) {
        std::fprintf(
            stderr, "rcverbs-fabric: node %u of network %s:", held.number, a.chosen.network.c_str()
        );
        for (std::uint32_t i = 0; i < a.chosen.devices; ++i) {
            auto const own = rcverbs::fabric::detail::addresses_of(held.number, i);
            std::fprintf(
                stderr,
                "%s fab%u has %s and %s",
                i > 0 ? "," : "",
                i,
                own[0].c_str(),
                own[1].c_str()
            );
        }
        std::fputc('\n', stderr);
        if (stepped)
            std::fprintf(
                stderr,
                "rcverbs-fabric: repeat this run with --seed %llu\n",
                static_cast<unsigned long long>(*a.chosen.seed)
            );
    }
    std::vector<char*> words;
    for (std::string& word : a.command) words.push_back(word.data());
    words.push_back(nullptr);
    ::execvp(words.front(), words.data());
    int const error = errno;
    std::fprintf(stderr, "rcverbs-fabric: %s: %s\n", words.front(), std::strerror(error));
    return error == ENOENT ? 127 : 126;  // as a shell
}

std::string name_of(pid_t process) {
    std::error_code ignored;
    fs::path const program = fs::read_symlink("/proc/" + std::to_string(process) + "/exe", ignored);
    return program.filename();
}

// One that nobody has created has none.
std::vector<std::uint32_t> nodes_of(std::optional<directory> const& where) {
    return where ? where->nodes() : std::vector<std::uint32_t>{};
}

int list(fabric_arguments const& a) {
    auto const where = directory::find_network(a.chosen.network);
    auto const nodes = nodes_of(where);
    if (nodes.empty())
        std::fprintf(stderr, "rcverbs-fabric: nobody is in network %s\n", a.chosen.network.c_str());
    for (std::uint32_t const node : nodes) {
        std::printf("%u  %s", node, rcverbs::fabric::detail::addresses_of(node, 0).front().c_str());
        for (std::uint32_t const slot : where->slots(node)) {
            pid_t const process = where->process_of(node, slot);
            if (process == 0) std::printf("  elsewhere");
            else std::printf("  %d %s", process, name_of(process).c_str());
            if (auto const faults = where->faults_of(node, slot); process != 0 && !faults.empty())
                std::printf(" (%s)", faults.c_str());
        }
        for (std::uint32_t const port : where->ports(node)) std::printf("  port %u", port);
        std::printf("\n");
    }
    return 0;
}

// Tells the processes of a node, or of all nodes.
int tell(fabric_arguments const& a, std::string const& text) {
    auto const where = directory::find_network(a.chosen.network);
    std::vector<std::byte> const bytes = rcverbs::fabric::detail::control_frame(text);
    std::size_t told = 0;
    for (std::uint32_t const node : nodes_of(where)) {
        if (a.node != 0 && node != a.node) continue;
        for (std::uint32_t const slot : where->slots(node)) {
            if (where->process_of(node, slot) == 0) continue;  // of another machine
            descriptor const socket =
                rcverbs::fabric::detail::connect_to(where->socket_path(node, slot));
            if (socket && ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0)
                ++told;
        }
    }
    if (told > 0) return 0;
    std::fprintf(
        stderr,
        "rcverbs-fabric: no process of network %s uses RDMA there\n",
        a.chosen.network.c_str()
    );
    return 1;
}

int kill_node(fabric_arguments const& a) {
    auto const where = directory::find_network(a.chosen.network);
    std::size_t killed = 0;
    auto const slots = where ? where->slots(a.node) : std::vector<std::uint32_t>{};
    for (std::uint32_t const slot : slots) {
        pid_t const process = where->process_of(a.node, slot);
        if (process > 0 && ::kill(process, SIGKILL) == 0) ++killed;
    }
    if (killed > 0) return 0;
    std::fprintf(
        stderr, "rcverbs-fabric: node %u has no process of this machine that uses RDMA\n", a.node
    );
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    fabric_arguments a;
    CLI::App app{
        "Runs programs with RDMA devices that exist in memory only: no RDMA hardware, kernel "
        "module or rights are needed.\n"
        "Programs of one user that name the same network reach each other."};
    app.set_version_flag("--version", "rcverbs-fabric (rcverbs " RCVERBS_VERSION ")");
    app.require_subcommand(1);
    app.fallthrough();
    app.add_option("--network", a.chosen.network, "The network's name")
        ->check([](std::string const& name) {
            return rcverbs::fabric::detail::is_network_name(name)
                       ? std::string{}
                       : "'" + name + "' cannot be the name of a network";
        })
        ->capture_default_str();

    CLI::App* const running = app.add_subcommand("run", "Run a command as a node of the network");
    running
        ->add_option(
            "--node",
            a.node,
            "The node's number, 1 to 254; without it, a free one. Commands with the same number "
            "share their devices and ports"
        )
        ->check(CLI::Range(1, 254));
    running->add_option("--devices", a.chosen.devices, "Devices of the node, 1 to 16")
        ->check(CLI::Range(1, 16))
        ->capture_default_str();
    running
        ->add_option(
            "--seed",
            a.chosen.seed,
            "Decides which packets are lost, and with --stepped their order; without it, a random "
            "number"
        )
        ->check([](std::string const& text) {
            // Others become the largest number.
            std::uint64_t value = 0;
            auto const [end, failed] =
                std::from_chars(text.data(), text.data() + text.size(), value);
            bool const is_number = failed == std::errc{} && end == text.data() + text.size();
            return is_number ? std::string{} : "not a number from 0 to 2^64 - 1";
        });
    running
        ->add_option(
            "--loss",
            a.chosen.loss,
            "The share of packets that the node loses when it sends them, 0 to 1"
        )
        ->check(CLI::Range(0.0, 1.0));
    running
        ->add_option(
            "--delay",
            a.chosen.delay_us,
            "How much later the node's packets arrive, in microseconds"
        )
        ->check(CLI::Range(0, 60'000'000));
    running
        ->add_option(
            "--kill",
            a.chosen.kill,
            "NODE@PACKET: end the processes of a node when the command is about to send its packet "
            "with this number"
        )
        ->check([](std::string const& text) {
            try {
                rcverbs::fabric::detail::parse_kill(text);
                return std::string{};
            } catch (std::exception const& e) {
                return std::string{e.what()};
            }
        });
    running->add_option(
        "--pcap",
        a.chosen.capture,
        "Write the packets that the command sends to this file, as RoCE v2 frames for Wireshark"
    );
    auto const is_address = [](std::string const& text) {
        try {
            static_cast<void>(rcverbs::fabric::tcp_address::parse(text));
            return std::string{};
        } catch (std::exception const& e) {
            return std::string{e.what()};
        }
    };
    auto* const listens = running->add_option(
        "--listen",
        a.listens_at,
        "tcp:HOST:PORT: let the networks of other machines join this one there, until its last "
        "command ends. Whoever reaches the port can join"
    );
    auto* const joins = running->add_option(
        "--join", a.joins, "tcp:HOST:PORT: join the network of a machine that listens there"
    );
    running
        ->add_flag(
            "--stepped",
            a.chosen.is_stepped,
            "Let the network go on step by step: with the same --seed, programs that do the same "
            "send the same packets in "
            "the same order. For all commands of the network, until the last one ends"
        )
        ->excludes(listens)
        ->excludes(joins);
    listens->check(is_address)->excludes(joins);
    joins->check(is_address);
    running->add_flag("-q,--quiet", a.is_quiet, "Do not print the node's addresses");
    running->add_option("command", a.command, "The command and its arguments")->required();
    running->positionals_at_end(true);
    running->prefix_command(false);

    CLI::App* const listing = app.add_subcommand(
        "list",
        "List nodes: number, address, the processes that use RDMA, with links that are down and "
        "losses, and the ports at which they listen"
    );

    auto const with_node = [&a](CLI::App* command, bool is_required) {
        auto* const option = command->add_option("--node", a.node, "The node; without it, all")
                                 ->check(CLI::Range(1, 254));
        if (is_required) option->required();
    };
    CLI::App* const linking =
        app.add_subcommand("link", "Take the links of devices down, or up again");
    linking->add_option("state", a.state, "up or down")
        ->required()
        ->check(CLI::IsMember({"up", "down"}));
    with_node(linking, false);
    CLI::App* const losing =
        app.add_subcommand("loss", "Change the share of packets that are lost");
    losing->add_option("share", a.value, "0 to 1")->required()->check(CLI::Range(0.0, 1.0));
    with_node(losing, false);
    CLI::App* const killing = app.add_subcommand(
        "kill", "End the processes of a node that use RDMA, as if it had crashed"
    );
    killing->add_option("node", a.node, "The node")->required()->check(CLI::Range(1, 254));

    try {
        app.parse(argc, argv);
    } catch (CLI::RequiredError const& e) {
        // CLI11 does not name the word that is no subcommand.
        bool const is_other_word = app.get_subcommands().empty() && argc > 1 && *argv[1] != '-';
        if (!is_other_word) app.exit(e);
        else
            std::fprintf(
                stderr,
                "rcverbs-fabric: %s is none of run, list, link, loss and kill; see --help\n",
                argv[1]
            );
        return 2;
    } catch (CLI::ParseError const& e) {
        int const code = app.exit(e);
        return code == 0 ? 0 : 2;
    }
    try {
        if (running->parsed()) return run(a);
        if (listing->parsed()) return list(a);
        if (linking->parsed()) return tell(a, "link " + a.state);
        if (losing->parsed()) return tell(a, "loss " + a.value);
        if (killing->parsed()) return kill_node(a);
    } catch (std::exception const& e) {
        std::fprintf(stderr, "rcverbs-fabric: %s\n", e.what());
        return 1;
    }
}
