// queue.hpp — one queue of a host: a connection that carries commands and their completions.
//
// There is a capsule for each command that the host may have outstanding. It is a posted receive until
// a command arrives in it, and again before that command's response is posted: so an honest host always
// finds one, and one that sends more must wait. A slot has a command from its arrival to the completion
// of its response, which may come later than the host's next command; so there may be twice as many
// slots as capsules, made when they are first needed. What arrives when all are in use waits in its
// capsule.
//
// A queue runs on its connection's executor; an admin queue's is the target's. close(), abort(), probe()
// and check_transfers() may be called on any thread. A store's complete() answers the host on the
// store's thread if nothing else is left to do.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <rcverbs/rcverbs.hpp>

#include "authentication.hpp"
#include "command.hpp"
#include "command_state.hpp"
#include "controller.hpp"
#include "host_counters.hpp"
#include "staging.hpp"

namespace rcverbs::nvme::detail {

class target_core;

/// What the target knows of a queue. Used on the target's executor only.
struct queue_standing {
    /// The controller, after a Connect command.
    std::shared_ptr<controller> of;
    /// There is a controller, and the host has proved itself if it must.
    bool is_trusted = false;
    /// The refusal of its host has been counted and reported.
    bool is_refused = false;
    /// The index in target_options::io_pollers; none for the target's executor.
    std::optional<std::size_t> poller = {};

    /// Trusted, and not of discovery, which every host may use.
    bool is_proven() const noexcept { return is_trusted && !of->of().is_discovery(); }
};

/// The result of a Connect command.
struct connect_result {
    completion answer;
    /// Null if the command was refused, and then the rest is empty.
    std::shared_ptr<controller> of = {};
    /// As the command says: at most the number that the connection was made for.
    std::uint32_t depth = 0;
    std::shared_ptr<host_account> account = {};
    /// The secrets by which the host must authenticate.
    std::optional<host_secrets> secrets = {};
};

class queue final : public std::enable_shared_from_this<queue> {
public:
    /// @param of        The target.
    /// @param to        The connection of the host's request.
    /// @param asked     Its private data.
    /// @param staging   Memory for data, of the connection's domain.
    /// @throws the errors of memory_region.
    queue(
        std::shared_ptr<target_core> of,
        connection to,
        connect_private_data const& asked,
        std::shared_ptr<staging_memory> staging
    );
    /// Slots for each command that the host may have outstanding.
    static constexpr std::size_t slots_per_command = 2;

    queue(queue const&) = delete;
    queue& operator=(queue const&) = delete;
    ~queue();

    /// The size of the memory for commands and their completions.
    static constexpr std::size_t registered_bytes(
        std::uint32_t depth, std::uint32_t in_capsule_bytes
    ) noexcept {
        return depth * (command_bytes + in_capsule_bytes + slots_per_command * completion_bytes);
    }

    /// Posts the receives and accepts the host's request.
    void start();
    /// Disconnects.
    void close();
    /// Ends the connection at once.
    void abort();
    /// Starts or stops to check that the host's queue pair answers; the connection ends if it does
    /// not.
    void probe(bool is_on);
    /// Ends the queue if a transfer that was posted `periods` calls ago is not complete.
    void check_transfers(unsigned periods);
    /// Calls on the queue's executor, when no command that is for the disk is under way here.
    void when_unused(std::shared_ptr<disk> of, std::function<void()> done);
    /// Of an admin queue: sends the completion of an asynchronous event request.
    void complete(controller::event const& e);

    std::uint16_t id() const noexcept { return id_; }
    std::uint32_t depth() const noexcept { return depth_; }
    endpoint const& remote_endpoint() const noexcept { return remote_; }
    endpoint const& local_endpoint() const noexcept { return local_; }
    queue_standing& standing() noexcept { return standing_; }
    queue_standing const& standing() const noexcept { return standing_; }

private:
    class slot;
    /// What follows when a command has the memory, or the data, that it waits for.
    enum class step : std::uint8_t {
        none,
        connect,
        take_message,
        give_message,
        execute_admin,
        start_piece,
        start_store,
        access_memory,
        write_memory,
        next_discard,
        reserve,
        report_reservations,
    };
    /// A command that has arrived.
    struct arrival {
        std::uint32_t capsule;
        std::size_t size_bytes;
    };

    void run(void (queue::*what)());
    void do_start();
    void do_close();
    void do_abort();
    void give_waiting();
    void count_old();
    void count_as_old(slot& s, command_state in);
    void do_check_transfers(unsigned periods);
    bool is_trusted() const noexcept;
    mutable_slice capsule(std::uint32_t index) const;
    void post_receive(std::uint32_t index);
    void on_arrival(arrival const& what);
    void start_arrived();
    slot* take_slot();
    void on_command(slot& s, arrival const& from);
    void route(slot& s);
    status check_data(slot const& s) const;
    void proceed(slot& s);
    void fetch(slot& s, step next);
    void read_from_host(slot& s, step next);
    void with_memory(slot& s, std::size_t size_bytes, step next, bool may_be_cut = false);
    bool give_memory(slot& s);
    void free_memory(slot& s);
    void start_piece(slot& s);
    void write_to_host(slot& s);
    void finish_piece(slot& s);
    void connect(slot& s);
    void on_connected(slot& s, connect_result const& done);
    void drop_waiting();
    void authenticate(slot& s);
    void take_message(slot& s);
    void give_message(slot& s);
    void execute_admin(slot& s);
    void start_io(slot& s);
    void start_flush(slot& s);
    void start_transfer(slot& s);
    void start_write_zeroes(slot& s);
    void start_discard(slot& s);
    void next_discard(slot& s);
    void start_reservation(slot& s);
    void reserve(slot& s);
    void report_reservations(slot& s);
    void start_store(slot& s);
    void access_memory(slot& s);
    void write_memory(slot& s);
    void clear_memory(slot& s, step next);
    bool is_answer_due(slot const& s) const;
    void on_stored(slot& s, completion const& c, error_code const& why);
    void answer(slot& s, host_counters::clock::time_point now);
    void encode(slot& s, completion const& c);
    void on_answered(slot& s, error_code const& ec, bool is_last);
    void finish(slot& s, completion const& c);
    void fail(slot& s, status why) { finish(s, {0, why, false}); }
    void release(slot& s);
    void count(slot const& s, completion const& c, host_counters::clock::time_point now);

    // The target's executor has work until the queue is destroyed, on whatever thread.
    boost::asio::any_io_executor const target_work_;
    std::shared_ptr<target_core> const target_;
    connection connection_;
    boost::asio::any_io_executor const executor_;
    endpoint const remote_;
    endpoint const local_;
    queue_standing standing_;
    std::uint16_t const id_;
    std::uint32_t const depth_;
    std::uint32_t wraps_at_ = depth_;
    std::atomic<std::uint16_t> head_{0};
    // Held while a completion is made and posted, so that the heads of all arrive in order.
    std::mutex answering_;
    std::shared_ptr<staging_memory> const staging_;
    std::size_t const capsule_bytes_;
    registered_buffer memory_;  // the capsules, and behind them the completions
    std::vector<std::unique_ptr<slot>> slots_;
    std::vector<slot*> free_slots_;
    std::deque<arrival> arrived_;  // commands that wait for a slot
    std::shared_ptr<controller> controller_;  // after a Connect command
    bool is_connecting_ = false;
    std::unique_ptr<authenticator> authenticator_;  // null if hosts need no secret
    // Without one, before Connect, only the queue's own memory is used.
    std::shared_ptr<host_account> account_;
    registered_buffer own_;  // of staging_memory::queue_bytes, when it has been needed
    bool is_own_used_ = false;
    // Commands that wait for memory.
    std::deque<slot*> without_memory_;
    bool is_closing_ = false;  // takes no more commands
    std::atomic<bool> is_abandoned_{false};  // the host hears of no command any more
    std::atomic<unsigned> period_{0};  // counts calls of do_check_transfers()
    std::atomic<bool> is_check_due_{false};
    boost::asio::steady_timer deadline_;
    bool has_reported_old_ = false;
    // Asynchronous event requests that wait.
    std::vector<slot*> waiting_;
};

}  // namespace rcverbs::nvme::detail
