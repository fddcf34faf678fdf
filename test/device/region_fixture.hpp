// region_fixture.hpp — two region channels that meet. No receiver may ever be not ready:
// rnr_retry_count is 0.
#pragma once

#include <rcverbs/experimental/region_channel.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/channel_fixture.hpp"

namespace test {

using namespace rcverbs;

inline constexpr access_flags all_rights =
    access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;

inline request_channel_options requests_of_regions(std::uint16_t requests = 16) {
    request_channel_options o;
    o.messages.mode = 3;
    o.messages.receives = 8;
    o.messages.sends = 8;
    o.messages.slot_bytes = 512;
    o.messages.withdraw_timeout = 60s;
    o.requests = requests;
    o.answer_timeout = 60s;
    return o;
}

inline request_channel without_retries(
    asio::any_io_executor const& on,
    std::optional<connection_request> asked = {},
    protection_domain const& domain = {},
    std::optional<std::chrono::milliseconds> answer_timeout = {}
) {
    auto options = requests_of_regions();
    options.answer_timeout = answer_timeout.value_or(options.answer_timeout);
    connection_options all = request_channel::needed(options);
    all.queue_pair.rnr_retry_count = 0;
    all.queue_pair.initiator_depth = all.queue_pair.responder_resources = 4;
    if (domain.is_open()) all.placement.domain = domain;
    if (!asked) return request_channel{connection{on, all}, options};
    return request_channel{connection{on, std::move(*asked), all}, options};
}

struct region_ends {
    explicit region_ends(asio::io_context& io, region_offers_options options = {})
        : door{io, {device_address(), 0}},
          offers{io, patient(options)} {}

    // No test fails on a machine that is slow.
    static region_offers_options patient(region_offers_options options) {
        options.withdraw_timeout = 60s;
        return options;
    }

    acceptor door;
    region_offers offers;  // of the server's
    protection_domain domain;  // of the server's connections, if it is open
    region_channel client;
    region_channel server;

    registered_buffer local(std::size_t bytes) const {
        return {client.next_layer().next_layer().domain(), bytes, access_flags::local_write};
    }
};

inline asio::awaitable<void> meet_regions(
    asio::io_context& io, region_ends& e, region_channel_options const& of_client = {}
) {
    e.client = region_channel{without_retries(io.get_executor()), of_client};
    auto const answer = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
        e.server = region_channel{
            without_retries(io.get_executor(), std::move(asked), e.domain), {.offers = e.offers}};
        co_await e.server.async_accept(asio::use_awaitable);
    };
    co_await (answer() && e.client.async_connect(e.door.local_endpoint(), asio::use_awaitable));
}

inline asio::awaitable<void> part_regions(region_ends& e) {
    co_await (
        e.client.async_finish(asio::use_awaitable) && e.server.async_finish(asio::use_awaitable)
    );
    CHECK(e.client.last_failure().reason == close_reason::completed);
    CHECK(e.server.last_failure().reason == close_reason::completed);
    // The memory is its owner's alone now.
    CHECK(e.server.statistics().granted == 0);
    CHECK(e.server.statistics().registrations == 0);
    CHECK(e.client.statistics().held == 0);
}

/// Another client of the server's door.
inline asio::awaitable<void> join_regions(
    asio::io_context& io, region_ends& e, region_channel& client, region_channel& server
) {
    client = region_channel{without_retries(io.get_executor())};
    auto const answer = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
        server = region_channel{
            without_retries(io.get_executor(), std::move(asked), e.domain), {.offers = e.offers}};
        co_await server.async_accept(asio::use_awaitable);
    };
    co_await (answer() && client.async_connect(e.door.local_endpoint(), asio::use_awaitable));
}

/// Starts an operation, and blocks until its handler has run.
template <class Result, class Start>
std::pair<error_code, Result> blocked(Start start) {
    auto const done = std::make_shared<std::promise<std::pair<error_code, Result>>>();
    start([done](error_code ec, Result result) { done->set_value({ec, std::move(result)}); });
    return done->get_future().get();
}

/// A server of regions, and a peer that sends requests of its own.
struct hostile_region_ends {
    explicit hostile_region_ends(asio::io_context& io, region_offers_options const& options = {})
        : door{io, {device_address(), 0}},
          offers{io, options} {}

    acceptor door;
    region_offers offers;
    region_channel server;
    request_channel peer;
};

inline asio::awaitable<void> meet_forger(
    asio::io_context& io,
    hostile_region_ends& e,
    std::optional<std::chrono::milliseconds> answer_timeout = {}
) {
    e.peer = without_retries(io.get_executor());
    auto const answer = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
        e.server = region_channel{
            without_retries(io.get_executor(), std::move(asked), {}, answer_timeout),
            {.offers = e.offers}};
        co_await e.server.async_accept(asio::use_awaitable);
    };
    co_await (answer() && e.peer.async_connect(e.door.local_endpoint(), asio::use_awaitable));
}

inline std::vector<std::byte> find_message(std::string const& name, std::uint16_t version = 1) {
    std::vector<std::byte> b;
    put(b, version, 2);
    put(b, 0, 2);
    std::ranges::copy(bytes_of(name), std::back_inserter(b));
    return b;
}

inline std::uint64_t number_in(reply const& r, std::size_t offset, std::size_t bytes) {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < bytes; ++i)
        n = n << 8 | std::to_integer<std::uint64_t>(r.bytes()[offset + i]);
    return n;
}

inline constexpr std::uint32_t op_find = 0xffffff00;
inline constexpr std::uint32_t op_keys = 0xffffff01;
inline constexpr std::uint32_t op_withdraw = 0xffffff02;
inline constexpr std::uint32_t op_offered = 0xffffff03;
inline constexpr std::uint32_t op_dropped = 0xffffff05;
inline constexpr std::uint32_t op_allocate = 0xffffff06;
inline constexpr std::uint32_t op_free = 0xffffff07;
inline constexpr std::uint32_t op_share = 0xffffff08;
inline constexpr std::uint32_t op_resume = 0xffffff09;

}  // namespace test
