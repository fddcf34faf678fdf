#include "rdma-bench/control.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstring>

namespace rdma_bench {

namespace asio = boost::asio;
using asio::use_awaitable;
using rcverbs::access_flags;
using rcverbs::errc;

rcverbs::connection_options control_options() {
    rcverbs::connection_options o;
    // No stall timeout: during a measurement the peer may not post receives for a long time.
    o.liveness.stall_timeout = std::nullopt;
    return o;
}

rcverbs::poller control_poller(asio::io_context& io) {
    return rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}});
}

control::control(asio::io_context& io, rcverbs::connection c, limits const& l)
    : state_{std::make_shared<state>(io, std::move(c), l.authentication)},
      patience_{l.patience} {
    state_->link->on_prepare = [weak = std::weak_ptr{state_}] {
        if (auto const s = weak.lock()) prepare(s);
    };
}

control::~control() { close(); }

asio::awaitable<void> control::connect(rcverbs::endpoint server) {
    co_await rcverbs::protocol::initiate<rcverbs::error_code>(
        state_->link,
        [server](authenticated& link, auto who) { link.connect(server, std::move(who)); },
        use_awaitable
    );
}

asio::awaitable<void> control::accept() {
    co_await rcverbs::protocol::initiate<rcverbs::error_code>(
        state_->link,
        [](authenticated& link, auto who) { link.accept(std::move(who)); },
        use_awaitable
    );
}

rcverbs::error_code control::authenticated::prepare() {
    try {
        on_prepare();
    } catch (boost::system::system_error const& e) {
        return e.code();
    }
    return {};
}

void control::prepare(std::shared_ptr<state> const& s) {
    rcverbs::protection_domain const domain = s->link->lower().domain();
    s->outgoing = rcverbs::registered_buffer{domain, text_bytes_max, access_flags::local_read};
    s->incoming =
        rcverbs::registered_buffer{domain, receives * text_bytes_max, access_flags::local_write};
    s->alive = rcverbs::registered_buffer{domain, alive_text.size(), access_flags::local_read};
    std::memcpy(s->alive.bytes().data(), alive_text.data(), alive_text.size());
    for (std::size_t i = 0; i < receives; ++i) post_receive(s, i);
}

void control::post_receive(std::shared_ptr<state> const& s, std::size_t index) {
    rcverbs::mutable_slice const into = s->incoming.slice(index * text_bytes_max, text_bytes_max);
    s->link->lower().async_receive(
        into,
        [s, index](rcverbs::error_code ec, rcverbs::receive_result message) {
            s->arrived.cancel();
            if (ec) {
                s->failed = ec;
                return;
            }
            std::span<std::byte> const text =
                s->incoming.bytes().subspan(index * text_bytes_max, message.size_bytes);
            std::string_view const read{
                reinterpret_cast<char const*>(text.data()), text.size()};  // bytes are chars
            bool const is_alive = read == alive_text;
            if (!is_alive || s->is_kept_alive) s->last_heard = std::chrono::steady_clock::now();
            if (!is_alive) s->texts.emplace_back(read);
            if (s->texts.size() > texts_max) {
                s->failed = make_error_code(errc::malformed_message);
                return s->link->close();
            }
            post_receive(s, index);
        }
    );
}

asio::awaitable<void> control::send(nlohmann::json const& what) {
    std::string const text = what.dump();
    if (text.size() > text_bytes_max)
        throw boost::system::system_error{make_error_code(errc::message_too_large)};
    std::memcpy(state_->outgoing.bytes().data(), text.data(), text.size());
    // A peer that posts no receive would hold the text for ever.
    asio::steady_timer const late = close_after_patience();
    co_await connection().async_send(state_->outgoing.slice(0, text.size()), use_awaitable);
}

asio::awaitable<nlohmann::json> control::receive_hello() {
    nlohmann::json hello = co_await receive();
    state_->is_kept_alive = true;
    co_return hello;
}

asio::awaitable<nlohmann::json> control::receive() {
    state_->last_heard = std::chrono::steady_clock::now();
    while (state_->texts.empty()) {
        if (state_->failed) throw boost::system::system_error{state_->failed};
        auto const until = state_->last_heard + patience_;
        if (std::chrono::steady_clock::now() >= until)
            throw boost::system::system_error{make_error_code(errc::timed_out)};
        state_->arrived.expires_at(until);
        co_await state_->arrived.async_wait(asio::as_tuple(use_awaitable));
    }
    std::string const text = std::move(state_->texts.front());
    state_->texts.pop_front();
    co_return parse_text(text);
}

void control::send_alive() {
    if (!connection().is_open()) return;
    connection().async_send(state_->alive.slice(), [s = state_](rcverbs::error_code, std::size_t) {
    });
}

asio::steady_timer control::close_after_patience() {
    asio::steady_timer timer{connection().get_executor(), patience_};
    timer.async_wait([s = state_](rcverbs::error_code ec) {
        if (!ec) s->link->close();
    });
    return timer;
}

asio::awaitable<void> control::await_end() {
    asio::steady_timer const late = close_after_patience();
    co_await connection().async_wait_disconnected(asio::as_tuple(use_awaitable));
}

asio::awaitable<void> control::disconnect() {
    co_await connection().async_disconnect(asio::as_tuple(use_awaitable));
}

}  // namespace rdma_bench
