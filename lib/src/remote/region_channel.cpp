#include <rcverbs/experimental/region_channel.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include <utility>

#include "remote/offers_core.hpp"
#include "remote/region_core.hpp"
#include "remote/start_in_order.hpp"

namespace rcverbs {

namespace {

std::shared_ptr<detail::region_core> make(
    request_channel over, region_channel_options const& options
) {
    auto core =
        protocol::make<detail::region_core>(std::move(over), options.offers, options.changes_max);
    core->begin();
    return core;
}

// Runs a function of the core at once, with a handler that a terminal cancellation closes.
template <class Begin>
void start_control(
    std::shared_ptr<detail::region_core> const& core, detail::control_handler handler, Begin begin
) {
    auto const io = core->executor();
    if (!io) return;
    protocol::waiter<error_code> who{std::move(handler), io};
    detail::close_when_cancelled(who, core);
    begin(*core, std::move(who));
}

}  // namespace

// --- offers --------------------------------------------------------------------------------------

region_offers::region_offers() noexcept = default;

region_offers::region_offers(
    runs_on<boost::asio::any_io_executor> const& where, region_offers_options const& options
) {
    detail::throw_if_refused(detail::problem_of(options));
    core_ = protocol::make<detail::offers_core>(where.get_executor(), options);
}

void region_offers::offer(std::string_view name, std::span<std::byte> memory, access_flags rights) {
    core_->add(name, {memory}, rights);
}

void region_offers::offer(
    std::string_view name, std::vector<std::span<std::byte>> const& memory, access_flags rights
) {
    core_->add(name, memory, rights);
}

void region_offers::offer(std::string_view name, std::span<std::byte const> memory) {
    // The cast is safe: the device writes only where rights allow it, and these allow no writes.
    std::span<std::byte> const as_registered{const_cast<std::byte*>(memory.data()), memory.size()};
    core_->add(name, {as_registered}, access_flags::remote_read);
}

std::size_t region_offers::size() const { return core_->size(); }
region_offers::executor_type region_offers::executor() const { return core_->executor(); }

void region_offers::start_withdraw(
    core_ptr const& core, std::string const& name, detail::control_handler handler
) {
    core->withdraw(name, std::move(handler));
}

// --- channel -------------------------------------------------------------------------------------

region_channel_base::region_channel_base(
    request_channel over, region_channel_options const& options
) {
    detail::throw_if_refused(detail::problem_of(options));
    core_ = make(std::move(over), options);
}

region_channel_base::region_channel_base(
    request_channel over, region_channel_options const& options, error_code& ec
) {
    if (!ec && !detail::problem_of(options).empty()) ec = errc::invalid_option;
    if (!ec) core_ = make(std::move(over), options);
}

connection_options region_channel_base::needed(region_channel_options const& options) {
    return request_channel::needed(options.channel);
}

void region_channel_base::close() noexcept {
    if (core_ != nullptr) core_->close();
}
failure region_channel_base::last_failure() const { return core_->last_failure(); }
region_channel_statistics region_channel_base::statistics() const { return core_->statistics(); }
std::optional<region_refusal> region_channel_base::peer_refusal() const {
    return core_->peer_refusal();
}
std::optional<region_refusal> region_channel_base::own_refusal() const {
    return core_->own_refusal();
}

std::string region_refusal::message() const {
    std::string text = code.message();
    if (std::string const more = limit.message(); !more.empty()) text += ". " + more + '.';
    return text;
}

void region_channel_base::start_connect(
    core_ptr const& core, endpoint const& peer, detail::control_handler handler
) {
    start_control(core, std::move(handler), [&](detail::region_core& c, auto who) {
        c.connect(peer, std::move(who));
    });
}
void region_channel_base::start_accept(core_ptr const& core, detail::control_handler handler) {
    start_control(core, std::move(handler), [](detail::region_core& c, auto who) {
        c.accept(std::move(who));
    });
}
void region_channel_base::start_finish(core_ptr const& core, detail::control_handler handler) {
    start_control(core, std::move(handler), [](detail::region_core& c, auto who) {
        c.finish(std::move(who));
    });
}
void region_channel_base::start_find(
    core_ptr const& core, std::string name, std::chrono::milliseconds wait, find_handler handler
) {
    detail::start_in_order(
        core,
        std::move(handler),
        [which = std::move(name), wait](detail::region_core& c, auto who) mutable {
            c.finds().find(std::move(which), wait, std::move(who));
        }
    );
}
void region_channel_base::start_next(core_ptr const& core, detail::next_handler handler) {
    detail::start_in_order(core, std::move(handler), [](detail::region_core& c, auto who) {
        c.next(std::move(who));
    });
}
void region_channel_base::start_next_change(core_ptr const& core, change_handler handler) {
    detail::start_in_order(core, std::move(handler), [](detail::region_core& c, auto who) {
        c.changes().next(std::move(who));
    });
}

}  // namespace rcverbs
