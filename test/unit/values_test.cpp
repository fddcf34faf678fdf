// Public values: endpoints, slices, errors and their texts, options and the specification's encodings.
#include <rcverbs/rcverbs.hpp>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <set>

#include "connection/core.hpp"
#include "error/symbols.hpp"
#include "support/catch.hpp"
#include "verbs/errno_map.hpp"

using namespace rcverbs;
using namespace std::chrono_literals;

namespace {

error_code code_of(std::function<void()> const& f) {
    try {
        f();
    } catch (boost::system::system_error const& e) {
        return e.code();
    }
    return {};
}

}  // namespace

TEST_CASE("an endpoint prints as people write it", "[values]") {
    CHECK(endpoint{"192.168.0.1", 7471}.to_string() == "192.168.0.1:7471");
    CHECK(endpoint{"fd00::1", 1}.to_string() == "[fd00::1]:1");
    CHECK(endpoint{}.to_string() == "0.0.0.0:0");
    CHECK(code_of([] { endpoint e{"no address", 1}; }) == boost::system::errc::invalid_argument);
}

TEST_CASE("a remote region is sliced inside its bounds only", "[values]") {
    remote_region const r{1000, 100, remote_key{5}, access_flags::remote_read};
    CHECK(r.slice(10, 90) == remote_region{1010, 90, remote_key{5}, access_flags::remote_read});
    CHECK(r.slice(100, 0).size_bytes() == 0);
    CHECK(code_of([&] { r.slice(101, 0); }) == errc::out_of_range);
    CHECK(code_of([&] { r.slice(1, 100); }) == errc::out_of_range);
    CHECK(code_of([&] { r.slice(2, UINT64_MAX); }) == errc::out_of_range);
    CHECK(r.word(92).address == 1092);
    CHECK(code_of([&] { r.word(93); }) == errc::out_of_range);
}

TEST_CASE("access is checked by its bits", "[values]") {
    CHECK(allows(access_flags::remote_read | access_flags::local_write, access_flags::remote_read));
    CHECK_FALSE(allows(access_flags::remote_read, access_flags::remote_read | access_flags::remote_write));
    CHECK(allows(access_flags::local_read, access_flags::local_read));
}

TEST_CASE("operations are refused before posting where sizes, rights or alignment do not fit", "[values]") {
    std::array<std::byte, 16> memory{};
    local_slice const local{memory, local_key{1}};
    CHECK(detail::check(local, {0, 16, {}, access_flags::remote_write}, access_flags::remote_write) == errc{});
    CHECK(detail::check(local, {0, 15, {}, access_flags::remote_write}, access_flags::remote_write) == errc::out_of_range);
    CHECK(detail::check(local, {0, 16, {}, access_flags::remote_read}, access_flags::remote_write) == errc::access_denied);
    CHECK(detail::check({64, {}}) == errc{});
    CHECK(detail::check({63, {}}) == errc::misaligned);
    CHECK(detail::check({64, {}, access_flags::remote_read}) == errc::access_denied);
}

TEST_CASE("every error has a text of its own", "[values]") {
    std::set<std::string> texts;
    std::size_t count = 0;
    auto const take = [&](error_code ec) {
        INFO(ec.category().name() << ' ' << ec.value());
        CHECK(ec.message().find("unknown") == std::string::npos);
        texts.insert(ec.message());
        ++count;
    };
    for (int i = 1; i <= 19; ++i) take(static_cast<errc>(i));
    for (int i = 20; i <= 32; ++i) take(static_cast<errc>(i));
    for (int i = 1; i <= 23; ++i) take(static_cast<wc_errc>(i));
    for (int i : {1, 3, 5, 6, 8, 10, 11, 14, 1008, 1010, 1028}) take(static_cast<cm_errc>(i));
    CHECK(texts.size() == count);
    CHECK(error_code{1005, connection_manager_category()}.message() == "rejected with reason 5");
}

TEST_CASE("refusals of one operation are not fatal, everything else is", "[values]") {
    CHECK_FALSE(is_fatal({}));
    CHECK_FALSE(is_fatal(errc::queue_full));
    CHECK_FALSE(is_fatal(errc::out_of_range));
    CHECK(is_fatal(errc::timed_out));
    CHECK(is_fatal(wc_errc::retry_exceeded));
    CHECK(is_fatal(cm_errc::rejected_no_listener));
    CHECK(is_fatal(boost::system::errc::make_error_code(boost::system::errc::not_enough_memory)));
}

TEST_CASE("a failure names step, address, cause, remedy and number", "[values]") {
    failure const f{step::connect, cm_errc::rejected_no_listener, {"10.0.0.1", 7471}, 8};
    CHECK(f.message() ==
          "connect 10.0.0.1:7471: rejected: nobody listens there; start the server, or check address and port "
          "[rcverbs.connection_manager 1008 RDMA_CM_EVENT_REJECTED, reason: invalid service id, status 8]");
}

TEST_CASE("every family of C calls says its errno", "[values]") {
    errno = ENOMEM;
    CHECK(verbs::from_pointer(nullptr) == boost::system::errc::not_enough_memory);
    CHECK_FALSE(verbs::from_pointer(&errno));
    CHECK(verbs::from_returned_code(EINVAL) == boost::system::errc::invalid_argument);
    CHECK(verbs::from_returned_code(-EINVAL) == boost::system::errc::invalid_argument);
    errno = EAGAIN;
    CHECK(verbs::from_returned_code(-1).value() == EAGAIN);
    CHECK(verbs::from_minus_one(-1).value() == EAGAIN);
    CHECK_FALSE(verbs::from_minus_one(3));
    errno = 0;
    CHECK(verbs::from_minus_one(-1).value() == EIO);
    CHECK(verbs::from_event_status(-ETIMEDOUT).value() == ETIMEDOUT);
    CHECK_FALSE(verbs::from_event_status(8));
}

TEST_CASE("the receiver-not-ready delay is encoded as the specification says", "[values]") {
    CHECK(verbs::encode_rnr_timer(10us) == 1);
    CHECK(verbs::encode_rnr_timer(640us) == 12);
    CHECK(verbs::encode_rnr_timer(641us) == 13);
    CHECK(verbs::encode_rnr_timer(491520us) == 31);
    CHECK(verbs::encode_rnr_timer(491521us) == 0);
    CHECK(verbs::encode_rnr_timer(655360us) == 0);
}

TEST_CASE("the acknowledge timeout is encoded as the specification says", "[values]") {
    CHECK(verbs::encode_ack_timeout(4096ns) == 1);
    CHECK(verbs::encode_ack_timeout(8193ns) == 2);
    CHECK(verbs::encode_ack_timeout(67ms) == 14);
    CHECK(verbs::encode_ack_timeout(134ms) == 15);
    CHECK(verbs::encode_ack_timeout(100h) == 31);
}

TEST_CASE("options out of range are refused", "[values]") {
    auto const refused = [](auto change) {
        connection_options o;
        change(o);
        return detail::validate(o) == errc::invalid_option;
    };
    CHECK_FALSE(refused([](connection_options&) {}));
    CHECK(refused([](connection_options& o) { o.retry_count = 7; }));
    CHECK(refused([](connection_options& o) { o.rnr_retry_count = 8; }));
    CHECK(refused([](connection_options& o) { o.send_queue_depth = 0; }));
    CHECK(refused([](connection_options& o) { o.receive_queue_depth = 0; }));
    CHECK(refused([](connection_options& o) { o.connect_deadline = 0ms; }));
    CHECK(refused([](connection_options& o) { o.drain_deadline = -1ms; }));
    CHECK(refused([](connection_options& o) { o.min_rnr_timer = 1us; }));
    CHECK(refused([](connection_options& o) { o.ack_timeout = 1ns; }));
    boost::asio::io_context io;
    CHECK(refused([&](connection_options& o) {
        o.progress = progress_on::context;
        o.shared_poller = poller{io};
    }));
}

TEST_CASE("the table of errors has every error, with its number, and says of each whether it is fatal", "[values]") {
    std::ifstream in{RCVERBS_DOCS "/reference/errors.md"};
    REQUIRE(in);
    std::string const table{std::istreambuf_iterator<char>{in}, {}};
    int found = 0;
    auto const check = [&](error_code const& ec, std::string const& name) {
        std::string const row = "\n| `" + name + "` | " + std::to_string(ec.value()) + " | ";
        INFO(row);
        std::size_t const at = table.find(row);
        REQUIRE(at != std::string::npos);
        std::string const line = table.substr(at + 1, table.find('\n', at + 1) - at - 1);
        CHECK((line.find("| yes |") != std::string::npos) == is_fatal(ec));
        CHECK((line.find("| no |") != std::string::npos) == !is_fatal(ec));
        ++found;
    };
    for (int value = 1; value < 100; ++value) {
        error_code const ours{value, rcverbs_category()};
        if (ours.message() != "unknown error") {
            std::string const symbol = rcverbs::detail::symbol_of(ours);
            REQUIRE(symbol.starts_with("errc::"));
            check(ours, symbol.substr(6));
        }
        error_code const status{value, work_completion_category()};
        if (status.message() != "unknown completion status") {
            CHECK(rcverbs::detail::symbol_of(status).starts_with("IBV_WC_"));
            // By its number: the names are ours.
            std::string const number = "` | " + std::to_string(value) + " | " + rcverbs::detail::symbol_of(status).substr(7) + " | ";
            INFO(number);
            CHECK(table.find(number) != std::string::npos);
            ++found;
        }
    }
    CHECK(found == 38 + 23);
    for (auto const& [code, name] : {std::pair{cm_errc::address_error, "address_error"}, {cm_errc::route_error, "route_error"},
                                    {cm_errc::connect_error, "connect_error"}, {cm_errc::unreachable, "unreachable"},
                                    {cm_errc::rejected, "rejected"}, {cm_errc::disconnected, "disconnected"},
                                    {cm_errc::device_removal, "device_removal"}, {cm_errc::address_change, "address_change"},
                                    {cm_errc::rejected_no_listener, "rejected_no_listener"},
                                    {cm_errc::rejected_stale, "rejected_stale"}, {cm_errc::rejected_by_peer, "rejected_by_peer"}}) {
        check(code, name);
    }
}

TEST_CASE("a failure names events, statuses and errno values", "[values]") {
    endpoint const there{"10.0.0.1", 7471};
    auto const ends_with = [](failure const& f, std::string const& tail) {
        INFO(f.message());
        return f.message().ends_with(tail);
    };
    CHECK(ends_with({step::resolve_address, cm_errc::address_error, there, -110}, "[rcverbs.connection_manager 1 RDMA_CM_EVENT_ADDR_ERROR, status -110 ETIMEDOUT]"));
    CHECK(ends_with({step::transfer, errc::port_down, there, 10}, "[rcverbs 36 errc::port_down, IBV_EVENT_PORT_ERR (10)]"));
    CHECK(ends_with({step::transfer, wc_errc::retry_exceeded, there, 129}, "[rcverbs.work_completion 12 IBV_WC_RETRY_EXC_ERR, vendor error 129]"));
    error_code const unknown{1099, connection_manager_category()};
    CHECK(ends_with({step::connect, unknown, there, 99}, "[rcverbs.connection_manager 1099 RDMA_CM_EVENT_REJECTED, reason: 99, status 99]"));
    error_code const no_memory{ENOMEM, boost::system::system_category()};
    std::string const text = failure{step::create_queue_pair, no_memory, there, 0}.message();
    INFO(text);
    CHECK(text.find("RLIMIT_MEMLOCK") != std::string::npos);
    CHECK(text.find("has locked 0 KiB") != std::string::npos);
    CHECK(text.ends_with("[system 12 ENOMEM]"));
}

TEST_CASE("what may help is tried again, and what cannot is not", "[values]") {
    for (error_code const ec : {error_code{errc::timed_out}, error_code{errc::peer_busy}, error_code{errc::port_down},
                                error_code{cm_errc::rejected_no_listener}, error_code{wc_errc::retry_exceeded},
                                error_code{ENETUNREACH, boost::system::system_category()}}) {
        INFO(ec.message());
        CHECK(is_transient(ec));
    }
    for (error_code const ec : {error_code{}, error_code{errc::mode_mismatch}, error_code{errc::foreign_peer}, error_code{errc::version_mismatch},
                                error_code{errc::invalid_option}, error_code{errc::foreign_domain}, error_code{wc_errc::remote_access}, error_code{EACCES, boost::system::system_category()}}) {
        INFO(ec.message());
        CHECK_FALSE(is_transient(ec));
    }
}
