#include "connection/shared_receives.hpp"

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <mutex>
#include <utility>

#include "connection/leaked_resources.hpp"
#include <rcverbs/detail/option_check.hpp>
#include "hosting/executors.hpp"
#include "verbs/errno_map.hpp"
#include "verbs/region_record.hpp"
#include "verbs/work_request.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

shared_receives::shared_receives(place const& where, shared_receive_options const& options)
    : thread_{hosting::thread_of(where.executor)},
      given_{where.executor},
      executor_{hosting::in_order(given_)},
      options_{options} {}

shared_receives::~shared_receives() = default;

std::shared_ptr<shared_receives> shared_receives::make(
    place const& where, shared_receive_options const& options
) {
    option_check check{"shared_receive_options"};
    check.from("depth", options.depth, 1).from("segments_max", options.segments_max, 1);
    throw_if_refused(check.problem());
    auto made = std::make_shared<shared_receives>(where, options);
    made->membership_.join(where.executor, made, hosting::rank::object);
    return made;
}

void shared_receives::attach(std::shared_ptr<verbs::domain> const& domain, error_code& ec) {
    // One thread at a time creates the queue, without the lock.
    std::lock_guard const making{making_};
    bool is_made = false;
    {
        guard const lock{mutex_};
        ec = {};
        if (is_closed_ || is_shut_down_) ec = errc::not_connected;
        else if (queue_ != nullptr && domain != domain_) ec = errc::foreign_domain;
        if (ec) return;
        is_made = queue_ != nullptr;
        if (is_made) ++users_;
    }
    if (is_made) return;
    device_limits const& device = domain->on().limits();
    std::uint32_t const depth_max =
        std::min(device.shared_receive_depth_max, device.completion_queue_depth_max / 2);
    if (depth_max == 0) {
        ec = boost::system::errc::make_error_code(boost::system::errc::operation_not_supported);
        return;
    }
    std::uint32_t const depth = std::min(options_.depth, depth_max);
    std::size_t const segments_max = std::min(options_.segments_max, device.segments_max);
    ibv_srq_init_attr attributes{};
    attributes.attr.max_wr = depth;
    attributes.attr.max_sge = static_cast<std::uint32_t>(segments_max);
    verbs::shared_queue_handle made{ibv_create_srq(domain->get(), &attributes)};
    ec = verbs::from_pointer(made.get());
    if (ec) return;
    operation_pool pool{std::size_t{depth} + options_.waiting_max, depth};
    std::vector<operation*> slots(depth, nullptr);
    std::vector<std::uint32_t> free_slots;
    free_slots.reserve(depth);
    for (std::uint32_t i = depth; i-- > 0;) free_slots.push_back(i);
    std::vector<ibv_sge> segments(segments_max);
    guard const lock{mutex_};
    if (is_closed_ || is_shut_down_) {
        ec = errc::not_connected;
        return;
    }
    queue_ = std::move(made);
    domain_ = domain;
    depth_ = depth;
    segments_max_ = segments_max;
    slots_ = std::move(slots);
    free_slots_ = std::move(free_slots);
    segments_ = std::move(segments);
    pool_ = std::move(pool);
    ++users_;
}

void shared_receives::detach(bool is_destroyed) noexcept {
    guard lock{mutex_};
    if (!is_destroyed) is_used_for_ever_ = true;
    if (--users_ > 0) return;
    if (is_shut_down_) {
        lock.unlock();
        return drop_all();
    }
    if (is_closed_) release_all(lock);
}

errc shared_receives::start(work_request const& what, turn when, handler_source source) {
    operation* op = nullptr;
    if (errc const refused = reserve(what, when, op); refused != errc{}) return refused;
    try {
        place_handler(source, *op, given_, *this);
    } catch (...) {
        give_back(*op);
        throw;
    }
    guard lock{mutex_};
    if (is_shut_down_) {
        lock.unlock();
        give_back(*op);
        return {};
    }
    op->stage = operation::stage::started;
    operation_list refused;
    if (is_closed_) {
        end(*op, asio::error::operation_aborted);
        refused.push_back(*op);
    } else {
        op->what = what;
        waiting_.push_back(*op);
        post_waiting(refused);
    }
    lock.unlock();
    if (!refused.empty()) post_handlers(refused);
    return {};
}

// Takes an operation, whose handler is then placed without the lock, or returns the reason for its
// refusal.
errc shared_receives::reserve(work_request const& what, turn when, operation*& op) noexcept {
    guard const lock{mutex_};
    if (queue_ == nullptr || is_closed_ || is_shut_down_) return errc::not_connected;
    for (plain_slice const& each : what.local.all()) {
        errc const problem = check(each.mark(), domain_.get(), access_flags::local_write);
        if (problem != errc{}) return problem;
    }
    if (verbs::count_segments(what) > segments_max_) return errc::too_many_segments;
    if (when == turn::now && (free_slots_.empty() || !waiting_.empty())) return errc::would_block;
    op = pool_.take();
    if (op == nullptr && pool_.grow()) op = pool_.take();
    return op != nullptr ? errc{} : errc::queue_full;
}

void shared_receives::give_back(operation& op) noexcept {
    op.drop();
    guard const lock{mutex_};
    pool_.give_back(op);
}

// Posts waiting receives as far as there are slots. A receive that the device refuses fails.
void shared_receives::post_waiting(operation_list& refused) {
    while (!waiting_.empty() && !free_slots_.empty()) {
        operation& op = *waiting_.pop_front();
        std::uint32_t const number = free_slots_.back();
        ibv_recv_wr wr{};
        verbs::build(wr, segments_.data(), op.what);
        wr.wr_id = verbs::shared_receive_id(number);
        ibv_recv_wr* bad = nullptr;
        if (error_code const ec =
                verbs::from_returned_code(ibv_post_srq_recv(queue_.get(), &wr, &bad))) {
            end(op, ec);
            refused.push_back(op);
            continue;
        }
        free_slots_.pop_back();
        slots_[number] = &op;
        op.is_posted = true;
    }
}

operation* shared_receives::take(ibv_wc const& completion) noexcept {
    guard const lock{mutex_};
    std::uint64_t const number = verbs::sequence_of(completion.wr_id);
    if (number >= slots_.size() || slots_[number] == nullptr) return nullptr;
    operation* const op = std::exchange(slots_[number], nullptr);
    free_slots_.push_back(static_cast<std::uint32_t>(number));
    bool const is_well = completion.status == IBV_WC_SUCCESS;
    end(*op, is_well ? error_code{} : verbs::from_status(completion.status));
    if (is_well) {
        op->result.arrival = verbs::read_arrival(completion);
    } else {
        op->result.arrival.queue_pair_number = completion.qp_num;
    }
    return op;
}

void shared_receives::complete(operation_list taken, asio::any_io_executor const& running) {
    operation_list refused;
    {
        guard const lock{mutex_};
        if (queue_ != nullptr && !is_closed_) post_waiting(refused);
    }
    if (!refused.empty()) post_handlers(refused);
    if (running == given_ && executor_ == given_) {
        call_handlers(taken);
    } else {
        post_handlers(taken);
    }
}

void shared_receives::call_handlers(operation_list done) {
    operation_list all;
    {
        guard const lock{mutex_};
        all = std::exchange(interrupted_, {});
    }
    all.append(done);
    detail::call_handlers(all, [this](operation_list& called, operation_list const& left) {
        guard lock{mutex_};
        pool_.release(called);
        if (left.empty()) return;
        // After an exception: before what completes later.
        operation_list first = left;
        first.append(interrupted_);
        interrupted_ = first;
        lock.unlock();
        post_handlers({});
    });
}

void shared_receives::post_handlers(operation_list done) {
    asio::post(executor_, [self = shared_from_this(), done] { self->call_handlers(done); });
}

void shared_receives::end(operation& op, error_code ec) noexcept {
    op.code = ec;
    op.result = {};
    pool_.leave(op);
}

void shared_receives::end_all(operation_list const& list, error_code ec) noexcept {
    for (operation* op = list.front(); op != nullptr; op = op->next) end(*op, ec);
}

void shared_receives::cancel(operation& op, std::uint32_t use, asio::cancellation_type type) {
    guard lock{mutex_};
    if (op.use != use || op.stage != operation::stage::started || is_shut_down_ ||
        type == asio::cancellation_type::none)
        return;
    if (!waiting_.remove(op)) return;
    end(op, asio::error::operation_aborted);
    lock.unlock();
    operation_list taken;
    taken.push_back(op);
    post_handlers(taken);
}

void shared_receives::close() noexcept {
    guard lock{mutex_};
    if (std::exchange(is_closed_, true) || is_shut_down_) return;
    if (users_ == 0) return release_all(lock);
    operation_list aborted = std::exchange(waiting_, {});
    end_all(aborted, asio::error::operation_aborted);
    lock.unlock();
    if (!aborted.empty()) post_handlers(aborted);
}

// Called when no queue pair is attached any more. Once the queue is destroyed, the device does not
// use the buffers any more.
void shared_receives::release_all(guard& lock) {
    ibv_srq* const queue = queue_.release();
    bool const is_kept = queue != nullptr &&
                         (is_used_for_ever_ || verbs::from_returned_code(ibv_destroy_srq(queue)));
    operation_list left = std::exchange(waiting_, {});
    for (operation* const op : slots_) {
        if (op != nullptr) left.push_back(*op);
    }
    slots_.clear();
    free_slots_.clear();
    end_all(
        left,
        is_kept ? make_error_code(errc::not_drained) : error_code{asio::error::operation_aborted}
    );
    // A queue that cannot be destroyed still needs its domain, so the domain is leaked.
    if (is_kept) leak({domain_, nullptr});
    lock.unlock();
    if (!left.empty()) post_handlers(left);
}

void shared_receives::context_is_going(asio::execution_context const&) noexcept {
    {
        guard const lock{mutex_};
        is_shut_down_ = true;
        // Connections are shut down in any order. If one is still attached, the last to detach
        // calls drop_all().
        if (users_ > 0) return;
    }
    drop_all();
}

void shared_receives::drop_all() noexcept {
    if (is_used_for_ever_) static_cast<void>(queue_.release());
    queue_.reset();
    domain_.reset();
    if (thread_ == nullptr) {
        given_ = {};
        executor_ = {};
    }
    pool_.drop_handlers(is_used_for_ever_);
}

protection_domain shared_receives::domain() const {
    guard const lock{mutex_};
    return detail::access::make<protection_domain>(domain_);
}

std::uint32_t shared_receives::credits() const {
    guard const lock{mutex_};
    return static_cast<std::uint32_t>(slots_.size() - free_slots_.size());
}

errc start_receive(
    std::shared_ptr<shared_receives> const& queue,
    work_request const& what,
    turn when,
    handler_source source
) {
    return queue->start(what, when, source);
}

void post_refusal(shared_receives const& queue, handler_source const& source, errc why) {
    auto op = refused_operation(queue.executor(), source, why);
    if (op != nullptr)
        asio::post(queue.executor(), [op = std::move(op)] { complete_refused(*op); });
}

}  // namespace rcverbs::detail

namespace rcverbs {

// The copies of a handle share this object. The last copy closes the queue, even if connections
// still hold it.
shared_receive_queue_base::shared_receive_queue_base(
    detail::place const& where, shared_receive_options const& options
) {
    auto const made = detail::shared_receives::make(where, options);
    struct handle {
        std::shared_ptr<detail::shared_receives> queue;
        ~handle() { queue->close(); }
    };
    std::shared_ptr<handle> const kept{new handle{made}};
    core_ = {kept, made.get()};
}

void shared_receive_queue_base::close() noexcept {
    if (core_ != nullptr) core_->close();
}
protection_domain shared_receive_queue_base::domain() const { return core_->domain(); }
std::uint32_t shared_receive_queue_base::credits() const { return core_->credits(); }

}  // namespace rcverbs
