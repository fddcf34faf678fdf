#include "session/session_core.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <tuple>
#include <utility>

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

// Errors are returned as values; nothing here throws across a suspension.
constexpr auto awaiting = asio::as_tuple(asio::use_awaitable);

}  // namespace

session_core::session_core(connection over, session_options options)
    : options_{options},
      connection_{std::move(over)},
      executor_{asio::make_strand(connection_.get_executor())},
      regions_wait_{asio::steady_timer{executor_}},
      done_wait_{asio::steady_timer{executor_}} {}

session_core::~session_core() = default;

std::shared_ptr<session_core> session_core::make(connection over, session_options options) {
    auto made = std::make_shared<session_core>(std::move(over), options);
    made->membership_.join(made->executor_, made, hosting::rank::object);
    return made;
}

void session_core::context_is_going(asio::execution_context const&) noexcept {
    regions_wait_.timer.reset();
    done_wait_.timer.reset();
    executor_ = {};
}

wire::hello session_core::own_hello() const noexcept {
    wire::hello h;
    h.mode = options_.mode;
    h.message_bytes_max = static_cast<std::uint32_t>(wire::message_bytes_max);
    h.receives = messages_each_way;
    return h;
}

mutable_slice session_core::receive_slot(std::size_t i) const {
    return messages_.slice(i * wire::message_bytes_max, wire::message_bytes_max);
}

mutable_slice session_core::send_slot(std::size_t i) const {
    return receive_slot(messages_each_way + i);
}

// Makes the message buffers and posts the receives, before the peer can send.
error_code session_core::prepare() {
    error_code ec;
    constexpr std::size_t size = 2 * messages_each_way * wire::message_bytes_max;
    static_assert(size <= session::locked_bytes);
    messages_ = registered_buffer{connection_.domain(), size, access_flags::local_write, ec};
    if (ec) return fail(step::handshake, ec, close_reason::refused);
    for (std::size_t i = 0; i < messages_each_way; ++i) post_receive(i);
    return {};
}

void session_core::post_receive(std::size_t i) {
    connection_.async_receive(
        receive_slot(i),
        asio::bind_executor(
            executor_,
            [self = shared_from_this(), i](error_code ec, receive_result what) {
                self->on_received(i, ec, what);
            }
        )
    );
}

asio::awaitable<error_code> session_core::connect(endpoint peer) {
    side_ = side::active;
    auto [ec] = co_await connection_.async_resolve(peer, awaiting);
    if (ec) co_return ec;
    if (error_code const failed = prepare()) co_return failed;
    auto const hello = wire::encode(own_hello());
    auto [refused] = co_await connection_.async_establish(hello, awaiting);
    error_code foreign;
    wire::hello const answer = wire::decode_hello(connection_.private_data(), foreign);
    if (refused) {
        // An rcverbs peer sends the reason with its rejection; any other rejection is reported
        // unchanged.
        if (refused != cm_errc::rejected_by_peer || foreign) co_return refused;
        co_return fail(step::handshake, wire::check_refusal(answer), close_reason::refused);
    }
    if (foreign) co_return fail(step::handshake, foreign, close_reason::protocol_error);
    if (error_code const why = wire::check_acceptance(own_hello(), answer)) {
        co_return fail(step::handshake, why, close_reason::protocol_error);
    }
    peer_message_bytes_max_ = answer.message_bytes_max;
    co_return error_code{};
}

asio::awaitable<error_code> session_core::accept() {
    side_ = side::passive;
    error_code foreign;
    wire::hello const theirs = wire::decode_hello(connection_.private_data(), foreign);
    wire::hello ours = own_hello();
    ours.answer = foreign ? wire::verdict::malformed : wire::judge_request(ours, theirs);
    if (ours.answer != wire::verdict::welcome) {
        error_code ignored;
        connection_.reject(wire::encode(ours), ignored);
        error_code const why = foreign ? foreign : wire::judgement<session_errc>(ours.answer);
        co_return fail(step::handshake, why, close_reason::refused);
    }
    peer_message_bytes_max_ = theirs.message_bytes_max;
    if (error_code const failed = prepare()) co_return failed;
    auto const hello = wire::encode(ours);
    auto [ec] = co_await connection_.async_accept(hello, awaiting);
    co_return ec;
}

asio::awaitable<error_code> session_core::send(wire::message message, std::size_t slot) {
    error_code ec;
    mutable_slice const place = send_slot(slot);
    std::size_t const size = wire::encode(message, place.bytes(), ec);
    if (ec) co_return ec;
    mutable_slice const bytes = place.first(size);
    auto [failed, sent] = co_await connection_.async_send(bytes, awaiting);
    co_return failed;
}

// A send can detect the peer's disconnect as well as a receive.
error_code session_core::fail_if_peer_left(step where, error_code ec) {
    if (ec != errc::peer_disconnected && ec != errc::not_connected) return ec;
    return fail(
        where,
        inward_end_.value_or(session_errc::peer_closed_early),
        close_reason::peer_closed_early
    );
}

asio::awaitable<error_code> session_core::publish(std::vector<named_region> regions) {
    wire::regions_message message;
    for (named_region& r : regions) message.regions.push_back({std::move(r.name), r.region});
    // A trial encoding rejects a message that does not fit before the state machine changes.
    std::array<std::byte, wire::message_bytes_max> trial;
    error_code ec;
    std::size_t const size = wire::encode(message, trial, ec);
    if (ec) co_return ec;
    if (size > peer_message_bytes_max_) co_return errc::message_too_large;
    if (!connection_.is_open()) co_return errc::not_connected;
    if (exchange_.resume(exchange::event::publish) == exchange::action::illegal) {
        co_return errc::operation_in_progress;
    }
    error_code const failed = co_await send(std::move(message), 0);
    co_return fail_if_peer_left(step::exchange, failed);
}

asio::awaitable<error_code> session_core::send_done() {
    if (!connection_.is_open()) {
        bool const peer_left = connection_.last_failure().reason == close_reason::peer_disconnected;
        error_code const why = peer_left ? errc::peer_disconnected : errc::not_connected;
        co_return peer_left ? fail_if_peer_left(step::finish, why) : inward_end_.value_or(why);
    }
    if (exchange_.resume(exchange::event::finish) == exchange::action::illegal) {
        co_return errc::operation_in_progress;
    }
    // After MSG_DONE the peer revokes the access right that a keepalive needs. The next step has a
    // deadline of its own.
    connection_.set_keepalive_interval({});
    error_code ec = co_await send(wire::done_message{}, 1);
    if (ec == errc::peer_disconnected && side_ == side::passive) {
        // The connecting side disconnects as soon as it has both MSG_DONEs, so that its
        // acknowledgement of ours may be lost. When the connection has ended, every message that
        // arrived has been processed.
        co_await connection_.async_wait_disconnected(awaiting);
        if (exchange_.inward() == exchange::progress::done) ec = {};
    }
    if (!ec) done_was_delivered_ = true;
    co_return fail_if_peer_left(step::finish, ec);
}

asio::awaitable<error_code> session_core::exchange_regions(std::vector<named_region> own) {
    error_code const ec = co_await publish(std::move(own));
    // Two statements, because g++ 12 awaits both sides of a conditional expression.
    if (ec) co_return ec;
    co_return co_await wait_regions();
}

template <class Condition>
asio::awaitable<error_code> session_core::wait_for(
    wait& w, Condition has_come, step where, std::chrono::milliseconds deadline
) {
    if (std::exchange(w.is_under_way, true)) co_return errc::operation_in_progress;
    error_code result;
    w.timer->expires_after(deadline);
    // A message that arrived before the disconnect counts, even if it is checked afterwards.
    while (!has_come() && !result) {
        if (inward_end_) {
            result = *inward_end_;
        } else if (exchange_.inward() == exchange::progress::done) {
            result = session_errc::unexpected_message;  // no message follows MSG_DONE
        } else {
            auto [cancelled] = co_await w.timer->async_wait(awaiting);
            if (!cancelled && !has_come())
                result = fail(where, errc::timed_out, close_reason::timed_out);
        }
    }
    w.is_under_way = false;
    co_return result;
}

asio::awaitable<error_code> session_core::wait_regions() {
    return wait_for(
        regions_wait_, [this] { return has_regions_; }, step::exchange, options_.exchange_timeout
    );
}

asio::awaitable<error_code> session_core::wait_done() {
    return wait_for(
        done_wait_,
        [this] { return exchange_.inward() == exchange::progress::done; },
        step::finish,
        options_.finish_timeout
    );
}

void session_core::on_received(std::size_t slot, error_code ec, receive_result what) {
    if (!ec) {
        error_code bad;
        if (what.is_write || what.size_bytes > wire::message_bytes_max) {
            bad = session_errc::unexpected_message;  // a write with immediate data is no message
        } else {
            wire::message message =
                wire::decode(receive_slot(slot).bytes().first(what.size_bytes), bad);
            if (!bad) bad = take_message(std::move(message));
        }
        if (bad) inward_end_ = fail(step::exchange, bad, close_reason::protocol_error);
    } else if (!inward_end_ && exchange_.inward() != exchange::progress::done) {
        bool const has_left = ec == errc::peer_disconnected;
        step const where =
            exchange_.inward() == exchange::progress::opening ? step::exchange : step::finish;
        inward_end_ =
            has_left ? fail(where, session_errc::peer_closed_early, close_reason::peer_closed_early)
                     : ec;
    }
    regions_wait_.timer->cancel();
    done_wait_.timer->cancel();
}

error_code session_core::take_message(wire::message message) {
    auto* const regions = std::get_if<wire::regions_message>(&message);
    auto const event =
        regions != nullptr ? exchange::event::regions_received : exchange::event::done_received;
    if (exchange_.resume(event) == exchange::action::protocol_error)
        return session_errc::unexpected_message;
    if (regions != nullptr) {
        std::vector<named_region> named;
        for (wire::region_descriptor& d : regions->regions) named.emplace_back(d.name, d.region);
        regions_ = peer_regions{std::move(named)};
        has_regions_ = true;
    } else {
        // The peer does not access our memory any more. A connection that has just ended has no
        // rights to revoke.
        error_code ec;
        connection_.set_remote_access(access_flags::local_read, ec);
        if (ec && ec != errc::not_connected) return ec;
    }
    return {};
}

asio::awaitable<error_code> session_core::disconnect() {
    error_code ec;
    if (side_ == side::passive && exchange_.is_complete()) {
        // The peer has received our MSG_DONE and disconnects. After the deadline this side
        // disconnects.
        asio::steady_timer deadline{executor_, options_.finish_timeout};
        deadline.async_wait([self = shared_from_this()](error_code const& cancelled) {
            if (!cancelled) {
                static_cast<void>(
                    self->fail(step::disconnect, errc::timed_out, close_reason::timed_out)
                );
            }
        });
        std::tie(ec) = co_await connection_.async_wait_disconnected(awaiting);
    } else {
        std::tie(ec) = co_await connection_.async_disconnect(awaiting);
    }
    if (ec) co_return ec;
    if (exchange_.is_complete() && done_was_delivered_) {
        std::lock_guard const lock{mutex_};
        if (failure_.reason == close_reason::timed_out) co_return failure_.code;
        failure_.reason = close_reason::completed;
        co_return error_code{};
    }
    co_return fail(step::finish, session_errc::peer_closed_early, close_reason::peer_closed_early);
}

asio::awaitable<error_code> session_core::finish() {
    error_code ec = co_await send_done();
    if (!ec) ec = co_await wait_done();
    if (!ec) ec = co_await disconnect();
    co_return ec;
}

// Records a failure of the session, closes the connection because of it, and returns its code.
error_code session_core::fail(step where, error_code ec, close_reason reason) {
    failure const found{where, ec, connection_.remote_endpoint()};
    {
        std::lock_guard const lock{mutex_};
        // A deadline may pass at the moment at which the session completes.
        if (failure_.reason == close_reason::completed) return ec;
        close_reason const first = failure_.reason;
        if (!failure_.code) failure_ = found;
        failure_.reason = first != close_reason::open ? first : reason;
    }
    if (reason == close_reason::protocol_error) {
        connection_.close(ec);
    } else {
        connection_.close();
    }
    return ec;
}

failure session_core::last_failure() const {
    failure const lower = connection_.last_failure();
    std::lock_guard const lock{mutex_};
    // After a completed session the disconnect by the peer is not a failure.
    bool const is_own = failure_.code || failure_.reason == close_reason::completed;
    failure all = is_own ? failure_ : lower;
    all.reason = failure_.reason != close_reason::open ? failure_.reason : lower.reason;
    return all;
}

}  // namespace rcverbs::detail
