#include "remote/offers_core.hpp"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <atomic>
#include <utility>

#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include "remote/pool_core.hpp"
#include "remote/region_core.hpp"

namespace rcverbs::detail {

namespace {

// Under the prefix are the names that peers have given.
bool is_shared(std::string_view name) noexcept {
    return name.starts_with(remote_allocator::shared_prefix);
}

constexpr access_flags offerable =
    access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;

}  // namespace

std::uint64_t offered_region::next_number() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

offered_region::offered_region(
    std::weak_ptr<offers_core> list,
    std::uint64_t called,
    std::vector<std::span<std::byte>> ranges,
    access_flags allowed,
    std::shared_ptr<window_memory const> inside,
    bool is_of_pool
)
    : number{called},
      memory{std::move(ranges)},
      rights{allowed},
      around{std::move(inside)},
      is_block{is_of_pool},
      list_{std::move(list)} {}

offered_region::~offered_region() {
    if (auto const list = list_.lock()) list->on_gone(number);
}

offers_core::offers_core(
    boost::asio::any_io_executor executor, region_offers_options const& options
)
    : actor{std::move(executor)},
      options_{options} {}

std::weak_ptr<offers_core> offers_core::weak_self() {
    return std::static_pointer_cast<offers_core>(shared_from_this());
}

void offers_core::complete(protocol::waiter<error_code> who, error_code ec) {
    enter(
        [this, ec](protocol::waiter<error_code>& w) { deliver(std::move(w), ec); }, std::move(who)
    );
}

void offers_core::add(
    std::string_view name, std::vector<std::span<std::byte>> memory, access_flags rights
) {
    bool const is_refused =
        !wire::is_region_name(name) || is_shared(name) || memory.empty() ||
        memory.size() > region_offers::ranges_max || rights == access_flags::local_read ||
        !allows(offerable, rights) ||
        std::ranges::any_of(memory, [](auto const& range) { return range.empty(); });
    if (is_refused) throw boost::system::system_error{errc::invalid_option, "region_offers"};
    auto const made = std::make_shared<offered_region const>(
        weak_self(), offered_region::next_number(), std::move(memory), rights
    );
    if (!publish(std::string{name}, made))
        throw boost::system::system_error{
            make_error_code(boost::system::errc::file_exists), "region_offers"};
}

bool offers_core::publish(std::string const& name, offer_ptr const& block) {
    {
        std::lock_guard const lock{mutex_};
        if (names_withdrawing_.contains(name) || !offers_.emplace(name, block).second) return false;
    }
    announce(name);
    return true;
}

void offers_core::announce(std::string const& name) {
    for (auto const& channel : channels())
        channel->in_order([channel, name] { channel->changes().offered(name); });
}

void offers_core::withdraw(std::string const& name, control_handler handler) {
    auto const io = executor();
    if (!io) return;
    protocol::waiter<error_code> waiter{std::move(handler), io};
    offer_ptr taken;
    {
        std::lock_guard const lock{mutex_};
        auto const found = is_shared(name) ? offers_.end() : offers_.find(name);
        if (found == offers_.end()) {
            return complete(std::move(waiter), channel_errc::no_such_region);
        }
        taken = std::move(found->second);
        offers_.erase(found);
        names_withdrawing_.emplace(name, taken->number);
        withdrawing_.emplace(taken->number, std::move(waiter));
    }
    take_back(taken, name);
    // Also if there is no channel, the handler must not be called from here.
    boost::asio::post(io, [last = std::move(taken)] {});
}

void offers_core::revoke(offer_ptr const& what, std::string const& name) {
    bool was_offered = false;
    {
        std::lock_guard const lock{mutex_};
        auto const found = offers_.find(name);
        was_offered = found != offers_.end() && found->second == what;
        if (was_offered) offers_.erase(found);
    }
    take_back(what, was_offered ? name : std::string{});
}

void offers_core::take_back(offer_ptr const& what, std::string const& name) {
    for (auto const& channel : channels())
        channel->in_order([channel, what, name] { channel->grants().withdraw(what, name); });
}

std::shared_ptr<pool_core> offers_core::pool() const {
    std::lock_guard const lock{mutex_};
    return pool_;
}

bool offers_core::set_pool(std::shared_ptr<pool_core> pool) {
    std::lock_guard const lock{mutex_};
    if (pool_ != nullptr) return false;
    pool_ = std::move(pool);
    return true;
}

void offers_core::on_gone(std::uint64_t number) noexcept {
    protocol::waiter<error_code> waiter;
    std::shared_ptr<pool_core> pool;
    {
        std::lock_guard const lock{mutex_};
        auto const found = withdrawing_.find(number);
        if (found != withdrawing_.end()) {
            waiter = std::move(found->second);
            withdrawing_.erase(found);
            std::erase_if(names_withdrawing_, [&](auto const& n) { return n.second == number; });
        } else {
            pool = pool_;
        }
    }
    if (waiter) complete(std::move(waiter), {});
    if (pool != nullptr) pool->on_gone(number);
}

std::size_t offers_core::size() const {
    std::lock_guard const lock{mutex_};
    return offers_.size();
}

void offers_core::join(std::weak_ptr<region_core> channel) {
    std::lock_guard const lock{mutex_};
    std::erase_if(channels_, [](auto const& c) { return c.expired(); });
    channels_.push_back(std::move(channel));
}

std::vector<std::shared_ptr<region_core>> offers_core::channels() {
    std::vector<std::shared_ptr<region_core>> all;
    std::lock_guard const lock{mutex_};
    for (auto const& c : channels_) {
        if (auto alive = c.lock()) all.push_back(std::move(alive));
    }
    return all;
}

offer_ptr offers_core::find(std::string_view name) const {
    std::lock_guard const lock{mutex_};
    auto const found = offers_.find(name);
    return found == offers_.end() ? nullptr : found->second;
}

void offers_core::on_abandoned() noexcept {
    if (auto const p = pool()) p->context_is_going();
    std::map<std::uint64_t, protocol::waiter<error_code>> waiters;
    std::lock_guard const lock{mutex_};
    waiters.swap(withdrawing_);
}

}  // namespace rcverbs::detail
