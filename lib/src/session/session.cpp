#include <rcverbs/session.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>

#include "hosting/deferred_completions.hpp"
#include "error/option_check.hpp"
#include "session/session_core.hpp"

namespace rcverbs {

namespace asio = boost::asio;

namespace {

using core_ptr = std::shared_ptr<detail::session_core>;

// Runs an operation on the connection's executor, then calls `finish` with the handler and the
// operation's error.
template <class Waiter, class Operation, class Finish>
void run(core_ptr const& core, Waiter waiter, Operation operation, Finish finish) {
    detail::close_when_cancelled(waiter, core);
    auto const executor = core->executor();
    auto shared = std::make_shared<Waiter>(std::move(waiter));
    asio::post(
        executor,
        [executor, core, shared, operation = std::move(operation), finish]() mutable {
            asio::co_spawn(
                executor,
                operation(),
                [core, shared, finish](std::exception_ptr const& failed, error_code ec) {
                    // The coroutine throws only if an allocation fails.
                    if (failed)
                        ec = boost::system::errc::make_error_code(
                            boost::system::errc::not_enough_memory
                        );
                    finish(*shared, ec);
                }
            );
        }
    );
}

template <class Operation>
void run_control(core_ptr const& core, detail::control_handler handler, Operation operation) {
    run(core,
        detail::control_waiter{std::move(handler), core->executor()},
        std::move(operation),
        [](detail::control_waiter& waiter, error_code ec) { waiter(ec); });
}

template <class Operation>
void run_regions(core_ptr const& core, detail::regions_handler handler, Operation operation) {
    using waiter_type = detail::waiting_handler<error_code, peer_regions>;
    run(core,
        waiter_type{std::move(handler), core->executor()},
        std::move(operation),
        [core](waiter_type& waiter, error_code ec) {
            waiter(ec, ec ? peer_regions{} : core->regions());
        });
}

}  // namespace

remote_region const* peer_regions::find(std::string_view name) const noexcept {
    auto const found = std::find_if(regions_.begin(), regions_.end(), [&](named_region const& r) {
        return r.name == name;
    });
    return found == regions_.end() ? nullptr : &found->region;
}

session_base::session_base(connection over, session_options const& options) {
    constexpr std::chrono::milliseconds least{1};
    detail::option_check check{"session_options"};
    check.from("exchange_timeout", options.exchange_timeout, least)
        .from("finish_timeout", options.finish_timeout, least);
    detail::throw_if_refused(check.problem());
    core_ = detail::session_core::make(std::move(over), options);
}

void session_base::start_connect(
    core_ptr const& core, endpoint const& peer, detail::control_handler handler
) {
    run_control(core, std::move(handler), [core, peer] { return core->connect(peer); });
}

void session_base::start_accept(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->accept(); });
}

void session_base::start_publish(
    core_ptr const& core, std::vector<named_region> const& regions, detail::control_handler handler
) {
    run_control(core, std::move(handler), [core, regions] { return core->publish(regions); });
}

void session_base::start_wait_regions(core_ptr const& core, detail::regions_handler handler) {
    run_regions(core, std::move(handler), [core] { return core->wait_regions(); });
}

void session_base::start_exchange(
    core_ptr const& core, std::vector<named_region> regions, detail::regions_handler handler
) {
    run_regions(
        core,
        std::move(handler),
        [core, regions = std::move(regions)]() -> asio::awaitable<error_code> {
            return core->exchange_regions(regions);
        }
    );
}

void session_base::start_send_done(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->send_done(); });
}

void session_base::start_wait_done(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->wait_done(); });
}

void session_base::start_disconnect(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->disconnect(); });
}

void session_base::start_finish(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->finish(); });
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

}  // namespace rcverbs
