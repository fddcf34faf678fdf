// server.hpp — runs a target until a signal ends it.
//
// The target runs on a polling thread of its own, and its I/O queues on that or on several;
// signals, statistics and messages on the program's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/nvme/target.hpp>
#include <rcverbs/rcverbs.hpp>

#include "common/metrics_server.hpp"
#include "common/exit_code.hpp"
#include "common/repeating_signals.hpp"
#include "rdma-nvme/configuration.hpp"
#include "rdma-nvme/memory_plan.hpp"

namespace demo {

/// How to wait for completions on this machine: adaptive, or event if the process may use one processor
/// only. There, polling would take it from the programs, or from the kernel, that produce completions.
rcverbs::poll_mode default_poll_mode();

struct nvme_arguments {
    std::string bind;
    std::uint16_t port = 4420;
    std::vector<subsystem_description> subsystems;
    /// The file that they are from, which SIGHUP reads again; empty for none.
    std::string configuration;
    rcverbs::nvme::target_options target;
    /// Whether connections_max of it may be lowered.
    queue_wish queues = queue_wish::at_most;
    /// Of I/O queues.
    unsigned threads = 1;
    /// Of all polling threads.
    rcverbs::poll_mode poll = default_poll_mode();
    /// FIRST-LAST; empty for all.
    std::string controller_ids;
    /// A port or a path; empty for none.
    std::string metrics;
    bool is_quiet = false;
};

class nvme_server {
public:
    nvme_server(boost::asio::io_context& io, nvme_arguments a);

    /// Opens the stores, listens, and serves until SIGINT or SIGTERM. Throws if it cannot.
    void start();

private:
    void on_signal(int number);
    void end();
    void wait_for_hosts();
    void try_reload();
    void reload();
    void print_remarks() const;
    store_surroundings surroundings();
    void apply_ana_states(std::string const& nqn);
    void print_replaced(opened_subsystems const& next) const;

    boost::asio::io_context& io_;
    nvme_arguments arguments_;
    rcverbs::poller polling_;  // outlives the stores
    opened_subsystems served_;
    repeating_signals signals_;
    boost::asio::steady_timer patience_;
    boost::asio::steady_timer tick_;
    std::optional<rcverbs::nvme::target> target_;
    std::optional<metrics_server> metrics_;
};

}  // namespace demo
