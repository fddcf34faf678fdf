#include <rcverbs/channel_error.hpp>
#include <rcverbs/session.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include <algorithm>
#include <utility>

#include "session/session_core.hpp"

namespace rcverbs {

namespace asio = boost::asio;

namespace {

using core_ptr = std::shared_ptr<detail::session_core>;
using detail::session_core;

// Runs an operation inside the core. `operation(core, done)` calls `done(error_code)` once,
// and that the handler, with what `result` adds.
template <class... Arguments, class Operation, class Result>
void run(
    core_ptr const& core,
    detail::erased_handler<Arguments...> handler,
    Operation operation,
    Result result
) {
    auto const io = core->executor();
    if (!io) return;  // the handler goes with its context
    auto const who = std::make_shared<protocol::waiter<Arguments...>>(std::move(handler), io);
    detail::close_when_cancelled(*who, core);
    auto const is_closed = [core] {
        return core->last_failure().reason == close_reason::closed_locally;
    };
    core->enter(
        [core, who, operation = std::move(operation), result, is_closed, was_closed = is_closed()](
        ) mutable {
            // A cancellation, or close(), came before the start.
            if (!was_closed && is_closed())
                return result(*core, *who, asio::error::operation_aborted);
            operation(*core, [c = core.get(), who, result](error_code ec) {
                result(*c, *who, ec);
            });
        }
    );
}

template <class Begin>
void start(core_ptr const& core, detail::control_handler handler, Begin begin) {
    auto const io = core->executor();
    if (!io) return;  // the handler goes with its context
    core->enter(
        [c = core.get(), begin](protocol::waiter<error_code>& who) { begin(*c, std::move(who)); },
        protocol::waiter<error_code>{std::move(handler), io}
    );
}

template <class Operation>
void run_control(core_ptr const& core, detail::control_handler handler, Operation operation) {
    run(core,
        std::move(handler),
        std::move(operation),
        [](session_core& c, protocol::waiter<error_code>& who, error_code ec) {
            c.deliver(std::move(who), ec);
        });
}

template <class Operation>
void run_regions(core_ptr const& core, detail::regions_handler handler, Operation operation) {
    run(core,
        std::move(handler),
        std::move(operation),
        [](session_core& c, protocol::waiter<error_code, peer_regions>& who, error_code ec) {
            c.deliver(std::move(who), ec, ec ? peer_regions{} : c.regions());
        });
}

std::string problem_of(session_options const& options) {
    constexpr std::chrono::milliseconds least{1};
    detail::option_check check{"session_options"};
    check.from("exchange_timeout", options.exchange_timeout, least)
        .from("finish_timeout", options.finish_timeout, least)
        .inside(protocol::problem_of(options.authentication));
    return check.problem();
}

}  // namespace

remote_region const* peer_regions::find(std::string_view name) const noexcept {
    auto const found = std::find_if(regions_.begin(), regions_.end(), [&](named_region const& r) {
        return r.name == name;
    });
    return found == regions_.end() ? nullptr : &found->region;
}

remote_region const& peer_regions::at(std::string_view name) const {
    if (remote_region const* const found = find(name)) return *found;
    std::string names = regions_.empty() ? std::string{"the peer has none"} : "the peer has: ";
    for (named_region const& r : regions_)
        names += (&r == regions_.data() ? "\"" : ", \"") + r.name + '"';
    throw boost::system::system_error{
        channel_errc::no_such_region, "no region \"" + std::string{name} + "\"; " + names};
}

session_base::session_base(connection over, session_options const& options) {
    detail::throw_if_refused(problem_of(options));
    core_ = protocol::make<session_core>(std::move(over), options);
}

session_base::session_base(connection over, session_options const& options, error_code& ec) {
    if (!ec && !problem_of(options).empty()) ec = errc::invalid_option;
    if (!ec) core_ = protocol::make<session_core>(std::move(over), options);
}

connection_options session_base::needed(session_options const& options) {
    return options.connection;
}

void session_base::start_connect(
    core_ptr const& core, endpoint const& peer, detail::control_handler handler
) {
    start(core, std::move(handler), [peer](session_core& c, protocol::waiter<error_code> who) {
        c.connect(peer, std::move(who));
    });
}

void session_base::start_accept(core_ptr const& core, detail::control_handler handler) {
    start(core, std::move(handler), [](session_core& c, protocol::waiter<error_code> who) {
        c.accept(std::move(who));
    });
}

void session_base::start_publish(
    core_ptr const& core, std::vector<named_region> const& regions, detail::control_handler handler
) {
    run_control(
        core,
        std::move(handler),
        [regions](session_core& c, session_core::done const& then) { c.publish(regions, then); }
    );
}

void session_base::start_wait_regions(core_ptr const& core, detail::regions_handler handler) {
    run_regions(core, std::move(handler), [](session_core& c, session_core::done then) {
        c.wait_regions(std::move(then));
    });
}

void session_base::start_exchange(
    core_ptr const& core, std::vector<named_region> regions, detail::regions_handler handler
) {
    run_regions(
        core,
        std::move(handler),
        [regions = std::move(regions)](session_core& c, session_core::done const& then) {
            c.exchange_regions(regions, then);
        }
    );
}

void session_base::start_send_done(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [](session_core& c, session_core::done const& then) {
        c.send_done(then);
    });
}

void session_base::start_wait_done(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [](session_core& c, session_core::done then) {
        c.wait_done(std::move(then));
    });
}

void session_base::start_disconnect(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [](session_core& c, session_core::done then) {
        c.disconnect(std::move(then));
    });
}

void session_base::start_finish(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [](session_core& c, session_core::done then) {
        c.finish(std::move(then));
    });
}

std::vector<std::byte> session_base::busy_private_data() {
    wire::hello h;
    h.answer = wire::verdict::busy;
    auto const bytes = wire::encode(h);
    return {bytes.begin(), bytes.end()};
}

void session_base::close() noexcept {
    if (core_ != nullptr) core_->close();
}
failure session_base::last_failure() const { return core_->last_failure(); }
std::string session_base::peer_identity() const { return core_->peer_identity(); }

}  // namespace rcverbs
