// shared_receives.hpp — the receives of a shared receive queue: which wait, which are posted, which are done.
//
// Receives that are posted have a slot each, whose number is their work request's id, since they complete in the order of the
// connections' queues and not in their own. Connections attach when their queue pair is made, hand over the completions that
// are for this queue, and detach when their queue pair is gone. One lock guards it; no other is taken under it.
#pragma once

#include <boost/asio/io_context.hpp>

#include <memory>
#include <span>
#include <vector>

#include <rcverbs/shared_receive_queue.hpp>

#include "connection/data_path.hpp"
#include "connection/registry.hpp"
#include "progress/light_mutex.hpp"
#include "verbs/domain.hpp"

namespace rcverbs::detail {

class shared_receives final : public std::enable_shared_from_this<shared_receives>, public registered {
public:
    static std::shared_ptr<shared_receives> make(boost::asio::io_context& context, shared_receive_options options);
    shared_receives(boost::asio::io_context& context, shared_receive_options options);
    ~shared_receives();

    boost::asio::any_io_executor const& executor() const noexcept { return options_.executor; }
    protection_domain domain() const;
    std::uint32_t credits() const;

    errc start(request const& what, turn when, handler_source source);
    void close() noexcept;
    /// Takes an operation back that waits, if it still is in that use. One that is posted stays.
    void cancel(operation& op, std::uint32_t use, boost::asio::cancellation_type type);

    /// A connection of this domain is about to make its queue pair: makes the queue, if there is none yet.
    void attach(std::shared_ptr<verbs::domain> const& domain, error_code& ec);
    /// Its queue pair is gone, or was not made.
    void detach() noexcept;
    /// The verbs object. REQUIRES: attached.
    ibv_srq* get() const noexcept { return queue_.get(); }
    /// How many completions of this queue there can be at a time. REQUIRES: attached.
    std::uint32_t depth() const noexcept { return depth_; }
    /// A completion that is for this queue: the operation to be completed.
    operation* take(ibv_wc const& completion) noexcept;
    /// Calls the handlers of what has been taken, here if this is `running`, and posts what waits.
    void complete(operation_list taken, boost::asio::any_io_executor const& running);

private:
    using guard = progress::light_lock;

    void shut_down() noexcept override;
    void post_waiting(operation_list& refused);
    void end(operation& op, error_code ec) noexcept;
    void end_all(operation_list const& list, error_code ec) noexcept;
    void release_all(guard& lock);
    void drop_all() noexcept;
    void post_handlers(operation_list done);
    void call_handlers(operation_list done);

    registry& registry_;
    shared_receive_options options_;

    mutable progress::light_mutex mutex_;
    std::shared_ptr<verbs::domain> domain_;
    verbs::shared_queue_handle queue_;
    std::uint32_t depth_ = 0;
    std::size_t segments_max_ = 0;
    std::size_t users_ = 0;
    bool is_closed_ = false;
    bool is_shut_down_ = false;

    std::unique_ptr<operation[]> operations_;
    std::size_t operation_count_ = 0;
    operation_list free_;
    operation_list waiting_;
    std::size_t in_use_ = 0;
    // Of the work request that is being posted.
    std::vector<ibv_sge> segments_;
    // By number; null where a slot is free.
    std::vector<operation*> slots_;
    std::vector<std::uint32_t> free_slots_;
};

}  // namespace rcverbs::detail
