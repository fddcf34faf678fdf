#include <rcverbs/session.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>

#include "connection/calls.hpp"
#include "session/session_core.hpp"

namespace rcverbs {

namespace asio = boost::asio;

namespace {

using core_ptr = std::shared_ptr<detail::session_core>;

// A terminal cancellation of any operation ends the session, as it would end the connection.
template <class Waiter>
void honour_cancellation(Waiter const& waiter, core_ptr const& core) {
    if (!waiter.slot().is_connected()) return;
    waiter.slot().assign([weak = std::weak_ptr{core}](asio::cancellation_type type) {
        bool const is_terminal =
            (type & asio::cancellation_type::terminal) != asio::cancellation_type::none;
        auto const alive = weak.lock();
        if (is_terminal && alive != nullptr) alive->over().close();
    });
}

// Runs an operation on the connection's executor and completes the handler with what `finish` makes of its outcome.
template <class Waiter, class Operation, class Finish>
void run(core_ptr const& core, Waiter waiter, Operation operation, Finish finish) {
    honour_cancellation(waiter, core);
    auto const executor = core->over().get_executor();
    auto shared = std::make_shared<Waiter>(std::move(waiter));
    asio::post(executor, [executor, core, shared, operation = std::move(operation), finish]() mutable {
        asio::co_spawn(
            executor,
            operation(),
            [core, shared, finish](std::exception_ptr failed, error_code ec) {
                // Memory is all that can run out in there.
                if (failed) ec = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
                finish(*shared, ec);
            }
        );
    });
}

template <class Operation>
void run_control(core_ptr const& core, detail::control_handler handler, Operation operation) {
    run(core,
        detail::control_waiter{std::move(handler), core->over().get_executor()},
        std::move(operation),
        [](detail::control_waiter& waiter, error_code ec) { waiter(ec); });
}

template <class Operation>
void run_regions(core_ptr const& core, detail::regions_handler handler, Operation operation) {
    using waiter_type = detail::waiting_handler<error_code, peer_regions>;
    run(core,
        waiter_type{std::move(handler), core->over().get_executor()},
        std::move(operation),
        [core](waiter_type& waiter, error_code ec) {
            waiter(ec, ec ? peer_regions{} : core->regions());
        });
}

bool is_positive(std::chrono::milliseconds d) noexcept { return d > std::chrono::milliseconds{0}; }

}  // namespace

remote_region const* peer_regions::find(std::string_view name) const noexcept {
    auto const found =
        std::find_if(regions_.begin(), regions_.end(), [&](named_region const& r) { return r.name == name; });
    return found == regions_.end() ? nullptr : &found->region;
}

session::session(connection over, session_options options) {
    if (!is_positive(options.exchange_deadline) || !is_positive(options.finish_deadline)) {
        throw boost::system::system_error{errc::invalid_option, "session"};
    }
    core_ = std::make_shared<detail::session_core>(std::move(over), options);
}

session& session::operator=(session&& other) noexcept {
    if (this != &other) {
        close();
        core_ = std::move(other.core_);
    }
    return *this;
}

session::~session() { close(); }

void session::start_connect(core_ptr const& core, endpoint const& peer, detail::control_handler handler) {
    run_control(core, std::move(handler), [core, peer] { return core->connect(peer); });
}

void session::start_accept(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->accept(); });
}

void session::start_publish(
    core_ptr const& core, std::vector<named_region> const& regions, detail::control_handler handler
) {
    run_control(core, std::move(handler), [core, regions] { return core->publish(regions); });
}

void session::start_wait_regions(core_ptr const& core, detail::regions_handler handler) {
    run_regions(core, std::move(handler), [core] { return core->wait_regions(); });
}

void session::start_exchange(
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

void session::start_send_done(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->send_done(); });
}

void session::start_wait_done(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->wait_done(); });
}

void session::start_disconnect(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->disconnect(); });
}

void session::start_finish(core_ptr const& core, detail::control_handler handler) {
    run_control(core, std::move(handler), [core] { return core->finish(); });
}

std::vector<std::byte> session::busy_answer() {
    wire::hello h;
    h.answer = wire::verdict::busy;
    auto const bytes = wire::encode(h);
    return {bytes.begin(), bytes.end()};
}

void session::close() noexcept {
    if (core_ != nullptr) core_->over().close();
}

connection& session::next_layer() noexcept { return core_->over(); }
connection const& session::next_layer() const noexcept { return core_->over(); }
session::executor_type session::get_executor() const noexcept { return core_->over().get_executor(); }
close_reason session::reason() const { return core_->reason(); }
failure session::last_failure() const { return core_->last_failure(); }

}  // namespace rcverbs
