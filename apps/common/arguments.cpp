#include "common/arguments.hpp"

#include <CLI/CLI.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <filesystem>
#include <map>

#include "common/message_frame.hpp"
#include "common/version.hpp"

namespace demo {

namespace {

// The hello's mode numbers on the wire.
constexpr std::uint32_t write_mode = 1;
constexpr std::uint32_t read_mode = 2;
constexpr std::uint32_t atomic_mode = 3;

}  // namespace

rcverbs::session_options arguments::session() const {
    rcverbs::session_options s;
    switch (exchange.mode) {
    case transfer_mode::write: s.mode = write_mode; break;
    case transfer_mode::read: s.mode = read_mode; break;
    case transfer_mode::atomic: s.mode = atomic_mode; break;
    }
    s.exchange_timeout = timeout;
    s.finish_timeout = timeout;
    s.authentication = authentication;
    s.authentication.timeout = timeout;
    return s;
}

void arguments::apply_timeout() {
    // Steps that do not wait for the peer's program: the usual deadline, but at most --timeout and
    // at least a fifth of it.
    auto const share = [this](std::chrono::milliseconds usual) {
        return std::max(std::min(usual, timeout), timeout / 5);
    };
    connection.timeouts.resolve_address = share(connection.timeouts.resolve_address);
    connection.timeouts.resolve_route = share(connection.timeouts.resolve_route);
    connection.timeouts.connect = timeout;
    counter.patience = timeout;
    // Without receives posted at the peer, a send stalls: --timeout limits that, too.
    connection.liveness.stall_timeout = std::min(*connection.liveness.stall_timeout, timeout);
    connection.timeouts.disconnect = share(connection.timeouts.disconnect);
}

CLI::Option* add_duration(
    CLI::App& app,
    std::string const& name,
    std::chrono::milliseconds& out,
    std::string const& what,
    std::string const& usual
) {
    return app.add_option(name, out, what)
        ->transform(
            [](std::string const& text) {
                std::int64_t count = 0;
                std::string const units[] = {"ms", "s", "m"};
                std::int64_t const factors[] = {1, 1000, 60000};
                std::size_t digits = 0;
                while (digits < text.size() && digits < 7 && text[digits] >= '0' &&
                       text[digits] <= '9') {
                    count = count * 10 + (text[digits++] - '0');
                }
                for (std::size_t i = 0; i < 3; ++i) {
                    if (count > 0 && text.substr(digits) == units[i])
                        return std::to_string(count * factors[i]);
                }
                throw CLI::ValidationError(
                    "a duration above 0 with its unit (500ms, 10s, 2m), not " + text
                );
            },
            ""
        )
        ->option_text("DURATION [" + usual + "]");
}

CLI::Option* add_address(
    CLI::App& app,
    std::string const& name,
    std::string& out,
    std::string const& what,
    std::string const& usual
) {
    return app.add_option(name, out, what)
        ->check([](std::string const& given) {
            boost::system::error_code ec;
            if (!given.empty()) boost::asio::ip::make_address(given, ec);
            return ec ? given + " is not an IP address" : std::string{};
        })
        ->option_text(usual.empty() ? "ADDR" : "ADDR [" + usual + "]");
}

CLI::Option* add_poll(CLI::App& app, rcverbs::poll_mode& out) {
    return app.add_option("--poll", out, "how to wait for completions: busy, adaptive or event")
        ->transform(CLI::CheckedTransformer(std::map<std::string, rcverbs::poll_mode>{
            {"busy", rcverbs::poll_mode::busy},
            {"adaptive", rcverbs::poll_mode::adaptive},
            {"event", rcverbs::poll_mode::event}}))
        ->option_text("busy|adaptive|event [adaptive]");
}

void add_keys(CLI::App& app, rcverbs::authentication_options& out, bool is_client) {
    CLI::Option* const file =
        app.add_option_function<std::string>(
               "--key-file",
               [&out](std::string const& path) {
                   try {
                       out.keys = rcverbs::pre_shared_keys::load(path);
                   } catch (std::exception const& e) {
                       throw CLI::ValidationError(e.what());
                   }
               },
               is_client
                   ? "the key that the server must have, too: a line with an identity and a key"
                   : "only clients that have a key of this file may connect: a line for each, "
                     "with an identity and a key; read again for each client"
        )
            ->option_text("FILE");
    if (!is_client) return;
    // Behind the keys, in whichever order they are given.
    app.add_option_function<std::string>(
           "--identity",
           [&out](std::string const& who) {
               try {
                   out.keys = out.keys.as(who);
               } catch (std::exception const&) {
                   throw CLI::ValidationError("--identity: not 1 to 32 bytes");
               }
           },
           "who this client is, if the file has several"
    )
        ->needs(file)
        ->option_text("NAME [the only one]");
}

void reload(rcverbs::authentication_options const& what) {
    static std::string said;
    std::string why;
    try {
        auto keys = what.keys;  // the same ones
        keys.reload();
    } catch (std::exception const& e) {
        why = e.what();
    }
    if (!why.empty() && why != said) print_error(why + "; the keys remain as they were");
    said = why;
}

void add_shared(CLI::App& app, arguments& out) {
    app.add_option(
           "mode",
           out.exchange.mode,
           "the operation: each side writes or reads a message in the other's memory, or clients "
           "add to the server's counter"
    )
        ->required()
        ->transform(CLI::CheckedTransformer(std::map<std::string, transfer_mode>{
            {"write", transfer_mode::write},
            {"read", transfer_mode::read},
            {"atomic", transfer_mode::atomic}}))
        ->option_text("write|read|atomic REQUIRED");
    app.add_option(
           "--size",
           out.exchange.size_bytes,
           "size of the memory region in bytes; the same on both sides"
    )
        ->check(CLI::Range(frame_bytes_min, std::size_t{1} << 30))
        ->option_text("BYTES [1024]");
    add_duration(
        app,
        "--timeout",
        out.timeout,
        "deadline of each wait for the peer, such as 500ms, 10s or 2m; to resolve and to "
        "disconnect 2s, but at least a fifth of it and at most all of it",
        "10s"
    );
    add_poll(app, out.polling.mode);
    app.add_option(
           "--hold-at",
           out.exchange.hold_at,
           "stop at this step until the connection ends, to test the peer: connected, "
           "regions-sent, regions-received, locked, transferred or done-sent"
    )
        ->check(CLI::IsMember(
            {"connected", "regions-sent", "regions-received", "locked", "transferred", "done-sent"}
        ))
        ->option_text("STEP");
    app.add_flag(
        "--corrupt", out.exchange.corrupt, "damage the outgoing message, to test the checksum"
    );
    app.footer(exit_code_help);
}

std::vector<rcverbs::endpoint> resolve(std::string const& host, std::uint16_t port) {
    std::vector<rcverbs::endpoint> all;
    // getaddrinfo resolves an empty name to this machine.
    if (host.empty()) {
        print_error("no host given");
        return all;
    }
    boost::asio::io_context io;
    boost::system::error_code ec;
    auto const found = boost::asio::ip::tcp::resolver{io}.resolve(host, std::to_string(port), ec);
    if (ec) print_error("unknown host " + host + ": " + ec.message());
    for (auto const& each : found) all.emplace_back(each.endpoint().address(), port);
    return all;
}

std::optional<rcverbs::endpoint> resolve_with_route(
    std::string const& host, std::uint16_t port, std::string const& from
) {
    std::vector<rcverbs::endpoint> const all = resolve(host, port);
    if (all.empty()) return std::nullopt;
    rcverbs::connection_options options;
    if (!from.empty()) options.placement.bind_address = boost::asio::ip::make_address(from);
    for (rcverbs::endpoint const& each : all) {
        if (all.size() == 1) break;
        boost::asio::io_context io;
        rcverbs::connection probe{io, options};
        bool has_route = false;
        probe.async_resolve(each, [&](rcverbs::error_code failed) {
            has_route = !failed;
            probe.close();
        });
        io.run();
        if (has_route) return each;
    }
    return all.front();
}

void add_version(CLI::App& app, char const* program) {
    app.set_version_flag(
        "--version",
        std::filesystem::path{program}.filename().string() + ' ' + version(),
        "print the version, and exit"
    );
}

bool parse(CLI::App& app, int argc, char** argv, exit_code& code) {
    add_version(app, argv[0]);
    try {
        app.parse(argc, argv);
        return true;
    } catch (CLI::ParseError const& e) {
        code = app.exit(e) == 0 ? exit_code::done : exit_code::usage;
        return false;
    }
}

}  // namespace demo
