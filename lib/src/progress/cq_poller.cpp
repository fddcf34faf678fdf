#include "progress/cq_poller.hpp"

#include <algorithm>
#include <utility>

namespace rcverbs::progress {

// --- places --------------------------------------------------------------------------------------

cq_place::~cq_place() {
    if (poller_ == nullptr) return;
    bool is_polled = false;
    {
        std::lock_guard const lock{poller_->mutex_};
        poller_->give_back(*member_, false);
        if (poller_->places_ > 0) return;
        is_polled = poller_->is_counted_;
        if (!is_polled) poller_->close();
    }
    if (is_polled) poller_->wake();
}

std::shared_ptr<cq_poller> cq_place::join(
    std::uint32_t number, std::shared_ptr<completion_sink> sink
) {
    member_->number = number;
    member_->sink = std::move(sink);
    std::lock_guard const lock{poller_->mutex_};
    member_->now = cq_member::stage::joining;
    member_->next = std::exchange(poller_->joining_, member_.get());
    // The list is under the mutex. A member posts behind this, and the device orders its completions behind that, so who polls
    // one finds the flag.
    poller_->has_news_.store(true, std::memory_order_release);
    return poller_;
}

bool cq_place::leave(std::function<bool()> const& destroy, take_function const& take) {
    bool const is_destroyed = poller_->leave(*member_, destroy, take);
    empty_polls_ = poller_->empty_polls_.read();
    sleeps_ = poller_->sleeps_.read();
    poller_.reset();
    return is_destroyed;
}

void cq_place::read(connection_statistics& into) const noexcept {
    if (member_ == nullptr) return;
    into.empty_polls = poller_ != nullptr ? poller_->empty_polls_.read() : empty_polls_;
    into.sleeps = poller_ != nullptr ? poller_->sleeps_.read() : sleeps_;
    into.polls = member_->polls.read() + into.empty_polls;
    into.completions = member_->completions.read();
}

// --- reserving, joining, leaving -----------------------------------------------------------------

cq_poller::cq_poller(
    boost::asio::any_io_executor executor,
    std::shared_ptr<hosting::sequence> order,
    settings how,
    std::atomic<unsigned>& sources,
    descriptor_set& descriptors
)
    : executor_{std::move(executor)},
      order_{std::move(order)},
      how_{std::move(how)},
      sources_{sources},
      descriptors_{descriptors} {}

cq_poller::~cq_poller() = default;

cq_place cq_poller::reserve(machines::completion_share const& share, error_code& ec) {
    ec = {};
    auto member = std::make_unique<cq_member>();
    member->share = share;
    std::lock_guard const lock{mutex_};
    if (is_closed_) return {};
    member->lane = find_lane(share, ec);
    if (ec) {
        // One that is polled closes in its sequence, which was told when the last place was given back.
        if (places_ == 0 && !is_counted_) close();
        return {};
    }
    member->lane->budget.take(share);
    ++places_;
    return {shared_from_this(), std::move(member)};
}

cq_lane* cq_poller::find_lane(machines::completion_share const& share, error_code& ec) {
    std::uint32_t total = 0;
    for (auto const& lane : lanes_) {
        if (lane->is_broken || lane->is_leaked) continue;
        total += lane->budget.depth();
        if (!lane->budget.has_room_for(share)) continue;
        if (lane->budget.users() > 0 && !lane->share_out()) break;
        return lane.get();
    }
    if (!channel_.is_open()) {
        channel_ = verbs::completion_channel{how_.device.get(), ec};
        if (!ec) ec = descriptors_.add(channel_.descriptor());
        if (ec) return nullptr;
    }
    // As large as all before it together, so that there are few; the first has the exact size.
    std::uint32_t const least = share.own + share.shared_depth;
    std::uint32_t const most = std::min(lane_depth_max, how_.device_depth_max);
    std::uint32_t depth = std::max(least, std::min(total, most));
    for (;;) {
        auto lane = std::make_unique<cq_lane>(depth);
        lane->vector = how_.vector();
        lane->queue = verbs::completion_queue{
            how_.device.get(), channel_, lane.get(), depth, lane->vector, ec};
        if (!ec) {
            lanes_.push_back(std::move(lane));
            return lanes_.back().get();
        }
        if (depth == least) return nullptr;
        depth = least;
    }
}

void cq_poller::wake() {
    {
        std::lock_guard const lock{mutex_};
        if (std::exchange(is_news_posted_, true)) return;
    }
    news_.post(shared_from_this());
}

void cq_poller::on_news(std::shared_ptr<cq_poller> self) {
    {
        std::lock_guard const lock{mutex_};
        is_news_posted_ = false;
        if (places_ == 0 && !is_closed_) close();
        if (is_closed_) return;
    }
    last_found_ = std::chrono::steady_clock::now();
    take_news();
    if (!round_.is_posted()) run_round(std::move(self));
}

// Takes in those that have joined, and tells those of a broken queue.
void cq_poller::take_news() {
    {
        std::lock_guard const lock{mutex_};
        take_joining();
        if (!std::exchange(has_joined_broken_, false)) return;
    }
    for (cq_lane* lane = polled_; lane != nullptr; lane = lane->next) {
        if (lane->is_broken) fail(*lane, errc::completion_queue_broken);
    }
}

// From here on completions find those that have joined. REQUIRES: the mutex is held.
void cq_poller::take_joining() noexcept {
    has_news_.store(false, std::memory_order_relaxed);
    while (cq_member* const m = joining_) {
        joining_ = std::exchange(m->next, nullptr);
        cq_lane& lane = *m->lane;
        lane.add(*m);
        has_joined_broken_ |= lane.is_broken;
        if (std::exchange(lane.is_polled, true)) continue;
        lane.next = std::exchange(polled_, &lane);
        ++polled_count_;
        turn_ = polled_;
    }
    // Relaxed, here, in close() and in run_round(): it only says how often to poll in vain.
    if (!std::exchange(is_counted_, true)) sources_.fetch_add(1, std::memory_order_relaxed);
}

bool cq_poller::leave(
    cq_member& m, std::function<bool()> const& destroy, cq_place::take_function const& take
) {
    std::lock_guard const lock{mutex_};
    cq_lane& lane = *m.lane;
    // The queue may have completions of those who have joined and are not taken in yet, whom on_news()
    // takes in later: they must not be taken for its only member's, or be dropped when they are kept.
    if (joining_ != nullptr) take_joining();
    sort_out(lane, m, take);
    bool const is_destroyed = destroy();
    sort_out(lane, m, take);
    // It may still complete, and the others must not take that for theirs.
    if (!is_destroyed) lane.search_always();
    if (m.now == cq_member::stage::inside) lane.remove(m);
    if (is_delivering_) departed_.push_back(std::move(m.sink));
    m.sink.reset();
    give_back(m, !is_destroyed);
    if (places_ == 0) close();
    return is_destroyed;
}

// Takes the completions of one member out of the queue, and keeps those of others for the next round.
// No more than the depth: what completes meanwhile is work of others.
void cq_poller::sort_out(cq_lane& lane, cq_member const& m, cq_place::take_function const& take) {
    auto const sort = [&](std::span<ibv_wc const> batch) {
        for (ibv_wc const& wc : batch) {
            if (wc.qp_num == m.number) {
                take({&wc, 1});
            } else {
                lane.keep(wc);
            }
        }
    };
    lane.take_kept(m.number, take);
    if (lane.is_broken) return;
    std::array<ibv_wc, batch_size> batch;
    for (std::uint32_t seen = 0; seen < lane.budget.depth();) {
        int const count = lane.queue.poll(batch);
        if (count <= 0) return;
        seen += static_cast<std::uint32_t>(count);
        sort(std::span{batch}.first(static_cast<std::size_t>(count)));
    }
}

// The share of a queue pair that could not be destroyed stays taken.
void cq_poller::give_back(cq_member& m, bool is_leaked) noexcept {
    --places_;
    if (is_leaked) {
        m.lane->is_leaked = true;
    } else {
        m.lane->budget.give_back(m.share);
    }
}

void cq_poller::close() noexcept {
    is_closed_ = true;
    polled_ = turn_ = nullptr;
    if (std::exchange(is_counted_, false)) sources_.fetch_sub(1, std::memory_order_relaxed);
    // The channel owns and closes the descriptor; release() only ends the wait.
    if (descriptor_ && descriptor_->is_open()) descriptor_->release();
    descriptor_.reset();
    if (!is_delivering_) destroy_queues();
}

void cq_poller::destroy_queues() noexcept {
    bool is_used = false;
    for (auto const& lane : lanes_) {
        if (lane->is_leaked) lane->queue.release();
        is_used |= lane->is_leaked || lane->queue.destroy().failed();
    }
    lanes_.clear();
    if (is_used) channel_.release();
    channel_ = {};
}

// --- polling -------------------------------------------------------------------------------------

// Flattened, because it is the hot loop of a polling thread.
[[gnu::flatten]] void cq_poller::run_round(std::shared_ptr<cq_poller> self) {
    // Relaxed: close() runs in this order, or where nobody polls.
    if (is_closed_.load(std::memory_order_relaxed)) return;
    bool found = false;
    unsigned empty_polls = 0;
    bool const is_event = how_.polling.mode == poll_mode::event;
    unsigned const sources =
        std::clamp(sources_.load(std::memory_order_relaxed), 1u, empty_polls_per_turn);
    // Each queue once is one poll.
    unsigned const empty_polls_max =
        (is_event ? 1 : empty_polls_per_turn / sources) * std::max(polled_count_, 1u);
    int const work_max = std::max(work_per_round / static_cast<int>(sources), work_per_round_min);
    is_delivering_ = true;
    try {
        for (int left = work_max; left > 0 && empty_polls < empty_polls_max;) {
            int const work = poll_in_turn();
            left -= work;
            found |= work > 0;
            empty_polls = work > 0 ? 0 : empty_polls + 1;
        }
    } catch (...) {
        // A handler's exception propagates to the thread that runs the executor. Polling goes on.
        if (!has_ended()) round_.post(std::move(self));
        throw;
    }
    if (has_ended()) return;
    if (found) last_found_ = std::chrono::steady_clock::now();
    // In event mode the queues sleep as soon as they are empty.
    bool const is_empty = empty_polls == empty_polls_max;
    if (is_event ? !is_empty : found || !has_spun_enough()) {
        round_.post(std::move(self));
    } else {
        sleep(std::move(self));
    }
}

// Polls the queue whose turn it is and delivers the completions. Returns the number of completed work
// requests.
int cq_poller::poll_in_turn() {
    if (turn_ == nullptr) return 0;
    int const work = poll(*turn_);
    if (polled_count_ > 1) pass_turn(work);
    return work;
}

// Queues take turns, so that members of one with few are served as often as those of one with many. One
// that has taken more than its turn is left out, as long as others have completions.
void cq_poller::pass_turn(int work) noexcept {
    if (turn_ == nullptr) return;
    turn_->credit -= work;
    if (work > 0 && turn_->credit > 0) return;
    do {
        turn_ = turn_->next != nullptr ? turn_->next : polled_;
        int const turn = std::max(turn_->members, 1);
        turn_->credit = std::min(turn_->credit + turn, turn);
    } while (work > 0 && turn_->credit <= 0);
}

// Polls each queue once.
int cq_poller::poll_all() {
    cq_lane* lane = polled_;
    if (lane == nullptr) return 0;
    int work = poll(*lane);
    while ((lane = lane->next) != nullptr) work += poll(*lane);
    return work;
}

int cq_poller::poll(cq_lane& lane) {
    if (lane.is_special) [[unlikely]]
        return lane.kept().empty() ? 0 : deliver_kept(lane);
    int const count = lane.queue.poll(batch_);
    if (count <= 0) {
        if (count < 0) fail(lane, errc::completion_queue_broken);
        empty_polls_.add(1);
        return 0;
    }
    // Before their completions can be found.
    if (has_news_.load(std::memory_order_acquire)) [[unlikely]]
        take_news();
    return deliver(lane, std::span{batch_}.first(static_cast<std::size_t>(count)));
}

// Called behind polling. True if the last member has left.
bool cq_poller::has_ended() noexcept {
    is_delivering_ = false;
    if (!departed_.empty()) departed_.clear();
    // Relaxed: destroy_queues() is under the mutex, as close() is.
    if (!is_closed_.load(std::memory_order_relaxed)) return false;
    std::lock_guard const lock{mutex_};
    destroy_queues();
    return true;
}

int cq_poller::deliver(cq_lane& lane, std::span<ibv_wc const> batch) {
    cq_member* const only = lane.sole();
    return only != nullptr ? static_cast<int>(only->deliver(batch)) : distribute(lane, batch);
}

// Completions of the same queue pair that follow each other are delivered together. Those of none
// are dropped.
int cq_poller::distribute(cq_lane& lane, std::span<ibv_wc const> batch) {
    if (lane.first() == nullptr) return static_cast<int>(batch.size());
    // If a handler throws, the rest goes first in the next round.
    struct rest {
        cq_lane& lane;
        std::span<ibv_wc const> left;
        ~rest() {
            if (!left.empty()) lane.keep_first(left);
        }
    } r{lane, batch};
    int work = 0;
    while (!r.left.empty()) {
        std::uint32_t const number = r.left.front().qp_num;
        std::size_t count = 1;
        while (count < r.left.size() && r.left[count].qp_num == number) ++count;
        std::span<ibv_wc const> const run = r.left.first(count);
        r.left = r.left.subspan(count);
        // A handler may have made another queue pair leave, so that one is left.
        cq_member* const only = lane.sole();
        cq_member* const m = only == nullptr          ? lane.find(number)
                             : only->number == number ? only
                                                      : nullptr;
        work += m != nullptr ? static_cast<int>(m->deliver(run)) : static_cast<int>(count);
    }
    return work;
}

// Delivers the first kept completions that belong together.
int cq_poller::deliver_kept(cq_lane& lane) {
    std::size_t count = 0;
    for (ibv_wc const& wc : lane.kept()) {
        if (count == batch_.size() || wc.qp_num != lane.kept().front().qp_num) break;
        batch_[count++] = wc;
    }
    lane.drop_kept(count);
    std::span<ibv_wc const> const batch = std::span{batch_}.first(count);
    // Those of a queue pair that never joined belong to nobody.
    cq_member const* const only = lane.sole();
    if (only != nullptr && only->number != batch.front().qp_num) return static_cast<int>(count);
    return deliver(lane, batch);
}

bool cq_poller::has_spun_enough() {
    if (how_.polling.mode == poll_mode::busy) return false;
    return std::chrono::steady_clock::now() - last_found_ >= how_.polling.spin;
}

void cq_poller::sleep(std::shared_ptr<cq_poller> self) {
    bool is_new = false;
    for (cq_lane* lane = polled_; lane != nullptr; lane = lane->next) {
        if (lane->is_armed || lane->is_broken) continue;
        if (error_code const ec = lane->queue.arm()) {
            fail(*lane, ec);
            continue;
        }
        lane->is_armed = true;
        is_new = true;
    }
    int work = 0;
    is_delivering_ = true;
    try {
        if (is_new) work = poll_all();
    } catch (...) {
        if (!has_ended()) round_.post(std::move(self));
        throw;
    }
    if (has_ended()) return;
    if (work > 0) {
        last_found_ = std::chrono::steady_clock::now();
        return round_.post(std::move(self));
    }
    sleeps_.add(1);
    if (!is_waiting_) wait(std::move(self));
}

void cq_poller::wait(std::shared_ptr<cq_poller> self) {
    // Created on first use: an io_context without descriptors polls its run queue several times
    // faster.
    if (!descriptor_) {
        error_code ec;
        try {
            descriptor_.emplace(executor_);
        } catch (boost::system::system_error const& e) {
            return fail_all(e.code());  // no file descriptors left for the reactor
        }
        descriptor_->assign(channel_.descriptor(), ec);
        if (ec) return fail_all(ec);
    }
    is_waiting_ = true;
    // The handler may run outside the sequence.
    descriptor_->async_wait(
        boost::asio::posix::descriptor_base::wait_read,
        [self = std::move(self)](error_code failed) mutable {
            cq_poller& p = *self;
            p.wake_code_ = failed;
            p.wake_up_.dispatch(std::move(self));
        }
    );
}

void cq_poller::on_wake_up(std::shared_ptr<cq_poller> self) {
    is_waiting_ = false;
    if (is_closed_) return;
    if (wake_code_) return fail_all(wake_code_);
    // One for each wake-up: a second attempt that finds none would be a system call, too.
    if (auto* const lane = static_cast<cq_lane*>(channel_.take_event())) lane->is_armed = false;
    last_found_ = std::chrono::steady_clock::now();
    if (!round_.is_posted()) run_round(std::move(self));
}

void cq_poller::fail(cq_lane& lane, error_code ec) {
    {
        std::lock_guard const lock{mutex_};
        lane.is_broken = true;
        lane.is_special = true;
    }
    for (cq_member* m = lane.first(); m != nullptr; m = m->next) m->sink->on_queue_broken(ec);
}

void cq_poller::fail_all(error_code ec) {
    for (cq_lane* lane = polled_; lane != nullptr; lane = lane->next) fail(*lane, ec);
}

}  // namespace rcverbs::progress
