#include "rdma-nvme/server.hpp"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <csignal>
#include <utility>

#include "common/arguments.hpp"
#include "common/printable.hpp"

namespace demo {

namespace asio = boost::asio;
namespace nvme = rcverbs::nvme;

namespace {

constexpr std::chrono::seconds disconnect_deadline{5};

}  // namespace

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
            print(printable(message) + '.');
        };
    }
    std::size_t const disks = arguments_.subsystems.size();
    std::vector<nvme::subsystem_options> const stores = open_stores(arguments_.subsystems);
    listen_at(arguments_.bind, arguments_.port, [&](rcverbs::endpoint const& here) {
        target_.emplace(rcverbs::poller{}, here, stores, arguments_.target);
        return 0;
    });
    if (!arguments_.metrics.empty())
        metrics_.emplace(io_, arguments_.metrics, [this] { return target_->statistics(); });
    print(
        "serving " + std::to_string(disks) + (disks == 1 ? " subsystem" : " subsystems") +
        " on port " + std::to_string(target_->local_endpoint().port()) + "."
    );
}

void nvme_server::on_signal(int number) {
    switch (number) {
    case SIGUSR1: return print(to_json(target_->statistics()));
    case SIGHUP: return try_reload();
    default: return end();
    }
}

void nvme_server::end() {
    signals_.stop();
    target_->close();
    if (metrics_) metrics_->close();
    patience_.expires_after(disconnect_deadline);
    wait_for_hosts();
}

// Hosts that do not answer are given up after the deadline.
void nvme_server::wait_for_hosts() {
    bool const is_late = patience_.expiry() <= std::chrono::steady_clock::now();
    if (target_->statistics().queues == 0 || is_late) return print(to_json(target_->statistics()));
    tick_.expires_after(std::chrono::milliseconds{20});
    tick_.async_wait([this](boost::system::error_code const&) { wait_for_hosts(); });
}

void nvme_server::try_reload() {
    try {
        reload();
        print("reloaded.");
    } catch (std::exception const& e) {
        print_error(e.what());
    }
}

// Without a configuration file only the sizes of files can have changed.
void nvme_server::reload() {
    std::vector<subsystem_description> const now =
        arguments_.configuration.empty() ? arguments_.subsystems
                                         : read_configuration(arguments_.configuration);
    bool is_same = now.size() == arguments_.subsystems.size();
    for (subsystem_description& before : arguments_.subsystems) {
        auto const one = std::ranges::find(now, before.nqn, &subsystem_description::nqn);
        is_same = is_same && one != now.end() && one->allowed_hosts == before.allowed_hosts &&
                  one->secrets == before.secrets;
        if (one != now.end()) reload(before, *one);
    }
    if (!is_same)
        print_error("other changes than of namespaces need a restart: subsystems, hosts and secrets"
        );
}

void nvme_server::reload(subsystem_description& before, subsystem_description const& now) {
    auto const find = [](std::vector<disk_description> const& all, std::uint32_t id) {
        return std::ranges::find_if(all, [id](disk_description const& d) { return d.id == id; });
    };
    std::string const& nqn = before.nqn;
    // A namespace with another store or shape is removed and added again.
    for (auto d = before.disks.begin(); d != before.disks.end();) {
        auto const same = find(now.disks, d->id);
        if (same != now.disks.end() && *same == *d) {
            target_->namespace_changed(nqn, d->id);
            ++d;
        } else {
            target_->remove_namespace(nqn, d->id);
            d = before.disks.erase(d);
        }
    }
    for (disk_description const& d : now.disks) {
        if (find(before.disks, d.id) != before.disks.end()) continue;
        target_->add_namespace(nqn, open_store(d));
        before.disks.push_back(d);
    }
}

}  // namespace demo
