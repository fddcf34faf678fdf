#include "remote/pool_core.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <rcverbs/experimental/window.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include "remote/region_core.hpp"

namespace rcverbs::detail {

namespace {

constexpr std::size_t unit_bytes = remote_pool::block_bytes_min;
constexpr std::uint64_t units_max = machines::buddy_allocator::units_max;

std::uint32_t units_in(std::uint64_t bytes) noexcept {
    return static_cast<std::uint32_t>(bytes / unit_bytes);
}

machines::pool_books::limits limits_of(std::size_t size, remote_pool_options const& o) noexcept {
    auto const units = [&](std::optional<std::uint64_t> bytes) {
        return units_in(std::min<std::uint64_t>(bytes.value_or(size / 4), size));
    };
    return {units(o.peer_bytes_max), o.peer_allocations_max, units(o.kept_bytes_max), o.keep_time};
}

std::shared_ptr<window_memory const> register_for_windows(
    std::span<std::byte> memory, protection_domain const& domain
) {
    if (!domain.is_open() || !checks_window_range(domain)) return {};
    return std::make_shared<window_memory const>(window_memory{
        domain,
        memory_region{domain, memory, access_flags::local_write | access_flags::bind_windows}});
}

pool_core::token random_token() {
    pool_core::token t{};
    if (getrandom(t.data(), t.size(), 0) != static_cast<ssize_t>(t.size()))
        throw boost::system::system_error{{errno, boost::system::system_category()}, "getrandom"};
    return t;
}

}  // namespace

std::string problem_of(remote_pool_options const& options, std::span<std::byte const> memory) {
    // An address as a number, for its alignment.
    auto const address = reinterpret_cast<std::uintptr_t>(memory.data());
    option_check check{"remote_pool_options"};
    check.within("peer_allocations_max", options.peer_allocations_max, 1, 65536)
        .from("keep_time", options.keep_time, std::chrono::milliseconds{0})
        .that(
            !memory.empty() && address % unit_bytes == 0 && memory.size() % unit_bytes == 0 &&
                memory.size() / unit_bytes <= units_max,
            "memory",
            "is not of 4096 bytes to 8 TiB, with its address and size a multiple of 4096"
        );
    return check.problem();
}

struct pool_core::clock {
    explicit clock(boost::asio::any_io_executor const& io) : order{io}, timer{order} {}

    boost::asio::strand<boost::asio::any_io_executor> order;
    boost::asio::steady_timer timer;  // in the order
    bool is_waiting = false;  // in the order
};

pool_core::lease::lease(std::shared_ptr<pool_core> pool, std::uint64_t number) noexcept
    : pool_{std::move(pool)},
      number_{number} {}

pool_core::lease::~lease() { pool_->end(number_); }

pool_core::pool_core(
    std::shared_ptr<offers_core> const& list,
    std::span<std::byte> memory,
    remote_pool_options const& options
)
    : list_{list},
      memory_{memory},
      for_windows_{register_for_windows(memory, options.domain)},
      keeps_{options.keep_time.count() > 0},
      books_{units_in(memory.size()), limits_of(memory.size(), options)},
      clock_{std::make_shared<clock>(list->executor())} {
    std::memset(memory_.data(), 0, memory_.size());
}

// --- for channels --------------------------------------------------------------------------------

std::unique_ptr<pool_core::lease> pool_core::open(std::weak_ptr<region_core> channel) {
    std::uint64_t number = 0;
    {
        std::lock_guard const lock{mutex_};
        number = books_.open();
        try {
            channels_.emplace(number, std::move(channel));
        } catch (...) {
            static_cast<void>(books_.end_lease(number, {}));
            throw;
        }
    }
    return std::make_unique<lease>(shared_from_this(), number);
}

bool pool_core::is_possible(std::uint64_t alignment) const noexcept {
    return reinterpret_cast<std::uintptr_t>(memory_.data()) % alignment == 0;
}

pool_core::allocated pool_core::answer_of(outcome what, std::uint64_t to) const {
    return {
        what,
        {},
        {},
        std::uint64_t{books_.units_left(to)} * unit_bytes,
        std::uint64_t{books_.memory().largest_free_units()} * unit_bytes};
}

pool_core::allocated pool_core::allocate(
    lease const& to, std::uint64_t bytes, std::uint64_t alignment, bool is_kept
) {
    std::uint64_t const wanted = std::max((bytes - 1) / unit_bytes + 1, alignment / unit_bytes);
    std::uint32_t const units = machines::buddy_allocator::rounded(wanted);
    std::uint64_t const number = offered_region::next_number();
    std::optional<token> key;
    if (is_kept && keeps_) key = random_token();
    std::lock_guard const lock{mutex_};
    if (is_closed_) return {};
    if (units == 0) return answer_of(outcome::over_quota, to.number());
    block& b = blocks_.try_emplace(number).first->second;
    machines::pool_books::block where;
    outcome what = outcome::exhausted;
    try {
        what = books_.allocate(to.number(), number, units, key, where);
        if (what == outcome::done)
            b.what = make_recycled<offered_region const>(
                list_,
                number,
                std::vector{bytes_of(where).first(static_cast<std::size_t>(bytes))},
                access_flags::remote_read | access_flags::remote_write |
                    access_flags::remote_atomic,
                for_windows_,
                true
            );
    } catch (...) {
        if (books_.free(to.number(), number)) {
            books_.released(number);
            books_.cleaned(number);
        }
        blocks_.erase(number);
        throw;
    }
    allocated answer = answer_of(what, to.number());
    if (what != outcome::done) {
        blocks_.erase(number);
        return answer;
    }
    answer.block = b.what;
    answer.key = key.value_or(token{});
    return answer;
}

pool_core::allocated pool_core::resume(
    lease const& to, token const& key, std::function<void()> then
) {
    allocated answer;
    std::shared_ptr<region_core> loser;
    std::shared_ptr<takeover> over;
    // Let go without the lock, because `then` takes it.
    std::shared_ptr<takeover> before;
    {
        std::lock_guard const lock{mutex_};
        if (is_closed_) return {};
        auto const r = books_.resume(to.number(), key);
        answer = answer_of(r.what, to.number());
        if (r.what != outcome::done) return answer;
        block& b = blocks_.at(r.number);
        answer.block = b.what;
        answer.key = key;
        over = std::make_shared<takeover>(std::move(then));
        before = b.taken.lock();
        if (before != nullptr) before->add(over);
        b.taken = over;
        auto const channel = channels_.find(r.taken_from);
        if (channel != channels_.end()) loser = channel->second.lock();
    }
    if (loser != nullptr)
        loser->in_order([loser, taken = answer.block, over] {
            loser->grants().take_away(taken, over);
        });
    return answer;
}

bool pool_core::holds(lease const& from, std::uint64_t number) const {
    std::lock_guard const lock{mutex_};
    return books_.holds(from.number(), number);
}

bool pool_core::free(lease const& from, std::uint64_t number, std::function<void()> then) {
    {
        std::lock_guard const lock{mutex_};
        if (!books_.free(from.number(), number)) return false;
        blocks_.at(number).then = std::move(then);
    }
    drop(number, false);
    return true;
}

pool_core::outcome pool_core::share(
    lease const& from, std::uint64_t number, std::string const& name
) {
    offer_ptr what;
    {
        std::lock_guard const lock{mutex_};
        if (!books_.holds(from.number(), number)) return outcome::unknown;
        block& b = blocks_.at(number);
        if (!b.name.empty()) return outcome::exhausted;
        b.name = name;
        what = b.what;
    }
    auto const list = list_.lock();
    bool const is_published = list != nullptr && list->publish(name, what);
    {
        std::lock_guard const lock{mutex_};
        auto const found = blocks_.find(number);
        bool const is_there = found != blocks_.end() && found->second.what != nullptr;
        if (is_there && is_published) return outcome::done;
        if (is_there) found->second.name.clear();
    }
    // It has left meanwhile, perhaps before it had a name.
    if (is_published) list->revoke(what, name);
    return is_published ? outcome::unknown : outcome::exhausted;
}

// The connection has ended, and with it its grants.
void pool_core::end(std::uint64_t which) noexcept {
    auto const now = std::chrono::steady_clock::now();
    drop_all(false, [&] { return books_.end_lease(which, now); });
    {
        std::lock_guard const lock{mutex_};
        channels_.erase(which);
    }
    wait_for_expiry();
}

// --- blocks that leave ---------------------------------------------------------------------------

// `next` is called with the lock, until it returns nothing.
template <class Next>
void pool_core::drop_all(bool is_held, Next next) noexcept {
    while (true) {
        std::optional<std::uint64_t> number;
        {
            std::lock_guard const lock{mutex_};
            number = next();
        }
        if (!number) return;
        try {
            drop(*number, is_held);
        } catch (...) {  // no memory: the block stays with those who have it, until they end
        }
    }
}

// Nobody finds the block any more. `is_held`: also the channel that allocated it must let it go.
void pool_core::drop(std::uint64_t number, bool is_held) {
    offer_ptr what;
    std::string name;
    {
        std::lock_guard const lock{mutex_};
        block& b = blocks_.at(number);
        what = std::move(b.what);
        name = std::move(b.name);
    }
    auto const list = list_.lock();
    if (list != nullptr && (is_held || !name.empty())) list->revoke(what, name);
}

void pool_core::on_gone(std::uint64_t number) noexcept {
    {
        std::lock_guard const lock{mutex_};
        auto const found = blocks_.find(number);
        if (found == blocks_.end()) return;
        auto then = std::move(found->second.then);
        blocks_.erase(found);
        std::span<std::byte> const bytes = bytes_of(books_.released(number));
        try {
            cleaning_.push_back({number, bytes, std::move(then)});
        } catch (...) {
            // No memory: the block is never used again.
            return;
        }
        if (std::exchange(is_cleaning_, true)) return;
    }
    post_cleaning();
}

void pool_core::post_cleaning() noexcept {
    try {
        auto const io = list_executor();
        if (!io) return;
        boost::asio::post(io, [weak = weak_from_this()] {
            if (auto const self = weak.lock()) self->clean(zeroed_at_once);
        });
    } catch (...) {
        clean(SIZE_MAX);  // no memory
    }
}

// Zeroes up to so many bytes, and returns the blocks that are zero. One thread at a time.
void pool_core::clean(std::size_t bytes) noexcept {
    while (bytes > 0) {
        std::span<std::byte> some;
        {
            std::lock_guard const lock{mutex_};
            if (cleaning_.empty()) {
                is_cleaning_ = false;
                break;
            }
            auto& left = cleaning_.front().left;
            some = left.first(std::min(bytes, left.size()));
            left = left.subspan(some.size());
        }
        std::memset(some.data(), 0, some.size());
        bytes -= some.size();
        std::function<void()> then;
        {
            std::lock_guard const lock{mutex_};
            if (!cleaning_.front().left.empty()) continue;
            then = std::move(cleaning_.front().then);
            books_.cleaned(cleaning_.front().number);
            cleaning_.pop_front();
        }
        if (then) then();
    }
    if (bytes == 0) return post_cleaning();
    complete_closing();
}

// --- kept blocks ---------------------------------------------------------------------------------

void pool_core::wait_for_expiry() noexcept {
    std::shared_ptr<clock> c;
    std::optional<machines::pool_books::time_point> when;
    {
        std::lock_guard const lock{mutex_};
        when = books_.next_expiry();
        c = clock_;
    }
    if (!when || c == nullptr) return;
    try {
        boost::asio::post(c->order, [weak = weak_from_this(), c, at = *when] {
            if (std::exchange(c->is_waiting, true)) return;
            c->timer.expires_at(at);
            c->timer.async_wait([weak](error_code) {
                if (auto const self = weak.lock()) self->expire();
            });
        });
    } catch (...) {  // no memory: the next lease that ends tries again
    }
}

void pool_core::expire() noexcept {
    {
        std::lock_guard const lock{mutex_};
        if (clock_ == nullptr) return;
        clock_->is_waiting = false;
    }
    auto const now = std::chrono::steady_clock::now();
    drop_all(false, [&] { return books_.expire(now); });
    wait_for_expiry();
}

// --- the end -------------------------------------------------------------------------------------

void pool_core::close(control_handler handler) {
    auto const io = list_executor();
    if (!io) return;  // the handler goes with its context
    protocol::waiter<error_code> who{std::move(handler), io};
    std::shared_ptr<clock> c;
    {
        std::lock_guard const lock{mutex_};
        is_closed_ = true;
        closing_.push_back(std::move(who));
        c = clock_;
    }
    drop_all(true, [&] { return books_.revoke_one(); });
    if (c != nullptr) boost::asio::post(c->order, [c] { c->timer.cancel(); });
    // The handler must not be called from here.
    boost::asio::post(io, [weak = weak_from_this()] {
        if (auto const self = weak.lock()) self->complete_closing();
    });
}

void pool_core::complete_closing() noexcept {
    std::vector<protocol::waiter<error_code>> all;
    {
        std::lock_guard const lock{mutex_};
        if (!is_closed_ || books_.blocks() > 0) return;
        all.swap(closing_);
    }
    for (auto& who : all) who(error_code{});
}

void pool_core::context_is_going() noexcept {
    std::shared_ptr<clock> c;
    std::vector<protocol::waiter<error_code>> all;
    std::lock_guard const lock{mutex_};
    c = std::move(clock_);
    all.swap(closing_);
}

remote_pool_statistics pool_core::statistics() const {
    std::lock_guard const lock{mutex_};
    return {
        std::uint64_t{books_.memory().free_units()} * unit_bytes,
        std::uint64_t{books_.memory().largest_free_units()} * unit_bytes,
        std::uint64_t{books_.kept_units()} * unit_bytes,
        books_.blocks(),
        for_windows_ != nullptr};
}

boost::asio::any_io_executor pool_core::list_executor() const {
    auto const list = list_.lock();
    return list != nullptr ? list->executor() : boost::asio::any_io_executor{};
}

std::span<std::byte> pool_core::bytes_of(machines::pool_books::block const& b) const noexcept {
    return memory_.subspan(b.first_unit * unit_bytes, b.units * unit_bytes);
}

}  // namespace rcverbs::detail
