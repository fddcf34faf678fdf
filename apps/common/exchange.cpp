#include "common/exchange.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <tuple>
#include <vector>

#include "common/awaiting.hpp"
#include "common/message_frame.hpp"
#include "common/printable.hpp"

namespace demo {

namespace asio = boost::asio;
using rcverbs::access_flags;
using rcverbs::error_code;
using rcverbs::step;

namespace {

std::string own_message(exchange_options const& options) {
    return "message from " + options.side + " side with pid " + std::to_string(::getpid());
}

}  // namespace

asio::awaitable<void> hold_if(
    exchange_options const& options, std::string const& here, rcverbs::session& s
) {
    if (options.hold_at != here) co_return;
    print_error("holding at " + here + ".");
    co_await s.next_layer().async_wait_disconnected(awaiting);
}

exit_code report(rcverbs::session const& s, error_code ec, step where, bool key_has_worked) {
    rcverbs::failure f = s.last_failure();
    if (!f.code) f = {where, ec, s.next_layer().remote_endpoint(), 0};
    // The first failure is the cause; later errors (flushed operations, for example) follow from
    // it. A close by this program is no failure to report.
    if (s.last_failure().reason != rcverbs::close_reason::closed_locally) print_error(f.message());
    if (key_has_worked && f.code == rcverbs::wc_errc::remote_access) return exit_code::peer_gone;
    return exit_code_for(f.code, std::max(f.where, step::handshake));
}

exit_code report_start_failure(std::exception const& e) {
    auto const* const known = dynamic_cast<boost::system::system_error const*>(&e);
    bool const is_out_of_descriptors =
        known != nullptr && known->code() == boost::system::errc::too_many_files_open;
    std::string const text = e.what();
    bool const has_remedy = text.find("ulimit -n") != std::string::npos;
    print_error(
        is_out_of_descriptors && !has_remedy ? text + " (raise the limit with ulimit -n)" : text
    );
    return is_out_of_descriptors ? exit_code::could_not_connect : exit_code::other;
}

asio::awaitable<exit_code> exchange(rcverbs::session& s, exchange_options const& options) {
    bool const is_write = options.mode == transfer_mode::write;
    error_code ec;
    rcverbs::protection_domain const domain = s.domain();
    // Each region grants only the rights that this mode needs.
    rcverbs::registered_buffer outbox{
        domain,
        options.size_bytes,
        is_write ? access_flags::local_read : access_flags::remote_read,
        ec};
    if (ec) co_return report(s, ec, step::exchange);
    rcverbs::registered_buffer inbox{
        domain,
        options.size_bytes,
        is_write ? access_flags::remote_write : access_flags::local_write,
        ec};
    if (ec) co_return report(s, ec, step::exchange);
    rcverbs::registered_buffer const& exposed = is_write ? inbox : outbox;
    write_frame(outbox.bytes(), own_message(options));
    if (options.corrupt) outbox.bytes().back() ^= std::byte{1};

    co_await hold_if(options, "connected", s);
    std::vector<rcverbs::named_region> const regions{{"message", exposed}};
    std::tie(ec) = co_await s.async_publish(regions, awaiting);
    if (ec) co_return report(s, ec, step::exchange);
    print("send completed successfully.");
    co_await hold_if(options, "regions-sent", s);

    auto [failed, peer] = co_await s.async_wait_regions(awaiting);
    if (failed) co_return report(s, failed, step::exchange);
    rcverbs::remote_region const* const theirs = peer.find("message");
    if (theirs == nullptr || theirs->size() < frame_bytes_min) {
        print_error("the peer exposes no region for a message");
        co_return exit_code::refused;
    }
    print(
        is_write ? "received MSG_MR. writing message to remote memory..."
                 : "received MSG_MR. reading message from remote memory..."
    );
    co_await hold_if(options, "regions-received", s);

    std::size_t const size = std::min<std::size_t>(options.size_bytes, theirs->size());
    std::size_t moved = 0;
    if (is_write) {
        if (size < outbox.size()) write_frame(outbox.bytes().first(size), own_message(options));
        std::tie(ec, moved) =
            co_await s.async_write(outbox.slice(0, size), theirs->slice(0, size), awaiting);
    } else {
        std::tie(ec, moved) =
            co_await s.async_read(theirs->slice(0, size), inbox.slice(0, size), awaiting);
    }
    if (ec) co_return report(s, ec, step::transfer);
    print("send completed successfully.");
    co_await hold_if(options, "transferred", s);

    std::tie(ec) = co_await s.async_send_done(awaiting);
    if (ec) co_return report(s, ec, step::finish);
    print("send completed successfully.");
    co_await hold_if(options, "done-sent", s);
    std::tie(ec) = co_await s.async_wait_done(awaiting);
    if (ec) co_return report(s, ec, step::finish);

    frame_text const received = read_frame(inbox.bytes());
    if (received.text) {
        print("remote buffer: " + printable(*received.text));
    } else {
        print_error("the data did not verify: " + received.problem);
    }
    std::tie(ec) = co_await s.async_disconnect(awaiting);
    if (ec) co_return report(s, ec, step::disconnect);
    print(options.farewell);
    co_return received.text ? exit_code::done : exit_code::not_verified;
}

}  // namespace demo
