#include <rcverbs/experimental/protocol/handshake.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include <algorithm>
#include <utility>

#include "connection/authenticated_handshake.hpp"
#include "wire/authentication_message.hpp"

namespace rcverbs::protocol {

static_assert(handshake::seal_bytes == detail::message_cipher::tag_bytes);

std::string problem_of(authentication_options const& options) {
    option_check check{"authentication_options"};
    check.from("timeout", options.timeout, std::chrono::milliseconds{1})
        .that(
            !options.encrypts_messages || !options.keys.is_empty(),
            "encrypts_messages",
            "needs keys"
        );
    return check.problem();
}

void handshake::authenticate(authentication_options const& how) {
    if (how.keys.is_empty()) return;
    authentication_ = std::make_shared<authentication>(*this, how);
    seals_messages_ = how.encrypts_messages;
}

std::string handshake::peer_identity() const {
    bool const is_known =
        authentication_ != nullptr && authentication_->has_peer_hello() && !is_active();
    return is_known ? authentication_->side().identity() : std::string{};
}

std::vector<std::byte> handshake::peer_hello() const {
    if (authentication_ == nullptr) return lower().private_data();
    if (!authentication_->has_peer_hello()) return {};
    auto const hello = authentication_->side().peer_hello();
    return {hello.begin(), hello.end()};
}

std::size_t handshake::seal(std::span<std::byte> place, std::size_t size) {
    if (!seals_messages_) return size;
    auto const sealed = place.first(size + seal_bytes);
    if (authentication_->cipher->seal(sealed)) return sealed.size();
    // Nothing of the message leaves in clear.
    std::ranges::fill(sealed, std::byte{0});
    fail(step::transfer, errc::authentication_failed, close_reason::closed_locally);
    return sealed.size();
}

error_code handshake::unseal(std::span<std::byte>& message) {
    if (!seals_messages_) return {};
    if (!authentication_->cipher->open(message)) return errc::authentication_failed;
    message = message.first(message.size() - seal_bytes);
    return {};
}

void handshake::connect(endpoint const& peer, waiter<error_code> who) {
    if (std::exchange(has_begun_, true)) return deliver(std::move(who), errc::already_connected);
    is_active_ = true;
    detail::close_when_cancelled(who, std::static_pointer_cast<driver>(shared_from_this()));
    lower().async_resolve(peer, ordered([this, w = std::move(who)](error_code ec) mutable {
                              if (!ec && authentication_ != nullptr)
                                  return authentication_->connect(std::move(w));
                              if (!ec) ec = prepare();
                              if (ec) return end(ec, std::move(w));
                              lower().async_establish(
                                  hello({}),
                                  ordered([this, v = std::move(w)](error_code failed) mutable {
                                      end(failed, std::move(v));
                                  })
                              );
                          }));
}

void handshake::accept(waiter<error_code> who) {
    if (std::exchange(has_begun_, true)) return deliver(std::move(who), errc::already_connected);
    detail::close_when_cancelled(who, std::static_pointer_cast<driver>(shared_from_this()));
    if (authentication_ != nullptr) return authentication_->accept(std::move(who));
    if (wire::is_authentication(lower().private_data())) {
        error_code ignored;
        lower().reject(wire::encode(wire::authentication_refusal::mismatch), ignored);
        return end(errc::security_mismatch, std::move(who));
    }
    accepting_ = std::move(who);
    consider();
}

void handshake::consider() {
    error_code const why = judge(peer_hello());
    if (why || !holds_back()) go_on(why);
}

void handshake::go_on(error_code refused) {
    if (!accepting_) return;
    waiter<error_code> who = std::move(*accepting_);
    accepting_.reset();
    if (authentication_ != nullptr) return authentication_->answer(refused, std::move(who));
    if (refused) reject(refused);
    else refused = prepare();
    if (refused) return end(refused, std::move(who));
    lower().async_accept(hello({}), ordered([this, w = std::move(who)](error_code ec) mutable {
                             end(ec, std::move(w));
                         }));
}

void handshake::end_accept(error_code why) {
    if (accepting_) deliver(std::move(*accepting_), why);
    accepting_.reset();
}

void handshake::on_abandoned() noexcept {
    accepting_.reset();
    if (authentication_ != nullptr) authentication_->abandon();
}

void handshake::reject(error_code& why) {
    error_code ec;
    lower().reject(hello(why), ec);
    if (ec == errc::not_connected) why = ec;  // there is no request
}

void handshake::end(error_code ec, waiter<error_code> who) {
    bool is_of_connection = ec && ec == lower().last_failure().code;
    // After authentication it is the end of the connection, whose private data was another's.
    if (ec == cm_errc::rejected_by_peer && is_of_connection) {
        auto const theirs = lower().private_data();
        error_code const said = wire::is_authentication(theirs)
                                    ? wire::to_error(wire::decode_authentication_refusal(theirs))
                                    : reason(theirs);
        if (said) ec = said;
        is_of_connection = !said;
    }
    if (!ec && is_active_) ec = judge(peer_hello());
    if (!ec) ec = on_established();
    on_result(ec, is_of_connection);
    deliver(std::move(who), ec);
}

void handshake::on_result(error_code ec, bool is_of_connection) {
    if (is_of_connection) close();
    else if (ec) fail(step::handshake, ec, close_reason::refused);
}

}  // namespace rcverbs::protocol
