// rdma-nvme — serves files, block devices or memory to NVMe over Fabrics initiators, by RDMA.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <tuple>

#include "common/arguments.hpp"
#include "rdma-nvme/configuration.hpp"
#include "rdma-nvme/server.hpp"

namespace {

using demo::exit_code;

struct serve_arguments {
    std::string file;
    std::string memory;
    std::string nbd;
    std::string rbd;
    std::string ceph_configuration;
    std::string keyring;
    bool writes_through = false;
    std::string configuration;
    demo::subsystem_description disk;
    std::uint32_t block_bytes = 0;
    bool is_read_only = false;
    bool is_shared = false;
    bool is_direct = false;
    std::string method = "auto";
};

std::vector<demo::subsystem_description> subsystems_of(serve_arguments const& a) {
    int const sources = !a.file.empty() + !a.memory.empty() + !a.nbd.empty() + !a.rbd.empty() +
                        !a.configuration.empty();
    if (sources != 1)
        throw demo::configuration_error{"give one of FILE, --nbd, --rbd, --memory and --config"};
    if (!a.configuration.empty()) return demo::read_configuration(a.configuration);
    demo::subsystem_description s = a.disk;
    if (s.nqn.empty()) s.nqn = rcverbs::nvme::machine_nqn();
    if (s.nqn.empty())
        throw demo::configuration_error{
            "this machine has no /etc/machine-id to name the subsystem by: give --nqn"};
    demo::disk_description d;
    d.file = a.file;
    d.nbd = a.nbd;
    d.rbd = a.rbd;
    d.ceph_configuration = a.ceph_configuration;
    d.keyring = a.keyring;
    if (!demo::can_serve(d))
        throw demo::configuration_error{
            std::string{"this rdma-nvme was built without "} +
            (a.rbd.empty() ? "libnbd" : "librbd")};
    d.writes_through = a.writes_through;
    if (a.block_bytes > 0) d.block_bytes = a.block_bytes;
    d.is_read_only = a.is_read_only;
    d.is_shared = a.is_shared;
    d.is_direct = a.is_direct;
    d.method = demo::parse_method(a.method);
    if (!a.memory.empty()) d.memory_bytes = demo::parse_size(a.memory);
    s.disks = {d};
    return {s};
}

exit_code serve(serve_arguments const& a, demo::nvme_arguments served) {
    demo::background_printing const printing;
    try {
        served.subsystems = subsystems_of(a);
        served.configuration = a.configuration;
        if (!served.controller_ids.empty())
            std::tie(served.target.controller_id_min, served.target.controller_id_max) =
                demo::parse_controller_ids(served.controller_ids);
    } catch (demo::configuration_error const& e) {
        demo::print_error(e.what());
        return exit_code::usage;
    }
    try {
        boost::asio::io_context io;
        demo::nvme_server server{io, std::move(served)};
        try {
            server.start();
        } catch (boost::system::system_error const& e) {
            demo::print_error(demo::plain_text(e, a.configuration));
            // An option that is wrong, or a combination of them.
            return e.code() == rcverbs::errc::invalid_option ? exit_code::usage
                                                             : exit_code::could_not_connect;
        }
        io.run();
    } catch (std::exception const& e) {
        return demo::report_start_failure(e);
    }
    return exit_code::done;
}

void add_serve(CLI::App& app, serve_arguments& a, demo::nvme_arguments& served) {
    app.add_option("file", a.file, "the file or block device to serve")->option_text("FILE");
    app.add_option(
           "--memory",
           a.memory,
           "serve memory of this size instead: 512M, 2G; it is lost at the end"
    )
        ->option_text("SIZE");
    CLI::Option* const nbd = app.add_option(
                                    "--nbd",
                                    a.nbd,
                                    "serve the export of an NBD server instead: nbd://HOST/EXPORT, "
                                    "nbd+unix:///EXPORT?socket=PATH, nbds:// with TLS"
    )
                                 ->option_text("URI");
    app.add_flag(
           "--write-through",
           a.writes_through,
           "with --nbd: each write is durable when it completes, so that none is lost with a "
           "server "
           "that ends"
    )
        ->needs(nbd);
    CLI::Option* const rbd =
        app.add_option("--rbd", a.rbd, "serve an image of a Ceph cluster, or a snapshot, instead")
            ->option_text("[USER@]POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]");
    app.add_option(
           "--ceph-conf",
           a.ceph_configuration,
           "with --rbd: Ceph's configuration; without it, $CEPH_CONF, or /etc/ceph/ceph.conf"
    )
        ->needs(rbd)
        ->option_text("FILE");
    app.add_option("--keyring", a.keyring, "with --rbd: the file with the user's key")
        ->needs(rbd)
        ->option_text("FILE");
    app.add_option("--config", a.configuration, "serve what this JSON file describes instead")
        ->option_text("FILE");
    app.add_option("--nqn", a.disk.nqn, "the name of the subsystem, by which hosts connect")
        ->option_text("NQN [nqn.2026-01.io.rcverbs: and a name of this machine]");
    app.add_option(
           "--allow-host",
           a.disk.allowed_hosts,
           "the NQN of a host that may connect; may be given more than once. Without it, all may"
    )
        ->option_text("NQN");
    app.add_option(
           "--block-size",
           a.block_bytes,
           "the size of a block in bytes; without it, that of the device, or the one with which "
           "the "
           "contents of the file were written, or 4096"
    )
        ->check(CLI::IsMember({512, 1024, 2048, 4096}))
        ->option_text("512|1024|2048|4096");
    app.add_flag("--read-only", a.is_read_only, "refuse writes");
    app.add_flag(
        "--shared", a.is_shared, "serve FILE although it is mounted, or used by another program"
    );
    app.add_flag("--direct", a.is_direct, "bypass the page cache (O_DIRECT)");
    app.add_option(
           "--file-io",
           a.method,
           "how data that is not in the page cache is read and written: by io_uring, by threads, "
           "which block, or auto: reads by io_uring where the system allows it, else by threads"
    )
        ->check(CLI::IsMember({"auto", "io_uring", "threads"}))
        ->option_text("auto|io_uring|threads [auto]");
    for (char const* const option : {"--shared", "--direct", "--file-io"}) {
        nbd->excludes(app.get_option(option));
        rbd->excludes(app.get_option(option));
    }
    // They describe the one disk of the command line, not those of a configuration.
    for (char const* const option :
         {"file",
          "--memory",
          "--nbd",
          "--write-through",
          "--rbd",
          "--ceph-conf",
          "--keyring",
          "--nqn",
          "--allow-host",
          "--block-size",
          "--read-only",
          "--shared",
          "--direct",
          "--file-io"})
        app.get_option("--config")->excludes(app.get_option(option));
    demo::add_address(
        app, "--bind", served.bind, "the local address to listen on; without it, all addresses"
    );
    app.add_option("--port", served.port, "the port to listen on; 0 picks a free one")
        ->check(CLI::Range(0, 65535))
        ->option_text("N [4420]");
    app.add_option("--io-queues", served.target.io_queues_max, "the most I/O queues of a host")
        ->check(CLI::Range(1, 64))
        ->option_text("N [16]");
    app.add_option(
           "--max-queues",
           served.target.connections_max,
           "the most queues of all hosts together; without it, 256, or as many as the memory that "
           "may "
           "be locked is enough for"
    )
        ->check(CLI::Range(1, 4096))
        ->option_text("N");
    app.add_option(
           "--threads",
           served.threads,
           "the polling threads of I/O queues; 1 is the thread that does everything else, too"
    )
        ->check(CLI::Range(1, 64))
        ->option_text("N [1]");
    demo::add_poll(app, served.poll)
        ->option_text("busy|adaptive|event [adaptive; event if there is one processor]");
    app.add_option(
           "--controller-ids",
           served.controller_ids,
           "the numbers of controllers, such as 1-1000: two programs that serve one disk under one "
           "NQN need numbers that differ"
    )
        ->option_text("FIRST-LAST [1-65519]");
    app.add_option(
           "--statistics",
           served.metrics,
           "serve the counters over HTTP on this port of 127.0.0.1, or on the Unix socket of this "
           "path: /metrics for Prometheus, /statistics in JSON"
    )
        ->option_text("PORT|PATH");
    app.get_option("--statistics")->check(demo::fault_of_metrics_place);
    app.add_flag("-q,--quiet", served.is_quiet, "do not print when hosts connect and leave");
    app.footer(
        "Exit codes:\n"
        "  0  ended by SIGINT or SIGTERM\n"
        "  1  any other error, such as memory that could not be registered\n"
        "  2  wrong usage, or a configuration with an error\n"
        "  3  could not open the file, or could not listen\n"
    );
}

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered: a script waits for lines
    CLI::App app{
        "Serves disks to NVMe over Fabrics initiators by RDMA: Linux connects with nvme connect "
        "--transport rdma."};
    app.require_subcommand(1);
    CLI::App& command = *app.add_subcommand(
        "serve",
        "Serves a file, a block device or memory, until SIGINT or SIGTERM. SIGUSR1 prints the "
        "counters in JSON; SIGHUP reads the configuration and the sizes of files again."
    );
    serve_arguments a;
    demo::nvme_arguments served;
    add_serve(command, a, served);
    exit_code code = exit_code::other;
    if (!demo::parse(app, argc, argv, code)) return static_cast<int>(code);
    if (command.count("--max-queues") > 0) served.queues = demo::queue_wish::exactly;
    return static_cast<int>(serve(a, std::move(served)));
}
