#include "rdma-nvme/server.hpp"

#include <boost/asio/post.hpp>
#include <boost/uuid/uuid.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <sched.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <type_traits>
#include <utility>

#include "common/arguments.hpp"
#include "common/lockable.hpp"
#include "common/printable.hpp"
#include "common/service_manager.hpp"

namespace demo {

namespace {

using rcverbs::nvme::commands_by_state;
constexpr std::array<std::pair<char const*, std::uint64_t commands_by_state::*>, 6> states{
    {{"waiting_for_memory", &commands_by_state::waiting_for_memory},
     {"receiving_data", &commands_by_state::receiving_data},
     {"in_store", &commands_by_state::in_store},
     {"executing", &commands_by_state::executing},
     {"sending_data", &commands_by_state::sending_data},
     {"answering", &commands_by_state::answering}}};
constexpr char const* old_help = "Commands that arrived more than a second ago";

// What target_statistics says.
std::vector<metric> metrics_of(rcverbs::nvme::target_statistics const& s) {
    std::vector<metric> all{
        {"controllers", false, "Controllers at this moment", s.controllers},
        {"queues", false, "Queues at this moment", s.queues},
        {"commands", false, "Commands at this moment", s.commands},
        {"controllers_made", true, "Controllers made", s.controllers_made},
        {"refused", true, "Connections refused", s.refused},
        {"keep_alive_expired", true, "Hosts lost", s.keep_alive_expired},
        {"reads", true, "Reads", s.reads},
        {"read_bytes", true, "Bytes read", s.read_bytes},
        {"writes", true, "Writes", s.writes},
        {"written_bytes", true, "Bytes written", s.written_bytes},
        {"other_commands", true, "Other I/O commands", s.other_commands},
        {"failed_commands", true, "Commands with an error", s.failed_commands},
        {"transfers_stalled", true, "Queues that took no transfer", s.transfers_stalled},
        {"store_failures", true, "Requests that a store failed", s.store_failures},
    };
    for (auto const& [state, field] : states)
        all.push_back({"old_commands", false, old_help, s.old_commands.*field, {{"state", state}}});
    return all;
}

// What host_statistics say. The metrics of a name stand together.
void add_hosts(std::vector<metric>& to, std::vector<rcverbs::nvme::host_statistics> const& all) {
    using row = rcverbs::nvme::host_statistics;
    using labels = std::vector<std::pair<std::string, std::string>>;
    auto const each = [&](std::string const& name,
                          std::string const& help,
                          labels const& more,
                          auto field,
                          bool is_counter = true) {
        for (row const& one : all) {
            labels of{
                {"subsystem", one.subsystem},
                {"namespace", std::to_string(one.namespace_id)},
                {"host", printable(one.host)}};
            of.insert(of.end(), more.begin(), more.end());
            metric next{name, is_counter, help, 0, std::move(of)};
            if constexpr (std::is_same_v<decltype(field), std::chrono::nanoseconds row::*>) {
                next.value = static_cast<std::uint64_t>((one.*field).count());
                next.is_time = true;
            } else {
                next.value = std::invoke(field, one);
            }
            to.push_back(std::move(next));
        }
    };
    std::string const commands = "I/O commands of a host that succeeded";
    each("host_commands", commands, {{"operation", "read"}}, &row::reads);
    each("host_commands", commands, {{"operation", "write"}}, &row::writes);
    each("host_commands", commands, {{"operation", "other"}}, &row::other_commands);
    std::string const time = "Time from the arrival of these commands until their answers";
    each("host_command_seconds", time, {{"operation", "read"}}, &row::read_time);
    each("host_command_seconds", time, {{"operation", "write"}}, &row::write_time);
    each("host_command_seconds", time, {{"operation", "other"}}, &row::other_time);
    std::string const bytes = "Bytes of these commands";
    each("host_bytes", bytes, {{"operation", "read"}}, &row::read_bytes);
    each("host_bytes", bytes, {{"operation", "write"}}, &row::written_bytes);
    each("host_store_requests", "Requests that the store completed", {}, &row::store_requests);
    each("host_store_seconds", "Time that the store had these requests", {}, &row::store_time);
    std::string const errors = "I/O commands of a host that ended with an error";
    each("host_errors", errors, {{"kind", "invalid"}}, &row::invalid_commands);
    each("host_errors", errors, {{"kind", "out_of_range"}}, &row::out_of_range);
    each("host_errors", errors, {{"kind", "write_protected"}}, &row::write_protected);
    each("host_errors", errors, {{"kind", "media"}}, &row::media_errors);
    each("host_errors", errors, {{"kind", "compare"}}, &row::compares_that_differ);
    each("host_errors", errors, {{"kind", "transient"}}, &row::transient_errors);
    for (auto const& [state, field] : states) {
        auto const old = [of = field](row const& r) { return r.old_commands.*of; };
        each("host_old_commands", old_help, {{"state", state}}, old, false);
    }
}

// What the stores on servers say.
void add_servers(std::vector<metric>& to, std::vector<server_statistics> const& all) {
    using row = server_statistics;
    auto const each = [&](char const* name, char const* help, std::uint64_t row::*field) {
        for (row const& one : all)
            to.push_back(
                {name,
                 true,
                 help,
                 one.*field,
                 {{"subsystem", one.subsystem}, {"namespace", std::to_string(one.namespace_id)}}}
            );
    };
    each(
        "store_connections_lost", "Connections to the store's server lost", &row::connections_lost
    );
    each("store_repeated", "Requests sent to the store's server again", &row::repeated);
    each("store_given_up", "Requests that the store's server did not answer", &row::given_up);
}

std::string text_of(std::array<std::byte, 16> const& bytes) {
    boost::uuids::uuid id{};
    std::memcpy(id.data, bytes.data(), bytes.size());
    return boost::uuids::to_string(id);
}

}  // namespace

namespace asio = boost::asio;
namespace nvme = rcverbs::nvme;

namespace {

constexpr std::chrono::seconds disconnect_timeout{5};
// Of an event's text, with two names of up to 256 bytes.
constexpr std::size_t event_bytes_max = 1024;

}  // namespace

rcverbs::poll_mode default_poll_mode() {
    cpu_set_t allowed;
    bool const has_one =
        ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) == 1;
    return has_one ? rcverbs::poll_mode::event : rcverbs::poll_mode::adaptive;
}

nvme_server::nvme_server(asio::io_context& io, nvme_arguments a)
    : io_{io},
      arguments_{std::move(a)},
      signals_{io.get_executor()},
      patience_{io},
      tick_{io} {}

void nvme_server::start() {
    signals_.start({SIGINT, SIGTERM, SIGUSR1, SIGHUP}, [this](int number) { on_signal(number); });
    // Names of hosts come from hosts: they are printed as one line of printable characters.
    if (!arguments_.is_quiet) {
        // On the target's thread, which may outlive this object.
        arguments_.target.on_event = [](std::string const& message) {
            print(printable(message, event_bytes_max) + '.');
        };
    }
    // Also with --quiet: somebody must repair it.
    arguments_.target.on_fault = [](std::string const& message) {
        print_error(printable(message));
    };
    rcverbs::poller_options const polling{.polling = {.mode = arguments_.poll}};
    for (unsigned i = 0; arguments_.threads > 1 && i < arguments_.threads; ++i)
        arguments_.target.io_pollers.push_back(rcverbs::poller::start(polling));
    polling_ = rcverbs::poller::start(polling);
    served_ = open_stores(arguments_.subsystems, {}, surroundings());
    std::string const lowered = fit_into_memory(
        arguments_.target, served_.options, lockable_bytes_max(), arguments_.queues
    );
    if (!lowered.empty()) print_error(lowered);
    listen_at(arguments_.bind, arguments_.port, [&](rcverbs::endpoint const& here) {
        target_.emplace(polling_, here, served_.options, arguments_.target);
        return 0;
    });
    print_remarks();
    std::size_t const count = served_.options.size();
    if (!arguments_.metrics.empty())
        metrics_.emplace(io_, arguments_.metrics, "rdma_nvme", [this] {
            std::vector<metric> all = metrics_of(target_->statistics());
            add_hosts(all, target_->statistics_by_host());
            add_servers(all, statistics_of_servers(served_));
            return all;
        });
    print(
        "serving " + std::to_string(count) + (count == 1 ? " subsystem" : " subsystems") +
        " on port " + std::to_string(target_->local_endpoint().port()) + "."
    );
    if (metrics_ && metrics_->port() != 0)
        print("statistics on port " + std::to_string(metrics_->port()) + '.');
    for (auto const& each : served_.options) print("subsystem " + each.nqn + '.');
    notify_ready();
}

store_surroundings nvme_server::surroundings() {
    return {
        polling_.get_executor(),
        // Also with --quiet: somebody must repair it.
        [](std::string const& nqn, std::uint32_t id, std::string const& text) {
            print_error("namespace " + std::to_string(id) + " of " + nqn + ": " + text);
        },
        // The target is this thread's.
        [this](std::string const& nqn, std::uint32_t id) {
            asio::post(io_, [this, nqn, id] {
                try {
                    if (target_) target_->namespace_changed(nqn, id);
                } catch (boost::system::system_error const&) {
                    // It has been removed meanwhile.
                }
            });
        },
        [this](std::string const& nqn) {
            asio::post(io_, [this, nqn] { apply_ana_states(nqn); });
        }};
}

// A group is not reached here while the servers of all its disks are away.
void nvme_server::apply_ana_states(std::string const& nqn) {
    auto const found = std::ranges::find(served_.options, nqn, &nvme::subsystem_options::nqn);
    if (!target_ || found == served_.options.end()) return;
    std::map<std::uint32_t, bool> is_away;
    for (nvme::namespace_options const& n : found->namespaces) {
        bool const is_it = !n.store->is_reached();
        auto const [group, is_first] = is_away.try_emplace(n.ana_group, is_it);
        if (!is_first) group->second = group->second && is_it;
    }
    for (auto const& [group, is_it] : is_away) {
        auto const as_configured = found->ana_states.find(group);
        nvme::ana_state const usual = as_configured == found->ana_states.end()
                                          ? nvme::ana_state::optimized
                                          : as_configured->second;
        target_->set_ana_state(nqn, group, is_it ? nvme::ana_state::inaccessible : usual);
    }
}

void nvme_server::on_signal(int number) {
    switch (number) {
    case SIGUSR1: return print(to_json(metrics_of(target_->statistics())));
    case SIGHUP: return try_reload();
    default: return end();
    }
}

void nvme_server::end() {
    notify_stopping();
    signals_.stop();
    target_->close();
    if (metrics_) metrics_->close();
    patience_.expires_after(disconnect_timeout);
    wait_for_hosts();
}

// Hosts that do not answer, and stores, are given up after the deadline. Without a command, no store uses
// the target any more.
void nvme_server::wait_for_hosts() {
    bool const is_late = patience_.expiry() <= std::chrono::steady_clock::now();
    nvme::target_statistics const now = target_->statistics();
    if ((now.queues == 0 && now.commands == 0) || is_late) return print(to_json(metrics_of(now)));
    tick_.expires_after(std::chrono::milliseconds{20});
    tick_.async_wait([this](boost::system::error_code const&) { wait_for_hosts(); });
}

void nvme_server::try_reload() {
    notify_reloading();
    try {
        reload();
        print("reloaded.");
    } catch (std::exception const& e) {
        print_error("nothing was changed: " + plain_text(e, arguments_.configuration));
    }
    notify_ready();
}

// All or nothing: whatever fails comes before the target changes. Without a configuration file, the
// file may have another size, or another file may have its name.
void nvme_server::reload() {
    auto now = arguments_.configuration.empty() ? served_.described
                                                : read_configuration(arguments_.configuration);
    opened_subsystems next = open_stores(std::move(now), served_, surroundings());
    check_memory(arguments_.target, next.options, lockable_bytes_max());
    target_->serve(next.options);
    for (std::string const& line : changes(served_.described, next.described)) print(line);
    print_replaced(next);
    served_ = std::move(next);
    for (auto const& each : served_.options) apply_ana_states(each.nqn);
    print_remarks();
}

// Disks that other ones have replaced under their numbers.
void nvme_server::print_replaced(opened_subsystems const& next) const {
    auto const uuid_of = [](nvme::namespace_options const& n) {
        return n.uuid ? n.uuid : n.store->uuid();
    };
    for (nvme::subsystem_options const& now : next.options) {
        auto const before =
            std::ranges::find(served_.options, now.nqn, &nvme::subsystem_options::nqn);
        if (before == served_.options.end()) continue;
        for (nvme::namespace_options const& disk : now.namespaces) {
            auto const old =
                std::ranges::find(before->namespaces, disk.id, &nvme::namespace_options::id);
            if (old == before->namespaces.end() || uuid_of(*old) == uuid_of(disk)) continue;
            print(
                "namespace " + std::to_string(disk.id) + " of " + now.nqn + " is another disk now."
            );
        }
    }
}

void nvme_server::print_remarks() const {
    bool const has_secrets = std::ranges::any_of(served_.described, [](auto const& each) {
        return !each.secrets.empty();
    });
    if (has_secrets && is_readable_by_all(arguments_.configuration))
        print_error(
            "every user of this machine can read the secrets in " + arguments_.configuration +
            ": chmod o-r"
        );
    for (std::size_t i = 0; i < served_.options.size(); ++i) {
        for (auto const& disk : served_.options[i].namespaces) {
            auto const* const file = dynamic_cast<nvme::file_store const*>(disk.store.get());
            if (file == nullptr) continue;
            std::string const name =
                "namespace " + std::to_string(disk.id) + " of " + served_.options[i].nqn;
            if (!disk.uuid && !file->has_lasting_uuid())
                print_error(
                    name +
                    " has nothing to identify it by, so hosts take it for another disk after each "
                    "start: give it a \"uuid\" in the configuration"
                );
            if (auto const other = file->uuid_elsewhere(); other && !disk.uuid)
                print_error(
                    name + ": another machine has served its file, with the UUID " +
                    text_of(*other) +
                    ". If the file has moved, and is no copy, give it this \"uuid\""
                );
            if (std::uint32_t const left = file->bytes_left_out(); left > 0)
                print_error(
                    name + ": the last " + std::to_string(left) +
                    " bytes of the file are no whole block and are not served"
                );
        }
    }
}

}  // namespace demo
