#include <rcverbs/experimental/protocol/handshake.hpp>

#include <utility>

namespace rcverbs::protocol {

void handshake::connect(endpoint const& peer, waiter<error_code> who) {
    if (std::exchange(has_begun_, true)) return deliver(std::move(who), errc::already_connected);
    is_active_ = true;
    detail::close_when_cancelled(who, std::static_pointer_cast<driver>(shared_from_this()));
    lower().async_resolve(peer, ordered([this, w = std::move(who)](error_code ec) mutable {
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
    if (error_code why = judge(lower().private_data())) {
        reject(why);
        return end(why, std::move(who));
    }
    accepting_ = std::move(who);
    if (!holds_back()) go_on({});
}

void handshake::go_on(error_code refused) {
    if (!accepting_) return;
    waiter<error_code> who = std::move(*accepting_);
    accepting_.reset();
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

void handshake::reject(error_code& why) {
    error_code ec;
    lower().reject(hello(why), ec);
    if (ec == errc::not_connected) why = ec;  // there is no request
}

void handshake::end(error_code ec, waiter<error_code> who) {
    bool is_of_connection = ec && ec == lower().last_failure().code;
    if (ec == cm_errc::rejected_by_peer) {
        error_code const said = reason(lower().private_data());
        if (said) ec = said;
        is_of_connection = is_of_connection && !said;
    }
    if (!ec && is_active_) ec = judge(lower().private_data());
    if (!ec) ec = on_established();
    on_result(ec, is_of_connection);
    deliver(std::move(who), ec);
}

void handshake::on_result(error_code ec, bool is_of_connection) {
    if (is_of_connection) close();
    else if (ec) fail(step::handshake, ec, close_reason::refused);
}

}  // namespace rcverbs::protocol
