// Public values: endpoints, slices, errors and their texts, options, and the encodings of the
// specification.
#include <rcverbs/experimental/window.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/rcverbs.hpp>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <list>
#include <numeric>
#include <set>
#include <sstream>
#include <unordered_set>

#include "connection/core.hpp"
#include "error/symbols.hpp"
#include "support/catch.hpp"
#include "verbs/errno_map.hpp"

using namespace rcverbs;
namespace asio = boost::asio;
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

TEST_CASE("an endpoint prints in the usual notation", "[values]") {
    CHECK(endpoint{"192.168.0.1", 7471}.to_string() == "192.168.0.1:7471");
    CHECK(endpoint{"fd00::1", 1}.to_string() == "[fd00::1]:1");
    CHECK(endpoint{}.to_string() == "0.0.0.0:0");
    CHECK(code_of([] { endpoint e{"no address", 1}; }) == boost::system::errc::invalid_argument);
}

TEST_CASE("endpoints are Asio's, and back, and can be printed and hashed", "[values]") {
    namespace ip = boost::asio::ip;
    ip::tcp::endpoint const theirs{ip::make_address("192.168.0.1"), 7471};
    endpoint const ours = theirs;
    CHECK(ours == endpoint{"192.168.0.1", 7471});
    CHECK(ip::tcp::endpoint{ours} == theirs);
    CHECK(static_cast<ip::udp::endpoint>(ours).port() == 7471);
    endpoint const by_gid = endpoint::infiniband({0xfe, 0x80}, 1);
    CHECK(code_of([&] {
              static_cast<void>(ip::tcp::endpoint{by_gid});
          }) == errc::address_family_unsupported);
    std::ostringstream text;
    text << ours << ' ' << by_gid;
    CHECK(text.str() == ours.to_string() + ' ' + by_gid.to_string());
    std::unordered_set<endpoint> const known{
        ours, theirs, endpoint{"192.168.0.1", 7472}, by_gid, endpoint{by_gid.address(), 1}};
    CHECK(known.size() == 4);
    CHECK(known.contains(endpoint{"192.168.0.1", 7472}));
}

TEST_CASE("slices are Asio's buffers, and are sliced inside their bounds only", "[values]") {
    namespace asio = boost::asio;
    static_assert(asio::is_mutable_buffer_sequence<mutable_slice>::value);
    static_assert(asio::is_const_buffer_sequence<mutable_slice>::value);
    static_assert(asio::is_mutable_buffer_sequence<std::vector<mutable_slice>>::value);
    static_assert(asio::is_const_buffer_sequence<std::array<mutable_slice, 2>>::value);
    static_assert(std::is_trivially_copyable_v<mutable_slice>);
    std::array<std::byte, 100> memory{};
    mutable_slice const all{memory, local_key{7}};
    mutable_slice const part = all.slice(10, 90);
    CHECK(part.data() == memory.data() + 10);
    CHECK(part.size() == 90);
    CHECK(part.key() == local_key{7});
    CHECK(part.slice(90, 0).size() == 0);
    CHECK(code_of([&] { static_cast<void>(part.slice(1, 90)); }) == errc::out_of_range);
    CHECK(code_of([&] { static_cast<void>(part.slice(91, 0)); }) == errc::out_of_range);
    CHECK(code_of([&] { static_cast<void>(part.slice(2, SIZE_MAX)); }) == errc::out_of_range);

    std::array const two{all.slice(0, 3), all.slice(50, 4)};
    CHECK(asio::buffer_size(two) == 7);
    std::string_view const text = "Asio's";
    CHECK(asio::buffer_copy(two, asio::buffer(text)) == 6);
    CHECK(memory[2] == std::byte{'i'});
    CHECK(memory[50] == std::byte{'o'});
    asio::const_buffer const to_read = part;
    CHECK(to_read.data() == part.data());
}

// What a function that takes `Slices` accepts.
template <class From, class Slices>
constexpr bool is_taken = std::is_convertible_v<From, Slices>;

TEST_CASE("operations take a slice, or any range of slices", "[values]") {
    static_assert(sizeof(const_slice) == 32 && sizeof(mutable_slice) == 32);
    static_assert(is_taken<mutable_slice, const_slice>);
    static_assert(!is_taken<const_slice, mutable_slice>);
    static_assert(is_taken<const_slice, asio::const_buffer>);
    static_assert(is_taken<mutable_slice, asio::mutable_buffer>);
    static_assert(asio::is_const_buffer_sequence<std::vector<const_slice>>::value);
    static_assert(!asio::is_mutable_buffer_sequence<std::vector<const_slice>>::value);
    static_assert(asio::is_mutable_buffer_sequence<std::array<mutable_slice, 2>>::value);

    static_assert(is_taken<const_slice, const_slices> && is_taken<mutable_slice, const_slices>);
    static_assert(is_taken<registered_buffer const&, const_slices> && is_taken<registered_buffer&, mutable_slices>);
    static_assert(is_taken<memory_region const&, mutable_slices>);
    static_assert(is_taken<const_memory_region const&, const_slices>);
    static_assert(is_taken<std::vector<const_slice>, const_slices>);
    static_assert(is_taken<std::array<mutable_slice, 2> const&, const_slices>);
    static_assert(is_taken<std::span<mutable_slice const>, mutable_slices>);
    static_assert(is_taken<std::list<mutable_slice>&, mutable_slices>);
    // What is read only cannot be written to.
    static_assert(!is_taken<const_slice, mutable_slices>);
    static_assert(!is_taken<const_memory_region const&, mutable_slices>);
    static_assert(!is_taken<std::vector<const_slice>, mutable_slices>);
    // Memory that is not registered.
    static_assert(!is_taken<asio::mutable_buffer, const_slices>);
    static_assert(!is_taken<std::span<std::byte>, const_slices>);

    std::array<std::byte, 64> memory{};
    auto const piece = [&](std::size_t at, std::size_t size) {
        return mutable_slice{std::span{memory}.subspan(at, size), local_key{7}};
    };
    auto const sizes = [](auto const& slices) {
        std::vector<std::size_t> all;
        for (detail::plain_slice const& each : rcverbs::detail::access::list_of(slices).all())
            all.push_back(each.size);
        return all;
    };
    using list = std::vector<std::size_t>;
    CHECK(sizes(const_slices{}).empty());
    CHECK(sizes(const_slices{piece(0, 3)}) == list{3});
    CHECK(sizes(const_slices{piece(0, 3), piece(3, 4)}) == list{3, 4});
    CHECK(sizes(mutable_slices{piece(0, 3), piece(3, 4)}) == list{3, 4});
    // Up to four are in place.
    for (std::size_t const count : {0U, 1U, 4U, 5U, 6U}) {
        std::list<mutable_slice> some;
        list expected;
        for (std::size_t size = 1; size <= count; ++size) {
            some.push_back(piece(0, size));
            expected.push_back(size);
        }
        const_slices const made{some};
        const_slices copied = made;
        CHECK(sizes(made) == expected);
        CHECK(sizes(copied) == expected);
        CHECK(made.count() == count);
        CHECK(made.size() == std::accumulate(expected.begin(), expected.end(), std::size_t{0}));
        const_slices const moved = std::move(copied);
        CHECK(sizes(moved) == expected);
        // NOLINTNEXTLINE(bugprone-use-after-move)
        CHECK(copied.count() == 0);
        copied = moved;
        CHECK(sizes(copied) == expected);
        copied = const_slices{};
        CHECK(copied.size() == 0);
        CHECK(sizes(moved) == expected);
    }
}

TEST_CASE("a remote region travels as the bytes that are documented", "[values]") {
    remote_region const r{
        0x0102030405060708,
        0x10,
        remote_key{0xA0B0C0D0},
        access_flags::remote_read | access_flags::remote_write};
    auto bytes = r.encode();
    std::array<unsigned char, 24> const documented{
        1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0x10, 0xA0, 0xB0, 0xC0, 0xD0, 0, 0, 0, 6};
    CHECK(std::ranges::equal(bytes, std::as_bytes(std::span{documented})));
    CHECK(remote_region::decode(bytes) == r);
    error_code ec;
    CHECK(remote_region::decode(std::span{bytes}.first(23), ec) == remote_region{});
    CHECK(ec == errc::malformed_message);
    bytes[20] = std::byte{1};  // undefined access rights
    CHECK(code_of([&] {
              static_cast<void>(remote_region::decode(bytes));
          }) == errc::malformed_message);
    bytes[20] = std::byte{0};
    std::ranges::fill(std::span{bytes}.subspan(8, 8), std::byte{0xFF});  // beyond the address space
    static_cast<void>(remote_region::decode(bytes, ec));
    CHECK(ec == errc::malformed_message);
}

TEST_CASE("codes equal the conditions of boost::system::errc", "[values]") {
    namespace means = boost::system::errc;
    CHECK(error_code{errc::timed_out} == means::timed_out);
    CHECK(error_code{errc::stalled} == means::timed_out);
    CHECK(error_code{errc::access_denied} == means::permission_denied);
    CHECK(error_code{errc::peer_disconnected} == means::connection_reset);
    CHECK(error_code{errc::no_rdma_device} == means::no_such_device);
    CHECK(error_code{wc_errc::retry_exceeded} == means::timed_out);
    CHECK(error_code{wc_errc::remote_access} == means::permission_denied);
    CHECK(error_code{cm_errc::rejected_no_listener} == means::connection_refused);
    CHECK(error_code{cm_errc::unreachable} == means::host_unreachable);
    CHECK(error_code{errc::not_connected} == std::errc::not_connected);
    CHECK(error_code{errc::not_connected}.category() == rcverbs_category());
    CHECK(error_code{errc::not_connected}.value() == 1);
    CHECK(error_code{errc::not_connected} == means::not_connected);
    CHECK_FALSE(error_code{errc::timed_out} == means::connection_reset);
    // No error code may be equivalent to success.
    for (int value = 1; value < 50; ++value) {
        CHECK(error_code{value, rcverbs_category()}.default_error_condition().value() != 0);
        CHECK(error_code{value, work_completion_category()}.default_error_condition().value() != 0);
        CHECK(
            error_code{value, connection_manager_category()}.default_error_condition().value() != 0
        );
    }
}

// Compiled with the warning that users enable, as an error.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wmissing-field-initializers"
TEST_CASE("options are named where they are given, without a warning", "[values]") {
    connection_options const c{
        .queue_pair = {.send_queue_depth = 3}, .placement = {.domain = domain_sharing::shared}};
    acceptor_options const a{.connection = c, .backlog = 5};
    connector_options<> const again{.backoff = {.factor = 3.0}};
    shared_receive_options const shared{.depth = 7};
    session_options const s{.mode = 2};
    polling_options const p{.mode = poll_mode::busy};
    poller_options const where{.polling = p};
    CHECK(a.connection.queue_pair.send_queue_depth == 3);
    CHECK(again.backoff.factor == 3.0);
    CHECK(shared.depth + s.mode == 9);
    CHECK(where.polling.mode == poll_mode::busy);
}
#pragma GCC diagnostic pop

TEST_CASE("a remote region is sliced inside its bounds only", "[values]") {
    remote_region const r{1000, 100, remote_key{5}, access_flags::remote_read};
    CHECK(r.slice(10, 90) == remote_region{1010, 90, remote_key{5}, access_flags::remote_read});
    CHECK(r.slice(100, 0).size() == 0);
    CHECK(code_of([&] { r.slice(101, 0); }) == errc::out_of_range);
    CHECK(code_of([&] { r.slice(1, 100); }) == errc::out_of_range);
    CHECK(code_of([&] { r.slice(2, UINT64_MAX); }) == errc::out_of_range);
    CHECK(r.word(92).address == 1092);
    CHECK(code_of([&] { r.word(93); }) == errc::out_of_range);
}

TEST_CASE("access is checked by its bits", "[values]") {
    CHECK(allows(access_flags::remote_read | access_flags::local_write, access_flags::remote_read));
    CHECK_FALSE(
        allows(access_flags::remote_read, access_flags::remote_read | access_flags::remote_write)
    );
    CHECK(allows(access_flags::local_read, access_flags::local_read));
}

TEST_CASE(
    "operations are refused before posting where sizes, rights or alignment do not fit", "[values]"
) {
    std::array<std::byte, 16> memory{};
    detail::slice_list const local{
        rcverbs::detail::access::plain_of(mutable_slice{memory, local_key{1}})};
    CHECK(
        detail::check(local, {0, 16, {}, access_flags::remote_write}, access_flags::remote_write) ==
        errc{}
    );
    CHECK(
        detail::check(local, {0, 15, {}, access_flags::remote_write}, access_flags::remote_write) ==
        errc::out_of_range
    );
    CHECK(
        detail::check(local, {0, 16, {}, access_flags::remote_read}, access_flags::remote_write) ==
        errc::access_denied
    );
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
    for (int i = 1; i <= static_cast<int>(errc::immediate_unsupported); ++i)
        take(static_cast<errc>(i));
    for (int i = 1; i <= 7; ++i) take(static_cast<session_errc>(i));
    for (int i = 1; i <= 13; ++i) take(static_cast<channel_errc>(i));
    for (int i = 1; i <= 23; ++i) take(static_cast<wc_errc>(i));
    for (int i : {1, 3, 5, 6, 8, 10, 11, 14, 1008, 1010, 1028}) take(static_cast<cm_errc>(i));
    constexpr std::size_t shared_texts = 9;  // sessions and channels have some in common
    CHECK(texts.size() == count - shared_texts);
    CHECK(error_code{1005, connection_manager_category()}.message() == "rejected with reason 5");
}

TEST_CASE("codes of all categories equal the conditions that programs branch on", "[values]") {
    auto const held_by = [](error_code ec) {
        std::string all;
        for (auto const& [c, name] :
             {std::pair{condition::timed_out, "timed_out "},
              std::pair{condition::protocol_violation, "protocol_violation "},
              std::pair{condition::ended_by_peer, "ended_by_peer "},
              std::pair{condition::refused, "refused "},
              std::pair{condition::transient, "transient "},
              std::pair{condition::operation_only, "operation_only "}}) {
            if (ec == c) all += name;
        }
        return all;
    };
    auto const of_system = [](int number) {
        return error_code{number, boost::system::system_category()};
    };
    CHECK(held_by({}).empty());
    CHECK(held_by(errc::stalled) == "timed_out transient ");
    CHECK(held_by(wc_errc::retry_exceeded) == "timed_out transient ");
    CHECK(held_by(of_system(ETIMEDOUT)) == "timed_out transient ");
    CHECK(held_by(channel_errc::request_timed_out) == "timed_out operation_only ");
    CHECK(held_by(errc::peer_violation) == "protocol_violation ");
    CHECK(held_by(session_errc::malformed_message) == "protocol_violation ");
    CHECK(held_by(channel_errc::credit_exceeded) == "protocol_violation ");
    CHECK(held_by(errc::peer_disconnected) == "ended_by_peer transient ");
    CHECK(held_by(session_errc::peer_closed_early) == "ended_by_peer transient ");
    CHECK(held_by(channel_errc::peer_closed_early) == "ended_by_peer transient ");
    CHECK(held_by(cm_errc::rejected_by_peer) == "refused transient ");
    CHECK(held_by(error_code{1005, connection_manager_category()}) == "refused transient ");
    CHECK(held_by(session_errc::peer_busy) == "refused transient ");
    CHECK(held_by(channel_errc::mode_mismatch) == "refused ");
    CHECK(held_by(channel_errc::request_dropped) == "operation_only ");
    CHECK(held_by(errc::would_block) == "operation_only ");
    CHECK(held_by(errc::not_connected).empty());
    CHECK(held_by(of_system(EINVAL)).empty());
    CHECK(held_by(boost::asio::error::eof).empty());
    CHECK(error_code{channel_errc::request_timed_out} == boost::system::errc::timed_out);
    CHECK_FALSE(error_code{session_errc::foreign_peer} == channel_errc::foreign_peer);
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
    CHECK(
        f.message() ==
        "connect 10.0.0.1:7471: rejected: no program listens there. Start the server, or check "
        "address and port; it may listen at another address of that machine. "
        "[rcverbs.connection_manager 1008 RDMA_CM_EVENT_REJECTED, reason: invalid service id, "
        "status 8]"
    );
}

TEST_CASE("every family of C calls reports its errno", "[values]") {
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
    CHECK(refused([](connection_options& o) { o.queue_pair.retry_count = 7; }));
    CHECK(refused([](connection_options& o) { o.queue_pair.rnr_retry_count = 8; }));
    CHECK(refused([](connection_options& o) { o.queue_pair.send_queue_depth = 0; }));
    CHECK(refused([](connection_options& o) { o.queue_pair.receive_queue_depth = 0; }));
    CHECK(refused([](connection_options& o) { o.timeouts.connect = 0ms; }));
    CHECK(refused([](connection_options& o) { o.timeouts.drain = -1ms; }));
    CHECK(refused([](connection_options& o) { o.queue_pair.min_rnr_timer = 1us; }));
    // Empty is no limit; 0 is a mistake.
    CHECK(refused([](connection_options& o) { o.liveness.stall_timeout = 0ms; }));
    CHECK(refused([](connection_options& o) { o.liveness.keepalive_interval = 0ms; }));
    CHECK(refused([](connection_options& o) { o.liveness.idle_timeout = -1ms; }));
    CHECK_FALSE(refused([](connection_options& o) {
        o.liveness = {
            .stall_timeout = std::nullopt, .keepalive_interval = 1ms, .idle_timeout = 1ms};
    }));
    CHECK(refused([](connection_options& o) { o.queue_pair.ack_timeout = 1ns; }));
}

TEST_CASE("a refused option is named, with its value and its range", "[values]") {
    auto const text_of = [](auto make) -> std::string {
        try {
            make();
        } catch (boost::system::system_error const& e) {
            CHECK(e.code() == errc::invalid_option);
            return e.what();
        }
        return "";
    };
    using test::ContainsSubstring;
    boost::asio::io_context io;
    connection_options o;
    o.queue_pair.retry_count = 7;
    CHECK_THAT(
        text_of([&] { connection c(io, o); }),
        ContainsSubstring("connection_options::queue_pair.retry_count is 7, not 0 to 6")
    );
    acceptor_options listening{.connection = o};
    CHECK_THAT(
        text_of([&] {
            acceptor a(io, {"10.0.0.1", 0}, listening);
        }),
        ContainsSubstring("retry_count is 7")
    );
    listening = {.backlog = 5000};
    CHECK_THAT(
        text_of([&] {
            acceptor a(io, {"10.0.0.1", 0}, listening);
        }),
        ContainsSubstring("acceptor_options::backlog is 5000, not 1 to 4096")
    );
    acceptor_options const mistakes[] = {
        {.connections_max = 0}, {.connections_per_address_max = 0}, {.violation_delay = 0ms}};
    char const* const texts[] = {
        "acceptor_options::connections_max is 0, not 1 or more",
        "acceptor_options::connections_per_address_max is 0, not 1 or more",
        "acceptor_options::violation_delay is 0 ms, not 1 ms or more"};
    for (std::size_t i = 0; i < std::size(mistakes); ++i) {
        CHECK_THAT(
            text_of([&] {
                acceptor a(io, {"10.0.0.1", 0}, mistakes[i]);
            }),
            ContainsSubstring(texts[i])
        );
    }
    CHECK_THAT(
        text_of([&] {
            connector c(io, {"10.0.0.1", 1}, {.backoff = {.attempts_max = 0}});
        }),
        ContainsSubstring("backoff_options::attempts_max is 0, not 1 or more")
    );
    o = {.timeouts = {.drain = -1ms}};
    CHECK_THAT(
        text_of([&] { connection c(io, o); }),
        ContainsSubstring("timeouts.drain is -1 ms, not 1 ms or more")
    );
    o = {.queue_pair = {.ack_timeout = 1us}};
    CHECK_THAT(
        text_of([&] { connection c(io, o); }),
        ContainsSubstring("ack_timeout is 1000 ns, not 4096 ns to 8800000000000 ns")
    );
    o.placement = {.domain = domain_sharing::isolated, .shared_receives = shared_receive_queue{io}};
    o.queue_pair = {};
    CHECK_THAT(
        text_of([&] { connection c(io, o); }), ContainsSubstring("does not go with shared_receives")
    );
    o.placement = {.domain = protection_domain{}};
    CHECK_THAT(
        text_of([&] { connection c(io, o); }), ContainsSubstring("placement.domain is not open")
    );
    CHECK_THAT(
        text_of([&] { session s(connection(io), {.finish_timeout = 0ms}); }),
        ContainsSubstring("session_options::finish_timeout is 0 ms")
    );
    connector_options<> again{.backoff = {.jitter = 1.5}};
    CHECK_THAT(
        text_of([&] {
            connector c(io, {"10.0.0.1", 1}, again);
        }),
        ContainsSubstring("backoff_options::jitter is 1.50, not 0.00 to 1.00")
    );
    connector_options<> none{.backoff = {.factor = std::numeric_limits<double>::quiet_NaN()}};
    CHECK_THAT(
        text_of([&] {
            connector c(io, {"10.0.0.1", 1}, none);
        }),
        ContainsSubstring("backoff_options::factor is nan, not 1.00 to 100.00")
    );
    CHECK_THAT(
        text_of([&] { shared_receive_queue q(io, {.depth = 0}); }),
        ContainsSubstring("shared_receive_options::depth is 0, not 1 or more")
    );
}

TEST_CASE("every error has a description and a remedy", "[values]") {
    int found = 0;
    for (int value = 1; value < 2000; ++value) {
        for (auto const& ec :
             {error_code{value, rcverbs_category()},
              error_code{value, work_completion_category()},
              error_code{value, connection_manager_category()},
              error_code{value, session_category()},
              error_code{value, channel_category()}}) {
            std::string const text = ec.message();
            if (text.starts_with("unknown ") || text.starts_with("connection manager event ") ||
                text.starts_with("rejected with reason "))
                continue;
            INFO(text);
            CHECK(text.ends_with('.'));
            CHECK(text.find(". ") != std::string::npos);
            ++found;
        }
    }
    CHECK(found == 50 + 23 + 11 + 5 + 7 + 26);
}

TEST_CASE("a failure names events, statuses and errno values", "[values]") {
    endpoint const there{"10.0.0.1", 7471};
    auto const ends_with = [](failure const& f, std::string const& tail) {
        INFO(f.message());
        return f.message().ends_with(tail);
    };
    CHECK(ends_with(
        {step::resolve_address, cm_errc::address_error, there, -110},
        "[rcverbs.connection_manager 1 RDMA_CM_EVENT_ADDR_ERROR, status -110 ETIMEDOUT]"
    ));
    CHECK(ends_with(
        {step::transfer, errc::port_down, there, 10},
        "[rcverbs " + std::to_string(static_cast<int>(errc::port_down)) +
            " errc::port_down, IBV_EVENT_PORT_ERR (10)]"
    ));
    CHECK(ends_with(
        {step::transfer, wc_errc::retry_exceeded, there, 129},
        "[rcverbs.work_completion 12 IBV_WC_RETRY_EXC_ERR, vendor error 129]"
    ));
    error_code const unknown{1099, connection_manager_category()};
    CHECK(ends_with(
        {step::connect, unknown, there, 99},
        "[rcverbs.connection_manager 1099 RDMA_CM_EVENT_REJECTED, reason: 99, status 99]"
    ));
    // The values of rdma_cma.h: 6 and 7 are easily confused.
    CHECK(ends_with(
        {step::connect, cm_errc::connect_error, there, -110},
        "[rcverbs.connection_manager 6 RDMA_CM_EVENT_CONNECT_ERROR, status -110 ETIMEDOUT]"
    ));
    CHECK(ends_with(
        {step::connect, cm_errc::unreachable, there, -110},
        "[rcverbs.connection_manager 7 RDMA_CM_EVENT_UNREACHABLE, status -110 ETIMEDOUT]"
    ));
    CHECK(failure{}.message() == "no failure");
    error_code const no_memory{ENOMEM, boost::system::system_category()};
    std::string const text = failure{step::create_queue_pair, no_memory, there, 0}.message();
    INFO(text);
    CHECK(text.find("RLIMIT_MEMLOCK") != std::string::npos);
    CHECK(text.find("has locked 0 KiB") != std::string::npos);
    CHECK(text.ends_with("[system 12 ENOMEM]"));
}

TEST_CASE("errors of a peer or path that may recover are transient, others are not", "[values]") {
    for (error_code const ec :
         {error_code{errc::timed_out},
          error_code{session_errc::peer_busy},
          error_code{errc::port_down},
          error_code{cm_errc::rejected_no_listener},
          error_code{wc_errc::retry_exceeded},
          // What a peer that ends or restarts leaves, as it destroys its memory before its connection.
          error_code{wc_errc::remote_access},
          error_code{wc_errc::remote_operation},
          error_code{wc_errc::remote_invalid_request},
          error_code{ENETUNREACH, boost::system::system_category()}}) {
        INFO(ec.message());
        CHECK(is_transient(ec));
    }
    for (error_code const ec :
         {error_code{},
          error_code{session_errc::mode_mismatch},
          error_code{channel_errc::foreign_peer},
          error_code{errc::version_mismatch},
          error_code{errc::invalid_option},
          error_code{errc::foreign_domain},
          error_code{errc::not_connected},
          error_code{wc_errc::local_protection},
          error_code{EACCES, boost::system::system_category()}}) {
        INFO(ec.message());
        CHECK_FALSE(is_transient(ec));
    }
}

namespace {

// The members that handles have in common: docs/decisions/0014-handles.md.
template <class T>
concept with_is_open = requires(T const& t) {
    t.is_open();
};
template <class T>
concept with_cancel = requires(T& t) {
    t.cancel();
};
template <class T>
concept with_close = requires(T& t) {
    t.close();
};
template <class T>
concept with_statistics = requires(T const& t) {
    t.statistics();
};
template <class T>
concept with_executor = requires(T const& t) {
    { t.get_executor() } -> std::same_as<typename T::executor_type>;
    typename T::template rebind_executor<boost::asio::any_io_executor>::other;
};

template <class T>
constexpr unsigned members_of() {
    unsigned const is_open = with_is_open<T>;
    unsigned const cancel = with_cancel<T>;
    unsigned const close = with_close<T>;
    unsigned const statistics = with_statistics<T>;
    unsigned const is_empty = std::default_initializable<T>;
    return is_open | cancel << 1U | close << 2U | statistics << 3U | is_empty << 4U;
}
constexpr unsigned has_all = 31;
constexpr unsigned has_no_cancel = has_all & ~2U;

static_assert(members_of<connection>() == has_all);
static_assert(members_of<acceptor>() == has_all);
static_assert(members_of<message_channel>() == has_all);
static_assert(members_of<request_channel>() == has_all);
static_assert(members_of<request_client>() == has_no_cancel);
static_assert(members_of<session>() == (has_no_cancel & ~8U));
static_assert(members_of<basic_connector<session>>() == (2U | 16U));
static_assert(members_of<slot_pool>() == (2U | 4U));

template <class... Handles>
constexpr bool are_alike =
    ((with_executor<Handles> && std::is_nothrow_move_constructible_v<Handles> &&
      std::is_move_assignable_v<Handles> && !std::is_copy_constructible_v<Handles>)&&...);
static_assert(are_alike<
              connection,
              acceptor,
              session,
              message_channel,
              request_channel,
              request_client,
              basic_connector<session>,
              slot_pool>);

}  // namespace
