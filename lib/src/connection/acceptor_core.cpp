#include "connection/acceptor_core.hpp"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <cerrno>
#include <vector>
#include <limits>

#include "connection/resource_limits.hpp"
#include "error/detailed_error.hpp"
#include <rcverbs/detail/option_check.hpp>
#include <rcverbs/detail/timeouts.hpp>
#include "hosting/executors.hpp"
#include "verbs/errno_map.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

constexpr std::size_t backlog_max = 4096;
constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

std::string acceptor_problem(acceptor_options const& o) {
    using std::chrono::milliseconds;
    option_check check{"acceptor_options"};
    check.within("backlog", o.backlog, 1, backlog_max)
        .from("request_timeout", o.request_timeout, milliseconds{1})
        .from("answer_timeout", o.answer_timeout, milliseconds{1})
        .from("connections_max", o.connections_max, 1)
        .from("connections_per_address_max", o.connections_per_address_max, 1)
        .from("violation_delay", o.violation_delay, milliseconds{1})
        .inside(detail::problem_of(o.connection));
    return check.problem();
}

}  // namespace

acceptor_core::acceptor_core(place const& where, acceptor_options options)
    : thread_{hosting::thread_of(where.executor)},
      services_{connection_services::of(where.executor)},
      executor_{hosting::in_order(where.executor)},
      options_{std::move(options)},
      limiter_{std::make_shared<connection_limiter>(connection_limiter::limits{
          options_.connections_max ? *options_.connections_max : affordable_connections(options_),
          options_.connections_per_address_max.value_or(no_limit),
          options_.violation_delay.value_or(std::chrono::milliseconds{0})})} {}

acceptor_core::~acceptor_core() = default;

error_code acceptor_core::listen(endpoint const& local) {
    if (options_.busy_private_data.size() > reject_data_max) return errc::private_data_too_large;
    membership_.join(executor_, weak_from_this(), hosting::rank::object);
    limiter_->set_idle_handler([weak = weak_from_this()] {
        if (auto const self = weak.lock()) self->on_idle();
    });
    guard const lock{mutex_};
    error_code ec;
    id_ = services_.channel().make_id(ec);
    if (ec) return ec;
    id_->set_sink(weak_from_this());
    ec = id_->bind(local);
    if (!ec) ec = id_->listen(static_cast<int>(options_.backlog));
    // librdmacm silently drops requests if it cannot open the device. So listening fails instead of
    // starting a server that never receives a request.
    if (!ec && !verbs::has_free_descriptors(
                   descriptors_per_device + options_.descriptors_per_connection
               )) {
        ec = {EMFILE, boost::system::system_category()};
    }
    if (ec) return ec;
    local_ = id_->local();
    expiry_.emplace(executor_);
    return ec;
}

void acceptor_core::start_get_request(request_handler handler) {
    start(request_wait{{std::move(handler), executor_}});
}

void acceptor_core::start_accept(place where, accept_handler handler) {
    start(accept_wait{{std::move(handler), executor_}, std::move(where)});
}

template <class Wait>
void acceptor_core::start(Wait wait) {
    guard lock{mutex_};
    if (is_closed_) {
        lock.unlock();
        waiting refused;
        refused.emplace_back(waiter{std::move(wait)});
        return fail(std::move(refused), asio::error::operation_aborted);
    }
    waiters_.add(waiter{std::move(wait)}, weak_from_this(), &acceptor_core::cancel);
    lock.unlock();
    // Posted, because creating a queue pair is slow and an initiating function must return at once.
    asio::post(executor_, [self = shared_from_this()] { self->serve(); });
}

void acceptor_core::on_event(cm::event& e) {
    guard lock{mutex_};
    if (is_closed_) return;
    if (e.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        on_request(lock, e);
    } else if (e.type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
        failure_ = {step::listen, errc::device_removed, local_, e.status};
        lock.unlock();
        end(errc::device_removed);
    }
}

void acceptor_core::on_request(guard& lock, cm::event& e) {
    ++requests_seen_;
    // Outlives the lock: an id must not be destroyed while the lock is held.
    request_list expired;
    take_expired(expired);
    auto [place, why] = requests_.size() < options_.backlog
                            ? limiter_->admit(e.incoming->peer().address())
                            : connection_limiter::verdict{nullptr, refusal::backlog};
    if (place == nullptr) {
        ++refused_busy_;
        lock.unlock();
        return refuse(e, why);
    }
    requests_.push_back(std::make_shared<waiting_request>(waiting_request::parts{
        std::move(e), std::move(place)}));
    arm_expiry();
    lock.unlock();
    serve();
}

void acceptor_core::refuse(cm::event& request, refusal why) {
    static_cast<void>(request.incoming->reject(options_.busy_private_data));
    if (options_.on_refused) options_.on_refused(request.incoming->peer(), why);
    request.incoming.reset();
}

// The list is in order of arrival: the oldest request is at the front.
void acceptor_core::take_expired(request_list& expired) {
    auto const oldest = std::chrono::steady_clock::now() - bounded(options_.request_timeout);
    while (!requests_.empty() && requests_.front()->arrived() <= oldest) {
        expired.push_back(std::move(requests_.front()));
        requests_.pop_front();
        ++dropped_;
    }
}

void acceptor_core::take_expired(accepted_list& expired) {
    auto const oldest = std::chrono::steady_clock::now() - bounded(options_.request_timeout);
    while (!accepted_.empty() && accepted_.front().since <= oldest)
        expired.splice(expired.end(), accepted_, accepted_.begin());
}

// REQUIRES: the lock is held.
void acceptor_core::arm_expiry() {
    if (is_expiry_armed_ || (requests_.empty() && accepted_.empty()) || !expiry_) return;
    is_expiry_armed_ = true;
    auto first = std::chrono::steady_clock::time_point::max();
    if (!requests_.empty()) first = requests_.front()->arrived();
    if (!accepted_.empty()) first = std::min(first, accepted_.front().since);
    expiry_->expires_at(first + bounded(options_.request_timeout));
    expiry_->async_wait([weak = weak_from_this()](error_code const& ec) {
        auto const self = weak.lock();
        if (!ec && self != nullptr) self->on_expiry();
    });
}

void acceptor_core::on_expiry() {
    request_list expired;
    accepted_list closed;
    guard const lock{mutex_};
    is_expiry_armed_ = false;
    take_expired(expired);
    take_expired(closed);
    arm_expiry();
}

// Gives the oldest request to the handler that has waited longest, one pair at a time. If the
// request turns out to be withdrawn, the handler keeps its turn.
void acceptor_core::serve() {
    request_list dropped;
    guard lock{mutex_};
    std::vector<waiting> gone;
    while (!is_serving_ && !is_shut_down_) {
        take_expired(dropped);
        while (!waiters_.empty() && !waiters_.front().handler.is_wanted())
            gone.push_back(waiters_.take_first());
        if (give_accepted(lock)) continue;
        if (requests_.empty() || waiters_.empty()) return;
        std::shared_ptr<waiting_request> request = std::move(requests_.front());
        requests_.pop_front();
        waiting taken = waiters_.take_first();
        // An exception leaves without the lock.
        struct exclusive {
            acceptor_core& self;
            guard& lock;
            ~exclusive() {
                if (!lock.owns_lock()) lock.lock();
                self.is_serving_ = false;
            }
        };
        is_serving_ = true;
        exclusive const mine{*this, lock};
        attempts_[taken.front().serial] = {};
        answer(lock, std::move(taken), std::move(request));
    }
}

// REQUIRES: the lock is held. It is held again on return.
void acceptor_core::answer(guard& lock, waiting taken, std::shared_ptr<waiting_request> request) {
    auto& what = taken.front().handler.what;
    std::uint64_t const serial = taken.front().serial;
    auto* const wants_request = std::get_if<request_wait>(&what);
    std::shared_ptr<connection_core> core;
    lock.unlock();
    endpoint const peer = request->remote();
    error_code ec;
    if (request->is_withdrawn()) {
        ec = errc::peer_disconnected;
    } else if (wants_request == nullptr) {
        core = make_connection(std::get<accept_wait>(what).where, *request, ec);
        request.reset();
    }
    lock.lock();
    attempt& mine = attempts_[serial];
    bool const is_wanted = !mine.is_cancelled && !is_closed_;
    bool const is_withdrawn = ec == errc::peer_disconnected;
    if (is_withdrawn) ++dropped_;
    if (ec && !is_withdrawn) failure_ = {step::create_queue_pair, ec, peer, 0};
    if (core != nullptr && !ec && is_wanted) {
        mine.core = core;
        lock.unlock();
        accept(std::move(taken), std::move(core));
        return lock.lock();
    }
    attempts_.erase(serial);
    if (is_withdrawn && is_wanted) {
        waiters_.put_back(taken);
        lock.unlock();
        request.reset();
        return lock.lock();
    }
    // The wait was cancelled or the acceptor was closed. A request that was not taken goes back to
    // the front of the queue; anything else is destroyed, which rejects the peer.
    if (!is_wanted && !is_withdrawn && request != nullptr && !is_closed_) {
        requests_.push_front(std::exchange(request, nullptr));
        arm_expiry();
    }
    lock.unlock();
    if (!is_wanted) ec = asio::error::operation_aborted;
    if (core != nullptr) core->close();
    if (wants_request == nullptr) {
        complete(std::move(std::get<accept_wait>(what)), ec, nullptr);
    } else {
        if (!ec) {
            request->wait_on(executor_, options_.answer_timeout);
        }
        complete(
            std::move(*wants_request),
            ec,
            ec ? connection_request{}
               : access::make<connection_request>(std::exchange(request, nullptr))
        );
    }
    request.reset();
    core.reset();
    lock.lock();
}

std::shared_ptr<connection_core> acceptor_core::make_connection(
    place const& where, waiting_request& request, error_code& ec
) {
    try {
        return connection_core::make_for_request(where, options_.connection, request.take(), ec);
    } catch (boost::system::system_error const& failed) {
        ec = failed.code();
    } catch (std::bad_alloc const&) {
        ec = make_error_code(boost::system::errc::not_enough_memory);
    }
    return nullptr;
}

namespace {

struct closing {
    std::shared_ptr<connection_core> core;
    void operator()(connection_core*) const noexcept { core->close(); }
};

}  // namespace

void acceptor_core::accept(waiting taken, std::shared_ptr<connection_core> core) {
    auto shared =
        std::make_shared<accept_wait>(std::move(std::get<accept_wait>(taken.front().handler.what)));
    connection_core& starting = *core;
    starting.start_accept(
        {},
        control_handler{[self = shared_from_this(),
                         shared,
                         core = std::move(core),
                         serial = taken.front().serial](error_code failed) mutable {
            {
                failure const why = failed ? core->last_failure() : failure{};
                guard const lock{self->mutex_};
                auto const mine = self->attempts_.find(serial);
                bool const is_cancelled =
                    failed && mine != self->attempts_.end() && mine->second.is_cancelled;
                if (is_cancelled) failed = asio::error::operation_aborted;
                else if (why.code) self->failure_ = why;
                self->attempts_.erase(serial);
            }
            connection_core* const made = core.get();
            // Closed unless a handler, which may go with its context, makes a connection of it.
            std::shared_ptr<connection_core> result{made, closing{std::move(core)}};
            if (failed) result = nullptr;
            hand_over(
                std::make_shared<accepting>(accepting{self, std::move(*shared), std::move(result)}),
                failed
            );
        }}
    );
}

// A request that the handler does not take, because it was cancelled, waits for the next one.
void acceptor_core::complete(request_wait wait, error_code ec, connection_request request) {
    auto const what = std::make_shared<std::pair<request_wait, connection_request>>(
        std::move(wait), std::move(request)
    );
    asio::post(executor_, [self = shared_from_this(), what, ec] {
        auto const take_back =
            [](void* core, std::uint64_t, error_code&&, connection_request&& unused) noexcept {
                auto const untaken = access::core_of(unused);
                unused = {};
                if (untaken != nullptr) static_cast<acceptor_core*>(core)->take_back(untaken);
            };
        what->first.handler.hand_over({self, take_back, 0}, ec, std::move(what->second));
    });
}

// So does a connection.
void acceptor_core::complete(
    accept_wait wait, error_code ec, std::shared_ptr<connection_core> core
) {
    auto const what = std::make_shared<accepting>(accepting{
        shared_from_this(), std::move(wait), std::move(core)});
    asio::post(executor_, [what, ec] { hand_over(what, ec); });
}

void acceptor_core::hand_over(std::shared_ptr<accepting> const& what, error_code ec) {
    auto const take_back =
        [](void* from, std::uint64_t, error_code&&, std::shared_ptr<connection_core>&& unused
        ) noexcept {
            auto& mine = *static_cast<accepting*>(from);
            if (unused != nullptr) mine.owner->take_back({std::move(unused), mine.wait.where, {}});
        };
    what->wait.handler.hand_over({what, take_back, 0}, ec, std::move(what->core));
}

void acceptor_core::take_back(std::shared_ptr<waiting_request> const& request) noexcept {
    try {
        request->stop_waiting();
        guard const lock{mutex_};
        // Else its destruction rejects the peer.
        if (is_closed_ || request->has_expired()) return;
        auto const behind = std::ranges::upper_bound(
            requests_, request->arrived(), std::ranges::less{}, &waiting_request::arrived
        );
        requests_.insert(behind, request);
        arm_expiry();
        // With the lock, so that the context is not destroyed meanwhile.
        asio::post(executor_, [self = shared_from_this()] { self->serve(); });
    } catch (...) {
        // Without memory it waits for the next call, or is rejected.
    }
}

void acceptor_core::take_back(accepted what) noexcept {
    try {
        guard const lock{mutex_};
        // Else its destruction closes it.
        if (is_closed_) return;
        what.since = std::chrono::steady_clock::now();
        accepted_.push_back(std::move(what));
        arm_expiry();
        asio::post(executor_, [self = shared_from_this()] { self->serve(); });
    } catch (...) {
        // As above.
    }
}

// Gives an accepted connection to the first that waits for one in the same place; false if there is none.
// REQUIRES: the lock is held. It is held again on return.
bool acceptor_core::give_accepted(guard& lock) {
    if (accepted_.empty()) return false;
    waiting taken;
    accepted_list one;
    for (auto i = accepted_.begin(); i != accepted_.end() && taken.empty(); ++i) {
        taken = waiters_.take_first_that([&](waiter const& w) {
            auto const* const wants = std::get_if<accept_wait>(&w.what);
            return wants != nullptr && wants->where.executor == i->where.executor &&
                   wants->where.poller == i->where.poller;
        });
        if (!taken.empty()) {
            one.splice(one.end(), accepted_, i);
            break;
        }
    }
    if (taken.empty()) return false;
    lock.unlock();
    complete(
        std::move(std::get<accept_wait>(taken.front().handler.what)),
        {},
        std::move(one.front().core)
    );
    taken.clear();
    one.clear();
    lock.lock();
    return true;
}

void acceptor_core::fail(waiting all, error_code ec) {
    for (auto& w : all) {
        if (auto* const wants_request = std::get_if<request_wait>(&w.handler.what)) {
            complete(std::move(*wants_request), ec, connection_request{});
        } else {
            complete(std::move(std::get<accept_wait>(w.handler.what)), ec, nullptr);
        }
    }
}

// --- the connections -----------------------------------------------------------------------------

void acceptor_core::close_connections() noexcept {
    for (auto const& one : limiter_->accounts().second) {
        if (auto const core = one.lock()) core->close();
    }
}

void acceptor_core::start_wait_idle(control_handler handler) {
    // Copied without a lock, as an executor may be the program's own.
    asio::any_io_executor own = executor_;
    waiting_handler<error_code> who{std::move(handler), own};
    {
        guard const lock{mutex_};
        if (is_shut_down_) return;
    }
    {
        guard const lock{idle_mutex_};
        idle_waiters_.add(
            std::move(who), weak_from_this(), &acceptor_core::cancel_idle, std::move(own)
        );
        kept_ = shared_from_this();
    }
    // The last connection may have ended meanwhile; from here on on_idle() sees the handler.
    if (limiter_->count() == 0) end_idle({});
}

// Posts all handlers before a context that is being destroyed can go on: see context_is_going().
void acceptor_core::end_idle(error_code why) {
    std::shared_ptr<acceptor_core> kept;
    guard const lock{idle_mutex_};
    kept = std::move(kept_);
    complete_idle(idle_waiters_.take_all(), why);
}

// The last connection has ended, on any thread, and perhaps under mutex_.
void acceptor_core::on_idle() noexcept {
    try {
        end_idle({});
    } catch (...) {
        // Without memory nobody can be told.
    }
}

void acceptor_core::cancel_idle(std::uint64_t serial) {
    std::shared_ptr<acceptor_core> kept;
    guard const lock{idle_mutex_};
    complete_idle(idle_waiters_.take(serial), asio::error::operation_aborted);
    if (idle_waiters_.empty()) kept = std::move(kept_);
}

void acceptor_core::complete_idle(idle_list::removed all, error_code ec) {
    for (auto& w : all) asio::post(w.more, [who = std::move(w.handler), ec]() mutable { who(ec); });
}

// --- the end -------------------------------------------------------------------------------------

void acceptor_core::cancel() noexcept {
    end_idle(asio::error::operation_aborted);
    waiting all;
    std::vector<std::uint64_t> under_way;
    {
        guard const lock{mutex_};
        all = waiters_.take_all();
        for (auto const& [serial, a] : attempts_) under_way.push_back(serial);
    }
    fail(std::move(all), asio::error::operation_aborted);
    for (std::uint64_t const serial : under_way) cancel(serial);
}

// A cancellation may arrive late. It applies only to the wait with this serial, or to the
// connection that is being accepted for that wait.
void acceptor_core::cancel(std::uint64_t serial) {
    guard lock{mutex_};
    if (auto const found = attempts_.find(serial); found != attempts_.end()) {
        found->second.is_cancelled = true;
        std::shared_ptr<connection_core> const core = found->second.core.lock();
        lock.unlock();
        if (core != nullptr && !core->is_open()) core->close();
        return;
    }
    waiting one = waiters_.take(serial);
    lock.unlock();
    fail(std::move(one), asio::error::operation_aborted);
}

void acceptor_core::end(error_code why) noexcept {
    guard lock{mutex_};
    if (is_closed_) return;
    is_closed_ = true;
    waiting waiters = waiters_.take_all();
    // Destroying the requests' ids rejects their peers. Ids must not be destroyed while the lock is
    // held.
    request_list requests = std::move(requests_);
    accepted_list connections = std::move(accepted_);
    std::unique_ptr<cm::id> id = std::move(id_);
    expiry_.reset();
    lock.unlock();
    fail(std::move(waiters), why);
}

void acceptor_core::context_is_going(asio::execution_context const&) noexcept {
    std::shared_ptr<acceptor_core> kept;
    idle_list::removed idle;
    asio::any_io_executor gone;
    {
        guard const of_idle{idle_mutex_};
        idle = idle_waiters_.take_all();
        kept = std::move(kept_);
    }
    guard lock{mutex_};
    is_shut_down_ = true;
    is_closed_ = true;
    waiting const dropped = waiters_.take_all();
    request_list requests = std::move(requests_);
    accepted_list connections = std::move(accepted_);
    std::unique_ptr<cm::id> id = std::move(id_);
    expiry_.reset();
    if (thread_ == nullptr) gone.swap(executor_);
    lock.unlock();
}

bool acceptor_core::is_open() const {
    guard const lock{mutex_};
    return !is_closed_;
}

endpoint acceptor_core::local() const {
    guard const lock{mutex_};
    return local_;
}

acceptor_statistics acceptor_core::statistics() const {
    auto [sum, alive] = limiter_->accounts();
    for (auto const& one : alive) {
        if (auto const core = one.lock()) sum += core->statistics();
    }
    guard const lock{mutex_};
    return {requests_seen_, refused_busy_, dropped_, limiter_->count(), sum};
}

failure acceptor_core::last_failure() const {
    guard const lock{mutex_};
    return failure_;
}

}  // namespace rcverbs::detail

namespace rcverbs {

acceptor_base::acceptor_base(
    detail::place const& where, endpoint const& local, acceptor_options options
) {
    detail::throw_if_refused(detail::acceptor_problem(options));
    error_code ec;
    *this = acceptor_base{where, local, std::move(options), ec};
    if (ec) throw detail::detailed_error{ec, failure{step::listen, ec, local, 0}.message()};
}

acceptor_base::acceptor_base(
    detail::place const& where, endpoint const& local, acceptor_options options, error_code& ec
) {
    ec = detail::acceptor_problem(options).empty() ? errc{} : errc::invalid_option;
    if (ec) return;
    core_ = std::make_shared<detail::acceptor_core>(where, std::move(options));
    ec = core_->listen(local);
    if (ec) core_->close();
}

acceptor_base& acceptor_base::operator=(acceptor_base&& other) noexcept {
    if (this == &other) return *this;
    close();
    core_ = std::move(other.core_);
    return *this;
}

void acceptor_base::cancel() noexcept {
    if (core_ != nullptr) core_->cancel();
}
void acceptor_base::close() noexcept {
    if (core_ != nullptr) core_->close();
}
void acceptor_base::close_connections() noexcept {
    if (core_ != nullptr) core_->close_connections();
}
bool acceptor_base::is_open() const { return core_ != nullptr && core_->is_open(); }
endpoint acceptor_base::local_endpoint() const { return core_->local(); }
acceptor_statistics acceptor_base::statistics() const { return core_->statistics(); }
failure acceptor_base::last_failure() const { return core_->last_failure(); }
std::size_t acceptor_base::connections_max() const noexcept { return core_->connections_max(); }

void acceptor_base::start_get_request(
    detail::acceptor_core& core, detail::request_handler handler
) {
    core.start_get_request(std::move(handler));
}
void acceptor_base::start_accept(
    detail::acceptor_core& core, detail::place where, detail::accept_handler handler
) {
    core.start_accept(std::move(where), std::move(handler));
}
void acceptor_base::start_wait_idle(detail::acceptor_core& core, detail::control_handler handler) {
    core.start_wait_idle(std::move(handler));
}

connection_request::connection_request() noexcept = default;
connection_request::connection_request(connection_request&&) noexcept = default;
connection_request& connection_request::operator=(connection_request&&) noexcept = default;
connection_request::~connection_request() = default;
connection_request::connection_request(std::shared_ptr<detail::waiting_request> waiting) noexcept
    : core_{std::move(waiting)} {}

bool connection_request::is_valid() const noexcept {
    return core_ != nullptr && !core_->has_expired();
}
endpoint connection_request::remote_endpoint() const { return core_->remote(); }
endpoint connection_request::local_endpoint() const { return core_->local(); }
std::span<std::byte const> connection_request::private_data() const noexcept {
    return core_->private_data();
}
std::uint8_t connection_request::responder_resources() const noexcept {
    return core_->responder_resources();
}
std::uint8_t connection_request::initiator_depth() const noexcept {
    return core_->initiator_depth();
}

void connection_request::reject(std::span<std::byte const> private_data, error_code& ec) {
    ec = is_valid() ? core_->reject(private_data) : error_code{errc::not_connected};
    if (!ec) core_.reset();
}
void connection_request::reject(std::span<std::byte const> private_data) {
    error_code ec;
    reject(private_data, ec);
    detail::throw_if(ec, "reject");
}

}  // namespace rcverbs
