// target_core.hpp — the state of a target: its acceptor, its controllers and their queues.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/nvme/target.hpp>
#include <rcverbs/rcverbs.hpp>

#include "admission.hpp"
#include "controller.hpp"
#include "host_counters.hpp"
#include "queue.hpp"
#include "report_budget.hpp"

namespace rcverbs::nvme::detail {

class target_core final : public std::enable_shared_from_this<target_core> {
public:
    struct counters {
        std::atomic<std::uint64_t> controllers{0};
        std::atomic<std::uint64_t> queues{0};
        std::atomic<std::uint64_t> controllers_made{0};
        std::atomic<std::uint64_t> refused{0};
        std::atomic<std::uint64_t> keep_alive_expired{0};
        std::atomic<std::uint64_t> reads{0};
        std::atomic<std::uint64_t> read_bytes{0};
        std::atomic<std::uint64_t> writes{0};
        std::atomic<std::uint64_t> written_bytes{0};
        std::atomic<std::uint64_t> other_commands{0};
        std::atomic<std::uint64_t> failed_commands{0};
        std::atomic<std::uint64_t> store_failures{0};
        std::atomic<std::uint64_t> transfers_stalled{0};
        std::atomic<std::uint64_t> commands{0};
        old_command_counters old_commands;
    };

    target_core(
        runs_on<boost::asio::any_io_executor> where,
        endpoint const& local,
        std::vector<subsystem_options> subsystems,
        target_options options
    );

    void start();
    void close() noexcept;

    boost::asio::any_io_executor const& executor() const noexcept { return where_.get_executor(); }
    target_options const& options() const noexcept { return options_; }
    endpoint local() const { return local_; }
    counters& counted() noexcept { return counters_; }
    target_statistics statistics() const;
    std::vector<host_statistics> statistics_by_host() const { return by_host_.snapshot(); }

    void serve(std::vector<subsystem_options> subsystems);
    void add_namespace(std::string const& nqn, namespace_options what);
    void remove_namespace(std::string const& nqn, std::uint32_t id);
    void namespace_changed(std::string const& nqn, std::uint32_t id);
    void set_ana_state(std::string const& nqn, std::uint32_t group, ana_state now);

    // --- for queues, on any thread; what they cause happens on the executor ----------------------

    /// The queue's connection has ended.
    void on_end(std::shared_ptr<queue> const& ended, failure const& why);
    /// The host of the queue has proved itself, or needs not.
    void on_trusted(std::shared_ptr<queue> const& from);
    /// The host of the queue does not have its secret, or does not trust this controller's.
    void on_failed_authentication(std::shared_ptr<queue> const& from);
    /// The host of the queue has not proved itself within connect_timeout.
    void on_late(std::shared_ptr<queue> const& from);
    /// A store failed a request: reports the first of each kind.
    void on_store_failure(
        std::string const& nqn,
        std::shared_ptr<disk> const& of,
        store_operation operation,
        error_code const& why
    );
    /// The host has not taken a transfer for too long.
    void on_stalled_transfer(std::shared_ptr<queue> const& from);
    /// The queue has commands that are as old as command_report_age, and had none.
    ///
    /// @param first  The state of the oldest.
    void on_old_commands(
        std::shared_ptr<queue> const& from, std::size_t count, command_state first
    );
    /// Memory could not be registered.
    void on_no_memory(std::string const& why);
    /// A command has arrived for the controller, whose host was believed to be gone.
    void on_life(std::shared_ptr<controller> const& of);

    /// Tells hosts what has become of the reservations of a namespace.
    void on_reservation(
        subsystem const& of,
        std::uint32_t namespace_id,
        std::vector<reservations::outcome::told> const& notices
    );
    /// Calls on any thread, when no command of these hosts that is for the disk is under way.
    void when_unused(
        std::shared_ptr<disk> of, std::vector<host_id> hosts, std::function<void()> done
    );

    // --- for queues, on the executor -------------------------------------------------------------

    /// Executes a Connect command.
    connect_result connect(
        std::shared_ptr<queue> const& from, command const& c, connect_data const& data
    );
    /// Starts the keep-alive timer anew, with the controller's time.
    void watch(std::uint16_t id);
    /// The host has disabled the controller: its I/O queues end.
    void on_disabled(controller const& of);

private:
    // A controller, its queues, and its keep-alive timer.
    struct association {
        std::shared_ptr<controller> about;
        std::vector<std::shared_ptr<queue>> queues;  // the admin queue first
        boost::asio::steady_timer timer;
        /// The host has proved itself once, or needed not.
        bool was_trusted = false;
    };

    template <class F>
    void run(F f);
    runs_on<boost::asio::any_io_executor> place_for(std::optional<std::size_t> poller) const;
    std::optional<std::size_t> choose_poller(std::uint16_t queue_id) const;
    void get_request();
    void on_request(connection_request request);
    void reject(connection_request request, connect_reject why, std::string const& what = {});
    bool make_room(endpoint const& peer, connection_request& request);
    bool make_room_for_controller(endpoint const& host);
    void evict(std::shared_ptr<queue> const& held, std::string const& for_what);
    void forget(std::shared_ptr<queue> const& ended, failure const& why);
    void refuse(queue& from, std::string const& what);
    void check_transfers();
    void on_refused(endpoint const& peer, refusal why);
    std::uint32_t io_queues_left(endpoint const& host) const;
    std::shared_ptr<host_account> account_of(std::string const& host, endpoint const& at);
    std::shared_ptr<staging_memory> staging_for(protection_domain const& domain);
    void trust(queue& from);
    connect_result connect_admin(
        std::shared_ptr<queue> const& from,
        std::shared_ptr<subsystem> const& to,
        command const& c,
        connect_data const& data
    );
    connect_result connect_io(
        std::shared_ptr<queue> const& from,
        std::shared_ptr<subsystem> const& to,
        connect_data const& data
    );
    connect_result refuse_connect(
        queue& from, connect_data const& data, completion const& why, std::string const& what
    );
    void end_controllers(std::function<bool(controller const&)> const& of);
    discovery_list discover(endpoint const& local, std::string const& host) const;
    void on_silence(std::uint16_t id);
    std::shared_ptr<subsystem> find(std::string const& nqn) const;
    std::shared_ptr<subsystem> must_find(std::string const& nqn) const;
    void tell_hosts(std::shared_ptr<subsystem> const& of, std::vector<std::uint32_t> namespaces);
    void tell_hosts_of_ana(std::shared_ptr<subsystem> const& of);
    // Of hosts that come and go; of those that are refused, who need prove nothing.
    void report(std::string const& message);
    void report_refusal(std::string const& message);
    void report_end(queue& admin, bool was_trusted, failure const& why);
    using observer = std::function<void(std::string const& message)>;
    void report(report_budget& budget, observer const& to, std::string const& message);

    runs_on<boost::asio::any_io_executor> const where_;
    target_options const options_;
    using subsystem_map = std::map<std::string, std::shared_ptr<subsystem>>;
    subsystem_map subsystems() const;

    // Held by whoever adds namespaces, so that their UUIDs are compared with all others.
    std::mutex changing_;
    mutable std::mutex mutex_;
    // Guarded by mutex_.
    subsystem_map subsystems_;
    std::uint64_t generation_ = 1;  // of the discovery log
    std::shared_ptr<subsystem> const discovery_ = subsystem::discovery();
    acceptor acceptor_;
    boost::asio::steady_timer transfer_timer_;
    endpoint const local_;
    std::vector<std::pair<protection_domain, std::weak_ptr<staging_memory>>> staging_;
    std::shared_ptr<std::mutex> const accounts_mutex_ = std::make_shared<std::mutex>();
    std::map<std::uint16_t, association> associations_;
    std::vector<std::shared_ptr<queue>> queues_;  // the oldest first
    std::map<std::string, std::weak_ptr<host_account>>
        accounts_;  // of addresses, and of hosts there
    bool has_reported_memory_ = false;
    report_budget host_reports_{100};
    report_budget refusal_reports_{10};
    report_budget old_reports_{10};
    std::uint16_t last_id_ = 0;
    counters counters_;
    host_counter_table by_host_;
    bool is_closed_ = false;
};

}  // namespace rcverbs::nvme::detail
