#include "connection/authenticated_handshake.hpp"

#include <boost/endian/conversion.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include "authentication/key_set.hpp"

namespace rcverbs::protocol {

namespace {

using wire::authentication_verdict;

constexpr access_flags all_rights =
    access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;

detail::authenticated_address encoded(endpoint const& e) noexcept {
    boost::asio::ip::address const& address = e.address();
    auto const bytes =
        address.is_v4()
            ? boost::asio::ip::make_address_v6(boost::asio::ip::v4_mapped, address.to_v4())
                  .to_bytes()
            : address.to_v6().to_bytes();
    std::uint16_t const port = boost::endian::native_to_big(e.port());
    detail::authenticated_address out{};
    std::memcpy(out.data(), bytes.data(), bytes.size());
    std::memcpy(out.data() + bytes.size(), &port, sizeof(port));
    return out;
}

std::vector<detail::secret> keys_of(pre_shared_keys const& keys, std::string_view identity) {
    return detail::access::set_of(keys)->keys_of(identity);
}

template <class Array>
Array random() {
    Array out{};
    detail::fill_random(out);
    return out;
}

}  // namespace

handshake::authentication::authentication(handshake& owner, authentication_options const& options)
    : owner_{owner},
      options_{options},
      limit_{owner} {}

// OpenSSL may refuse, or have no memory.
template <class Function>
error_code handshake::authentication::guarded(Function function) {
    try {
        return function();
    } catch (boost::system::system_error const& e) {
        return e.code();
    } catch (std::bad_alloc const&) {
        return make_error_code(boost::system::errc::not_enough_memory);
    }
}

// The peer gets no rights, and there is a receive for its one message.
error_code handshake::authentication::begin() {
    error_code ec;
    keepalive_interval_ = owner_.lower().keepalive_interval();
    owner_.lower().set_keepalive_interval({});
    owner_.lower().set_remote_access(access_flags::local_read, ec);
    places_.emplace(owner_);
    if (!ec) ec = places_->open(1, 1, wire::authentication_message_bytes_max);
    if (ec) return ec;
    places_->receive(0, [this](error_code failed, receive_result const& what, auto bytes) {
        on_message(failed, !what.is_write, bytes);
    });
    return {};
}

detail::authenticated_addresses handshake::authentication::addresses() const {
    auto const own = encoded(owner_.lower().local_endpoint());
    auto const peer = encoded(owner_.lower().remote_endpoint());
    return owner_.is_active() ? detail::authenticated_addresses{own, peer}
                              : detail::authenticated_addresses{peer, own};
}

// --- the connecting side -------------------------------------------------------------------------

error_code handshake::authentication::begin_connecting() {
    std::string identity;
    if (auto const& named = detail::access::identity_of(options_.keys); named != nullptr) {
        identity = *named;
    } else {
        auto all = options_.keys.identities();
        if (all.size() == 1) identity = std::move(all.front());
    }
    auto keys = keys_of(options_.keys, identity);
    if (keys.empty()) return errc::unknown_identity;
    connecting_.emplace(
        std::move(identity),
        std::move(keys),
        options_.encrypts_messages,
        random<wire::authentication_nonce>()
    );
    return begin();
}

void handshake::authentication::connect(waiter<error_code> who) {
    if (error_code const ec = guarded([this] { return begin_connecting(); }))
        return owner_.end(ec, std::move(who));
    who_ = std::move(who);
    owner_.lower().async_establish(connecting_->request(), owner_.ordered([this](error_code ec) {
        if (ec) return owner_.end(ec, std::move(who_));
        on_established();
    }));
}

error_code handshake::authentication::take_acceptance() {
    error_code ec = connecting_->take_acceptance(owner_.lower().private_data(), addresses());
    if (!ec) ec = open_to_peer();
    if (!ec) send(connecting_->proof(owner_.hello({})), false, {});
    return ec;
}

error_code handshake::authentication::take_result() {
    if (error_code const ec = connecting_->take_result(*message_)) return ec;
    is_proved_.store(true, std::memory_order_release);
    auto const& hello = connecting_->peer_hello();
    switch (connecting_->verdict()) {
    case authentication_verdict::accepted: break;
    case authentication_verdict::identity_refused: finish(errc::identity_refused); return {};
    case authentication_verdict::refused: {
        error_code const why = owner_.reason(hello);
        finish(why ? why : error_code{cm_errc::rejected_by_peer});
        return {};
    }
    }
    if (owner_.seals_messages()) cipher.emplace(connecting_->keys(), true);
    finish({});
    return {};
}

// --- the accepting side --------------------------------------------------------------------------

error_code handshake::authentication::begin_accepting() {
    accepting_.emplace(options_.encrypts_messages);
    auto const refusal =
        accepting_->take_request(owner_.lower().private_data(), [this](std::string_view identity) {
            return keys_of(options_.keys, identity);
        });
    if (refusal == wire::authentication_refusal::none) return begin();
    error_code ec;
    owner_.lower().reject(wire::encode(refusal), ec);
    return ec == errc::not_connected ? ec : wire::to_error(refusal);
}

void handshake::authentication::accept(waiter<error_code> who) {
    std::vector<std::byte> acceptance;
    error_code const ec = guarded([&] {
        error_code const refused = begin_accepting();
        if (!refused)
            acceptance = accepting_->acceptance(
                addresses(),
                random<wire::authentication_nonce>(),
                random<wire::authentication_proof>()
            );
        return refused;
    });
    if (ec) return owner_.end(ec, std::move(who));
    who_ = std::move(who);
    owner_.lower().async_accept(acceptance, owner_.ordered([this](error_code failed) {
        if (failed) return owner_.end(failed, std::move(who_));
        on_established();
    }));
}

error_code handshake::authentication::take_proof() {
    if (error_code const ec = accepting_->take_proof(*message_)) return ec;
    is_proved_.store(true, std::memory_order_release);
    limit_.cancel();
    if (options_.admits && !options_.admits(accepting_->identity())) {
        send(
            accepting_->result(authentication_verdict::identity_refused, {}),
            true,
            errc::identity_refused
        );
        return {};
    }
    owner_.accepting_ = std::move(who_);
    owner_.consider();
    return {};
}

void handshake::authentication::answer(error_code refused, waiter<error_code> who) {
    who_ = std::move(who);
    error_code const failed = guarded([&]() -> error_code {
        if (!refused) {
            if (error_code const ec = open_to_peer()) return ec;
        }
        auto const verdict =
            refused ? authentication_verdict::refused : authentication_verdict::accepted;
        auto const message = accepting_->result(verdict, owner_.hello(refused));
        // The peer may send as soon as it has the message.
        if (!refused && owner_.seals_messages()) cipher.emplace(accepting_->keys(), false);
        send(message, true, refused);
        return {};
    });
    if (failed) finish(failed);
}

// --- both sides ----------------------------------------------------------------------------------

error_code handshake::authentication::open_to_peer() {
    error_code ec;
    owner_.lower().set_remote_access(all_rights, ec);
    return ec ? ec : owner_.prepare();
}

void handshake::authentication::on_established() {
    is_established_ = true;
    limit_.start(options_.timeout, [this] {
        owner_.fail(step::handshake, errc::timed_out, close_reason::timed_out);
    });
    if (connecting_) {
        if (error_code const ec = guarded([this] { return take_acceptance(); }))
            return violated(ec);
    }
    look();
}

void handshake::authentication::on_message(
    error_code ec, bool is_message, std::span<std::byte const> bytes
) {
    receive_failed_ = ec;
    if (ec) return look();
    if (is_message) message_.emplace(bytes.begin(), bytes.end());
    else message_.emplace();  // is of no message that there is
    look();
}

// The peer may be faster than the handler of the connect.
void handshake::authentication::look() {
    // On iWARP a rejection comes behind the receive that it has flushed.
    if (!is_established_ || !who_) return;
    if (receive_failed_) return finish(cause_of(receive_failed_));
    if (!message_) return;
    error_code const ec = guarded([this] { return connecting_ ? take_result() : take_proof(); });
    if (ec) violated(ec);
}

void handshake::authentication::send(
    std::vector<std::byte> const& message, bool is_last, error_code refused
) {
    is_sending_ = true;
    places_->send(message, [this, is_last, refused](error_code ec) {
        is_sending_ = false;
        if (is_last) finish(ec ? cause_of(ec) : refused);
        free_if_over();
    });
}

// The peer has not what it should have.
void handshake::authentication::violated(error_code why) {
    bool const is_of_peer = why == errc::authentication_failed || why == errc::security_mismatch;
    if (is_of_peer) owner_.fail(step::handshake, why, close_reason::protocol_error);
    finish(why);
}

// What has ended the connection is more than that a receive was flushed.
error_code handshake::authentication::cause_of(error_code ec) const {
    error_code const cause = owner_.last_failure().code;
    return cause ? cause : ec;
}

void handshake::authentication::finish(error_code ec) {
    limit_.cancel();
    if (!who_) return;
    // The peer has left, or was lost, before it was known who it is.
    if (ec && ec == owner_.lower().last_failure().code)
        owner_.fail(step::handshake, ec, close_reason::open);
    if (!ec) owner_.lower().set_keepalive_interval(keepalive_interval_);
    // Without an error both messages have come and gone.
    is_over_ = !ec;
    owner_.end(ec, std::move(who_));
    free_if_over();
}

// Behind the handlers that use it.
void handshake::authentication::free_if_over() {
    if (is_over_ && !is_sending_)
        owner_.in_order([this, self = owner_.shared_from_this()] { places_.reset(); });
}

}  // namespace rcverbs::protocol
