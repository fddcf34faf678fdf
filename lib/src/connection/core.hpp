// core.hpp — one connection: ties the connection manager's id, the queue pair, the completions and the machines together.
//
// Threads. Its events come from three sides: the event channel and the deadline timer on the io_context, completions on
// the polling thread, calls from anywhere. One lock guards all state; nothing blocks while it is held, and user code is
// called only after it was released. The lock order is: core, then event channel.
//
// Life. The user's handle, the completion source and handlers under way keep it alive. When the handle goes, or the
// connection ends for any other reason, teardown_machine leads to finish(): the completion source is stopped on its
// executor, the queue pair destroyed, what the device kept is answered, then the id goes, and the waiters are told.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <memory>
#include <optional>
#include <variant>

#include <rcverbs/buffer.hpp>
#include <rcverbs/connection.hpp>

#include "cm/id.hpp"
#include "connection/admission.hpp"
#include "connection/calls.hpp"
#include "connection/data_path.hpp"
#include "connection/registry.hpp"
#include "connection/shared_receives.hpp"
#include "machines/accept_machine.hpp"
#include "machines/connect_machine.hpp"
#include "machines/liveness.hpp"
#include "machines/teardown_machine.hpp"
#include "progress/completion_source.hpp"
#include "progress/light_mutex.hpp"
#include "progress/poller_thread.hpp"
#include "verbs/domain.hpp"
#include "verbs/queue_pair.hpp"

namespace rcverbs::detail {

// The connection manager's fields. Source: rdma_connect(3), rdma_accept(3), rdma_reject(3); measured.
inline constexpr std::size_t connect_data_max = 56;
inline constexpr std::size_t accept_data_max = 196;
inline constexpr std::size_t reject_data_max = 148;

/// errc::invalid_option if a field is out of its range.
error_code validate(connection_options const& options) noexcept;

class connection_core final : public std::enable_shared_from_this<connection_core>,
                              public registered,
                              public cm::event_sink,
                              public cm::device_event_sink,
                              public progress::completion_sink {
public:
    /// An idle connection. Throws errc::invalid_option, or what starting a thread throws.
    static std::shared_ptr<connection_core> make(boost::asio::io_context& context, connection_options options);
    /// A connection for a peer's request, with its queue pair made. A failure refuses the request.
    static std::shared_ptr<connection_core> make_for_request(
        boost::asio::io_context& context, connection_options options, cm::event request,
        std::shared_ptr<admission::place> place, error_code& ec
    );

    connection_core(boost::asio::io_context& context, connection_options options);
    ~connection_core();

    void start_resolve(endpoint const& peer, bool and_connect, control_handler handler);
    void start_establish(std::span<std::byte const> private_data, control_handler handler);
    void start_accept(std::span<std::byte const> private_data, control_handler handler);
    void start_disconnect(control_handler handler);
    void start_wait(control_handler handler);
    queue_pair_address prepare(std::string const& device, std::optional<std::uint8_t> gid_index, error_code& ec);
    error_code establish(queue_pair_address const& peer);
    error_code set_remote_access(access_flags rights);
    void stop_keepalive() noexcept;
    errc start_operation(std::span<request const> what, turn when, handler_source source);
    error_code reject(std::span<std::byte const> private_data);
    void close() noexcept;

    /// Calls an operation off, if it still is in that use.
    void cancel(operation& op, std::uint32_t use, boost::asio::cancellation_type type);

    /// Notes a failure that a level above found, and closes for that reason.
    void fail(failure what, close_reason reason);

    boost::asio::any_io_executor const& executor() const noexcept { return executor_; }
    boost::asio::io_context& context() const noexcept { return context_; }
    bool is_open() const;
    protection_domain domain() const;
    connection_limits limits() const;
    endpoint peer() const;
    endpoint local() const;
    std::vector<std::byte> private_data() const;
    close_reason reason() const;
    failure last_failure() const;
    connection_statistics statistics() const;
    std::uint32_t queue_pair_number() const;
    ibv_qp* native_queue_pair() const;

private:
    using connect = machines::connect_machine;
    using accept = machines::accept_machine;
    using teardown = machines::teardown_machine;
    using guard = progress::light_lock;

    [[gnu::noinline]] errc start_specially(
        guard& lock, std::span<request const> what, turn when, handler_source source
    );

    // From the outside.
    void shut_down() noexcept override;
    void on_event(cm::event& e) override;
    void on_device_event(cm::device_event const& e) override;
    std::size_t on_completions(std::span<ibv_wc const> batch) override;
    void on_queue_broken(error_code ec) override;
    void on_deadline(std::uint64_t armed);

    // With the lock held; what is to be called is added to calls_.
    void resume(connect::event e, error_code ec = {}, int status = 0);
    void resume(accept::event e, error_code ec = {}, int status = 0);
    void resume(teardown::event e);
    void setup_failed(error_code ec);
    errc no_device() const noexcept;
    void fail_setup(error_code ec, int status = 0);
    void break_down(errc why, int status, close_reason reason);
    void perform(step s, error_code ec);
    void make_id_queue_pair(error_code& ec);
    void make_queue_pair(ibv_context* device, error_code& ec);
    void established(step s);
    void note(step where, error_code ec, int status, close_reason reason);
    bool set_waiter(control_waiter& waiter, control_handler& handler, bool is_wait);
    void cancel(control_waiter& waiter, std::uint64_t serial, bool is_wait);
    void notify_step(step s);
    void arm(std::chrono::milliseconds deadline);
    void disarm() noexcept;
    void stop();
    [[gnu::noinline]] void check_drained();
    void pump() {
        if (data_.has_work() && !(is_open_ && data_.ring(qp_))) post_waiting();
        if (!is_watching_) watch();
    }
    [[gnu::noinline]] void post_waiting();
    [[gnu::noinline]] void on_failed(completion_report const& report);
    void name_flushed(operation_list const& done) noexcept;
    [[gnu::noinline]] void watch();
    void look();
    machines::liveness::view view() const noexcept;
    void give_up(errc why);
    void send_keepalive();
    void begin_finish();
    void finish();
    operation_list take_rest(operation_list& arrived) noexcept;
    error_code flush_error() const noexcept;
    bool setup_is_under_way() const noexcept;
    [[gnu::noinline]] errc refusal(request const& what) const noexcept;
    errc plain_refusal(request const& what) const noexcept;
    error_code end_code() const noexcept;
    cm::connection_parameters parameters(std::span<std::byte const> private_data) const noexcept;
    // Names the calling thread, in an instruction or two. (The model is right as long as nobody unloads the library.)
    static void const* this_thread() noexcept {
        [[gnu::tls_model("initial-exec")]] static thread_local char name;
        return &name;
    }
    bool is_live() const noexcept { return teardown_.current() == teardown::state::live; }

    // Without the lock.
    void make_calls(guard& lock) {
        if (calls_.empty()) {
            lock.unlock();
        } else {
            post_calls(lock);
        }
    }
    [[gnu::noinline]] void post_calls(guard& lock);
    void run_round(operation_list done);
    [[gnu::noinline]] void run_shared_round(completion_report& report);
    [[gnu::noinline]] void post_handlers(operation_list done);

    boost::asio::io_context& context_;
    registry& registry_;
    // Held until the connection has ended: what it does on its polling thread would not keep io_context::run() going.
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
    connection_options const options_;
    std::shared_ptr<progress::poller_thread> poller_;
    boost::asio::any_io_executor executor_;

    mutable progress::light_mutex mutex_;
    std::unique_ptr<cm::id> id_;
    // An acceptor's, given back when the queue pair is gone.
    std::shared_ptr<admission::place> place_;
    std::shared_ptr<verbs::domain> domain_;
    std::shared_ptr<progress::completion_source> source_;
    verbs::queue_pair qp_;
    data_path data_;
    std::shared_ptr<buffer> atomic_results_;
    std::shared_ptr<shared_receives> shared_;
    std::shared_ptr<progress::poll_counters const> poll_counters_;

    std::variant<connect, accept> setup_;
    teardown teardown_;
    bool is_open_ = false;
    // A bit for each kind of operation that this device and this connection can do, once it is open.
    std::uint32_t kinds_ = 0;
    bool connects_at_once_ = false;
    // Connected without the connection manager: its id is there for nothing but to keep the event channel at work.
    bool is_out_of_band_ = false;
    queue_pair_address own_address_;
    verbs::port_address port_address_;
    std::uint32_t port_ = 1;
    bool has_finished_ = false;
    bool is_shut_down_ = false;
    std::vector<std::byte> own_private_data_;

    std::optional<boost::asio::steady_timer> timer_;
    std::uint64_t timer_use_ = 0;
    // The thread that is inside a round of completions: what it starts is posted at the end of the round.
    void const* round_thread_ = nullptr;
    // Looked at from time to time: while there is posted work, or always, as the options want it.
    machines::liveness liveness_;
    bool is_watching_ = false;
    std::uint64_t keepalives_sent_ = 0;

    control_waiter setup_waiter_;
    control_waiter disconnect_waiter_;
    control_waiter end_waiter_;
    std::uint64_t waiter_serial_ = 0;
    calls calls_;

    connection_limits limits_;
    endpoint peer_;
    endpoint local_;
    std::vector<std::byte> peer_private_data_;
    close_reason reason_ = close_reason::open;
    failure failure_;
};

}  // namespace rcverbs::detail
