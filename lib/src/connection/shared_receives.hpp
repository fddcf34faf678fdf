// shared_receives.hpp — the receives of a shared receive queue: queues, posts and completes them.
//
// Each posted receive has a slot, whose number is the id of its work request: receives complete in
// the order of the connections' queues, not in the order of posting. A connection attaches before
// it creates its queue pair, hands over the completions that belong to this queue, and detaches
// after its queue pair is destroyed. One lock guards everything; no other lock is taken while it is
// held.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <rcverbs/shared_receive_queue.hpp>

#include "connection/operation_list.hpp"
#include "connection/operation_pool.hpp"
#include "connection/connection_services.hpp"
#include "hosting/light_mutex.hpp"
#include "hosting/poller_thread.hpp"
#include "verbs/domain.hpp"

namespace rcverbs::detail {

class shared_receives final : public std::enable_shared_from_this<shared_receives>,
                              public hosting::member {
public:
    static std::shared_ptr<shared_receives> make(
        place const& where, shared_receive_options const& options
    );
    shared_receives(place const& where, shared_receive_options const& options);
    ~shared_receives();

    /// The default executor of the handlers, which runs them one at a time.
    boost::asio::any_io_executor const& executor() const noexcept { return executor_; }
    protection_domain domain() const;
    std::uint32_t credits() const;

    errc start(work_request const& what, turn when, handler_source source);
    void close() noexcept;
    /// Cancels op if its use count still matches and it is not posted.
    void cancel(operation& op, std::uint32_t use, boost::asio::cancellation_type type);

    /// Called before a connection of this domain creates its queue pair. Creates the shared receive
    /// queue if it does not exist yet.
    void attach(std::shared_ptr<verbs::domain> const& domain, error_code& ec);
    /// Called after the connection's queue pair was destroyed, or could not be created. If it could
    /// not be destroyed, the device may use the receives of this queue for ever: it is leaked when it
    /// is closed, and they complete with errc::not_drained.
    void detach(bool is_destroyed = true) noexcept;
    /// The verbs object. REQUIRES: attached.
    ibv_srq* get() const noexcept { return queue_.get(); }
    /// The largest number of outstanding completions of this queue. REQUIRES: attached.
    std::uint32_t depth() const noexcept { return depth_; }
    /// Returns the operation that a completion of this queue belongs to; null if there is none.
    operation* take(ibv_wc const& completion) noexcept;
    /// Posts waiting receives, and calls the handlers of `taken`: directly if `running` is the
    /// executor, otherwise by posting them.
    void complete(operation_list taken, boost::asio::any_io_executor const& running);

private:
    using guard = hosting::light_lock;

    void context_is_going(boost::asio::execution_context const&) noexcept override;
    errc reserve(work_request const& what, turn when, operation*& op) noexcept;
    void give_back(operation& op) noexcept;
    void post_waiting(operation_list& refused);
    void end(operation& op, error_code ec) noexcept;
    void end_all(operation_list const& list, error_code ec) noexcept;
    void release_all(guard& lock);
    void drop_all() noexcept;
    void post_handlers(operation_list done);
    void call_handlers(operation_list done);

    std::shared_ptr<hosting::poller_thread> const thread_;
    hosting::membership membership_;
    // The program's executor, and the same executor running one function at a time.
    boost::asio::any_io_executor given_;
    boost::asio::any_io_executor executor_;
    shared_receive_options const options_;

    // Held while the queue is created; taken before mutex_.
    std::mutex making_;
    mutable hosting::light_mutex mutex_;
    std::shared_ptr<verbs::domain> domain_;
    verbs::shared_queue_handle queue_;
    std::uint32_t depth_ = 0;
    std::size_t segments_max_ = 0;
    std::size_t users_ = 0;
    // By a queue pair that could not be destroyed.
    bool is_used_for_ever_ = false;
    bool is_closed_ = false;
    bool is_shut_down_ = false;

    operation_pool pool_;
    operation_list waiting_;
    // Completed, before all others whose handlers are to be called.
    operation_list interrupted_;
    // The segments of the work request that is being posted.
    std::vector<ibv_sge> segments_;
    // By number; null where a slot is free.
    std::vector<operation*> slots_;
    std::vector<std::uint32_t> free_slots_;
};

}  // namespace rcverbs::detail
