// The parts of rdma-bench: histogram, plan, sizes, contents, report.
#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>

#include <algorithm>
#include <random>
#include <sstream>

#include <nlohmann/json.hpp>

#include "rdma-bench/arguments.hpp"
#include "rdma-bench/compare.hpp"
#include "rdma-bench/histogram.hpp"
#include "rdma-bench/bench_connection.hpp"
#include "rdma-bench/memory.hpp"
#include "rdma-bench/output.hpp"
#include "rdma-bench/protocol.hpp"
#include "rdma-bench/report.hpp"
#include "rdma-bench/timeline.hpp"
#include "support/catch.hpp"

using namespace rdma_bench;
using namespace std::chrono_literals;
using std::chrono::nanoseconds;

TEST_CASE(
    "a histogram's quantiles are the recorded values, at most its stated error above", "[bench]"
) {
    std::mt19937_64 random{7};
    std::vector<std::int64_t> values;
    histogram h;
    for (int i = 0; i < 20'000; ++i) {
        // Log-uniform, so that errors outside of the microsecond range show, too.
        auto const value = static_cast<std::int64_t>(
            std::pow(2.0, std::uniform_real_distribution{0.0, 38.0}(random))
        );
        values.push_back(value);
        h.record(nanoseconds{value});
    }
    std::sort(values.begin(), values.end());
    CHECK(h.total() == values.size());
    CHECK(h.min().count() == values.front());
    CHECK(h.max().count() == values.back());
    for (double const share : {0.0001, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
        auto const rank =
            static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1;
        auto const exact = static_cast<double>(values[rank]);
        auto const told = static_cast<double>(h.quantile(share).count());
        INFO(share << ": " << exact << " and " << told);
        CHECK(told >= exact);
        CHECK(told <= exact * (1 + histogram::relative_error));
    }
    double sum = 0;
    for (std::int64_t const v : values) sum += static_cast<double>(v);
    CHECK(h.mean_ns() == Approx(sum / static_cast<double>(values.size())));
}

TEST_CASE("a histogram counts what is out of its range at its ends", "[bench]") {
    histogram h;
    CHECK(h.quantile(0.5) == nanoseconds{0});
    CHECK(h.min() == nanoseconds{0});
    h.record(nanoseconds{-5});
    h.record(nanoseconds{0});
    h.record(std::chrono::hours{10});
    CHECK(h.total() == 3);
    CHECK(h.quantile(0.5) == nanoseconds{0});
    CHECK(h.quantile(1) == h.max());
    std::uint64_t counted = 0;
    std::uint64_t last = 0;
    for (histogram::bin const& b : h.bins()) {
        CHECK(b.low_ns <= b.high_ns);
        CHECK(b.low_ns >= last);
        last = b.high_ns;
        counted += b.count;
    }
    CHECK(counted == 3);
}

TEST_CASE("histograms that are added up tell the same as one that recorded all", "[bench]") {
    histogram a;
    histogram b;
    histogram all;
    for (int i = 1; i < 5000; ++i) {
        (i % 3 == 0 ? a : b).record(nanoseconds{i * i});
        all.record(nanoseconds{i * i});
    }
    a.add(b);
    CHECK(a.total() == all.total());
    for (double const share : {0.1, 0.5, 0.99}) CHECK(a.quantile(share) == all.quantile(share));
    CHECK(a.min() == all.min());
    CHECK(a.max() == all.max());
    a.clear();
    CHECK(a.total() == 0);
}

TEST_CASE("a percentile distribution ends with all values", "[bench]") {
    histogram h;
    for (int i = 1; i <= 100; ++i) h.record(std::chrono::microseconds{i});
    std::ostringstream out;
    h.write_percentiles(out);
    std::istringstream in{out.str()};
    std::string line;
    std::getline(in, line);
    CHECK(line.find("Percentile") != std::string::npos);
    std::getline(in, line);
    std::string last;
    while (std::getline(in, line) && line.front() != '#') {
        CHECK(std::stod(line.substr(13)) > (last.empty() ? 0 : std::stod(last.substr(13))));
        last = line;
    }
    double value = 0;
    double share = 0;
    std::uint64_t count = 0;
    std::istringstream{last} >> value >> share >> count;
    CHECK(share == 1.0);
    CHECK(count == 100);
    CHECK(value == Approx(100).epsilon(0.01));
}

TEST_CASE(
    "durations over time keep their number, sum and maximum however long it takes", "[bench]"
) {
    timeline all;
    timeline early;
    timeline late;
    std::uint64_t sum = 0;
    for (int i = 0; i < 5000; ++i) {
        std::chrono::milliseconds const at{i * i / 500};
        std::chrono::microseconds const took{1 + i % 7};
        all.record(at, took);
        (i < 100 ? early : late).record(at, took);
        sum += static_cast<std::uint64_t>(took.count()) * 1000;
    }
    early.add(late);
    // 50 s in at most 64 intervals of 1.05 ms x 2^n.
    CHECK(all.width() == std::chrono::nanoseconds{1 << 30});
    for (timeline const* const t : {&all, &early}) {
        std::uint64_t count = 0;
        std::uint64_t sum_ns = 0;
        std::uint64_t max_ns = 0;
        for (timeline::interval const& i : t->intervals()) {
            count += i.count;
            sum_ns += i.sum_ns;
            max_ns = std::max(max_ns, i.max_ns);
        }
        CHECK(count == 5000);
        CHECK(sum_ns == sum);
        CHECK(max_ns == 7000);
    }
    CHECK(all.intervals().size() == early.intervals().size());
    CHECK(all.intervals().back().count == early.intervals().back().count);
}

TEST_CASE("sizes are one, a list, or powers of two", "[bench]") {
    using sizes = std::vector<std::uint64_t>;
    CHECK(parse_sizes("8") == sizes{8});
    CHECK(parse_sizes("8,4K,1M") == sizes{8, 4096, 1 << 20});
    CHECK(parse_sizes("2..16") == sizes{2, 4, 8, 16});
    CHECK(parse_sizes("2..8M").size() == 23);
    for (char const* const wrong :
         {"", "x", "0", "8,", "16..2", "2G", "-1", "8K8", "99999999999"}) {
        INFO(wrong);
        CHECK_THROWS_AS(parse_sizes(wrong), std::runtime_error);
    }
}

TEST_CASE("a plan is sent as JSON, and one that cannot be executed has the reason", "[bench]") {
    plan p;
    p.what = operation::compare_swap;
    p.sizes_bytes = {8};
    p.depth = 7;
    p.batch = 3;
    p.polling = {rcverbs::poll_mode::event, std::chrono::microseconds{3}};
    p.connections = 9;
    p.threads = 2;
    p.own_threads = false;
    p.iterations = 11;
    p.is_bidirectional = true;
    p.verifies = true;
    p.pages = page_kind::huge;
    p.alignment_bytes = 64;
    nlohmann::json const travelled = nlohmann::json::parse(nlohmann::json(p).dump());
    nlohmann::json const again = travelled.get<plan>();
    CHECK(again == travelled);
    CHECK(p.problem().empty());

    auto const refused = [](auto change) {
        plan q;
        change(q);
        return !q.problem().empty();
    };
    CHECK_FALSE(refused([](plan&) {}));
    CHECK(refused([](plan& q) { q.sizes_bytes.clear(); }));
    CHECK(refused([](plan& q) { q.sizes_bytes = {0}; }));
    CHECK(refused([](plan& q) { q.sizes_bytes = {std::uint64_t{1} << 31}; }));
    CHECK(refused([](plan& q) { q.depth = 0; }));
    CHECK(refused([](plan& q) { q.depth = depth_max + 1; }));
    CHECK(refused([](plan& q) { q.batch = q.depth + 1; }));
    CHECK(refused([](plan& q) { q.connections = connections_max + 1; }));
    CHECK(refused([](plan& q) { q.alignment_bytes = 3; }));
    CHECK(refused([](plan& q) { q.what = operation::fetch_add; }));
    CHECK(refused([](plan& q) { q.how = measure::latency; }));
    CHECK(refused([](plan& q) { q.how = measure::paced; }));
    CHECK(refused([](plan& q) {
        q.how = measure::paced;
        q.rate = rate_max + 1;
    }));
    CHECK(refused([](plan& q) {
        q.how = measure::paced;
        q.rate = 1;
        q.batch = 2;
    }));
    CHECK(refused([](plan& q) { q.duration = std::chrono::milliseconds{-1}; }));
    CHECK(refused([](plan& q) { q.corrupts = true; }));
    CHECK(refused([](plan& q) {
        q.registers = registration::per_operation;
        q.what = operation::send;
    }));

    nlohmann::json damaged = travelled;
    damaged["test"] = "erase";
    CHECK_THROWS(damaged.get<plan>());
    damaged = travelled;
    damaged.erase("depth");
    CHECK_THROWS(damaged.get<plan>());
    damaged = travelled;
    damaged["sizes_bytes"] = "many";
    CHECK_THROWS(damaged.get<plan>());
}

TEST_CASE("contents follow from the seed and the slot, and a changed bit shows", "[bench]") {
    for (std::size_t const size : {1U, 7U, 8U, 9U, 4096U}) {
        std::vector<std::byte> slot(size);
        fill(slot, 5, 3);
        CHECK(holds(slot, 5, 3));
        CHECK_FALSE(holds(slot, 6, 3));
        CHECK_FALSE(holds(slot, 5, 4));
        for (std::size_t const at : {std::size_t{0}, size / 2, size - 1}) {
            slot[at] ^= std::byte{0x10};
            CHECK_FALSE(holds(slot, 5, 3));
            slot[at] ^= std::byte{0x10};
        }
    }
}

TEST_CASE("pages are aligned as requested, and no better", "[bench]") {
    for (std::uint64_t alignment = 1; alignment <= (1 << 22); alignment *= 2) {
        pages const p{100'000, page_kind::small, alignment};
        auto const address = reinterpret_cast<std::uintptr_t>(p.bytes().data());
        CHECK(address % alignment == 0);
        CHECK(address % (2 * alignment) != 0);
        CHECK(p.bytes().size() == 100'000);
        p.bytes().front() = p.bytes().back() = std::byte{1};
    }
}

TEST_CASE("a greeting survives its way, and what is none is refused", "[bench]") {
    using rcverbs::access_flags;
    plan p;
    p.sizes_bytes = {4096};
    p.depth = 1;
    rcverbs::remote_region const region{
        0x123456789abcdef0,
        4096,
        rcverbs::remote_key{0xfedcba98},
        access_flags::remote_write | access_flags::remote_read};
    constexpr std::uint64_t token = 0xfedcba9876543210;
    auto greeting = encode_greeting(region, token);
    CHECK(decode_greeting(greeting, p, token) == region);
    CHECK_THROWS_AS(decode_greeting(greeting, p, token + 1), protocol_error);
    CHECK_THROWS_AS(
        decode_greeting(std::span{greeting}.first(greeting_bytes - 1), p, token), protocol_error
    );
    greeting[0] ^= std::byte{1};
    CHECK_THROWS_AS(decode_greeting(greeting, p, token), protocol_error);
}

TEST_CASE("a greeting must expose what the plan needs", "[bench]") {
    using rcverbs::access_flags;
    plan p;
    p.sizes_bytes = {4096};
    p.depth = 1;
    auto const greets = [&](std::uint64_t address, std::uint64_t size, access_flags rights) {
        decode_greeting(encode_greeting({address, size, rcverbs::remote_key{1}, rights}, 7), p, 7);
    };
    CHECK_NOTHROW(greets(4096, 4096, access_flags::remote_write));
    CHECK_THROWS_AS(greets(4096, 0, access_flags::remote_write), protocol_error);
    CHECK_THROWS_AS(greets(4096, 4095, access_flags::remote_write), protocol_error);
    CHECK_THROWS_AS(greets(4096, 4096, access_flags::remote_read), protocol_error);
    CHECK_THROWS_AS(greets(UINT64_MAX - 4094, 4096, access_flags::remote_write), protocol_error);
    p.what = operation::read;
    CHECK_THROWS_AS(greets(4096, 4096, access_flags::remote_write), protocol_error);
    p.what = operation::fetch_add;
    p.sizes_bytes = {8};
    CHECK_NOTHROW(greets(64, 64, access_flags::remote_atomic));
    CHECK_THROWS_AS(greets(60, 64, access_flags::remote_atomic), protocol_error);
    // Sends do not use the peer's memory.
    p.what = operation::send;
    CHECK_NOTHROW(greets(0, 0, access_flags::local_read));
    p.what = operation::connect;
    CHECK_NOTHROW(greets(0, 0, access_flags::local_read));
}

TEST_CASE("messages of the other side of rdma-bench are validated before use", "[bench]") {
    plan p;
    p.sizes_bytes = {8, 4096};
    p.connections = 3;
    p.threads = 2;
    p.own_threads = false;

    CHECK(parse_hello(make_hello(p)).sizes_bytes == p.sizes_bytes);
    for (char const* const hello :
         {"{}",
          R"({"version":3})",
          R"({"version":3,"plan":[]})",
          R"({"version":1,"plan":{}})",
          R"({"version":[],"plan":7})"}) {
        CHECK_THROWS_AS(parse_hello(parse_text(hello)), protocol_error);
    }
    for (char const* const text : {"", "[]", "7", "null", "{", "\xff\xfe", "[[[[", R"("order")"}) {
        CHECK_THROWS_AS(parse_text(text), protocol_error);
    }
    for (auto const& [field, value] :
         {std::pair{"spin_us", "-1"},
          {"spin_us", "9223372036854775807"},
          {"duration_ms", "-5"},
          {"depth", "-1"},
          {"depth", "0"},
          {"connections", "16385"},
          {"connections", "4294967297"},
          {"depth", "4294967297"},
          {"receives", "1.5"},
          {"threads", "1025"},
          {"threads", "4294967296"},
          {"warm_up", "1e300"},
          {"iterations", "-1"},
          {"duration_ms", "9223372036854775807"},
          {"duration_ms", "9223372036854775808"},
          {"duration_ms", "1e300"},
          {"sizes_bytes", "[4096.7]"},
          {"sizes_bytes", "[1e300]"},
          {"sizes_bytes", R"({"a":8})"},
          {"sizes_bytes", "[[8]]"},
          {"own_threads", "1"},
          {"inline_bytes", "4294967295"},
          {"sizes_bytes", "[]"},
          {"sizes_bytes", "[0]"},
          {"sizes_bytes", "{}"},
          {"test", "7"},
          {"alignment_bytes", "3"},
          {"batch", "null"}}) {
        nlohmann::json hello = make_hello(p);
        hello["plan"][field] = nlohmann::json::parse(value);
        INFO(field << " " << value);
        CHECK_THROWS_AS(parse_hello(hello), protocol_error);
    }

    readiness const ready{65535, 10s};
    CHECK(parse_ready(make_ready(ready)).port == ready.port);
    readiness named = ready;
    named.token = UINT64_MAX;
    CHECK(parse_ready(make_ready(named)).token == named.token);
    for (char const* const answer :
         {R"({"port":[],"patience_ms":1})",
          R"({"patience_ms":1})",
          R"({"port":0,"patience_ms":1})",
          R"({"port":65536,"patience_ms":1})",
          R"({"port":1.5,"patience_ms":1})",
          R"({"port":1,"patience_ms":1e300})",
          R"({"port":1,"patience_ms":86400001})",
          R"({"port":-1,"patience_ms":1})",
          R"({"port":{},"patience_ms":1})",
          R"({"port":1})",
          R"({"port":1,"patience_ms":0})",
          R"({"port":"2","patience_ms":1})"}) {
        INFO(answer);
        CHECK_THROWS_AS(parse_ready(parse_text(answer)), protocol_error);
    }

    CHECK(parse_order(make_order({order_kind::begin, {4096, 9}, {}}), p).next.seed == 9);
    CHECK(parse_order(make_order({order_kind::end, {}, {1, 2, 3}}), p).operations.size() == 3);
    for (char const* const order :
         {"{}",
          R"({"order":7})",
          R"({"order":"stop"})",
          R"({"order":"begin"})",
          R"({"order":"begin","size_bytes":0,"seed":1})",
          R"({"order":"begin","size_bytes":4097,"seed":1})",
          R"({"order":"begin","size_bytes":"8","seed":1})",
          R"({"order":"begin","size_bytes":8.0,"seed":1})",
          R"({"order":"begin","size_bytes":8,"seed":-1})",
          R"({"order":"begin","size_bytes":8,"seed":1e300})",
          R"({"order":"end","operations":[1e300]})",
          R"({"order":"end","operations":{"a":1}})",
          R"({"order":"end"})",
          R"({"order":"end","operations":7})",
          R"({"order":"end","operations":[1,2,3,4]})"}) {
        INFO(order);
        CHECK_THROWS_AS(parse_order(parse_text(order), p), protocol_error);
    }
    for (char const* const answer :
         {"{}", R"({"result":[]})", R"({"result":{}})", R"({"operations":[[]]})"}) {
        CHECK_THROWS_AS(parse_result(parse_text(answer)), protocol_error);
        CHECK_THROWS_AS(parse_operations(parse_text(answer), p), protocol_error);
    }
}

TEST_CASE("memory is divided within its bounds", "[bench]") {
    plan p;
    p.sizes_bytes = {8, 100'000};
    p.depth = 128;
    CHECK(layout{p}.stride_bytes >= 100'000);
    CHECK(layout{p}.slots >= 1);
    CHECK(layout{p}.slots * layout{p}.stride_bytes <= (1 << 20));
    p.connections = 1000;
    CHECK(layout{p}.slots * layout{p}.stride_bytes * 1000 <= (std::size_t{256} << 20));
    p.sizes_bytes = {size_bytes_max};
    CHECK(layout{p}.slots == 1);
    p.sizes_bytes = {8};
    p.what = operation::fetch_add;
    p.depth = 1000;
    CHECK(layout{p}.slots == 1000);
}

TEST_CASE("the memory of a plan counts every connection, slot and queue", "[bench]") {
    constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
    plan p;
    p.sizes_bytes = {mebibyte};
    p.depth = 1;
    std::uint64_t const one = memory_bytes(p);
    CHECK(one > 2 * mebibyte);
    CHECK(one < 3 * mebibyte);
    p.connections = 100;
    CHECK(memory_bytes(p) == 100 * one);

    // The sizes of a slot and of an atomic's results are not bounded by the share of a connection.
    p = {};
    p.sizes_bytes = {size_bytes_max};
    CHECK(memory_bytes(p) >= 2 * size_bytes_max);
    p = {};
    p.what = operation::fetch_add;
    p.sizes_bytes = {8};
    p.depth = depth_max;
    CHECK(memory_bytes(p) >= depth_max * (2 * 64 + 928));  // see method.md: 464 bytes, twice

    // The largest plan does not overflow.
    p.what = operation::send;
    p.verifies = true;
    p.sizes_bytes = {size_bytes_max};
    p.receives = depth_max;
    p.batch = depth_max;
    p.connections = connections_max;
    p.own_threads = false;
    p.alignment_bytes = size_bytes_max;
    p.pages = page_kind::huge;
    REQUIRE(p.problem().empty());
    CHECK(memory_bytes(p) > std::uint64_t{connections_max} * 2 * size_bytes_max);
    CHECK(memory_bytes(p) < std::uint64_t{1} << 60);
}

namespace {

record sample(measure how) {
    record r;
    r.wanted.how = how;
    r.server = "a <server> & more";
    for (std::uint64_t size = 2; size <= (8U << 20); size *= 2) {
        result one;
        one.size_bytes = size;
        one.client.operations = 1000;
        one.client.seconds = 1e-6 * static_cast<double>(size + 100);
        for (int i = 0; i < 1000; ++i)
            one.latencies.record(nanoseconds{1000 + i * static_cast<int>(size % 999)});
        r.rounds.push_back(one);
    }
    return r;
}

std::size_t count_of(boost::property_tree::ptree const& tree, std::string const& name) {
    std::size_t count = 0;
    for (auto const& [key, child] : tree) count += (key == name ? 1 : 0) + count_of(child, name);
    return count;
}

}  // namespace

TEST_CASE("a report is one well-formed page that asks the network for nothing", "[bench]") {
    for (measure const how : {measure::bandwidth, measure::latency, measure::paced}) {
        record r = sample(how);
        bool const has_times = how == measure::paced;
        if (has_times) {
            for (int i = 0; i < 100; ++i)
                r.rounds[0].over_time.record(
                    std::chrono::milliseconds{i}, std::chrono::microseconds{i}
                );
        }
        std::string const page = report_html(r);
        std::istringstream in{page};
        boost::property_tree::ptree tree;
        REQUIRE_NOTHROW(read_xml(in, tree));
        CHECK(count_of(tree, "svg") == (has_times ? 3U : 2U));
        CHECK(count_of(tree, "circle") >= r.rounds.size());
        CHECK(page.find("<script") == std::string::npos);
        CHECK(page.find("src=") == std::string::npos);
        CHECK(page.find("href=") == std::string::npos);
        CHECK(page.find("nan") == std::string::npos);
        CHECK(page.find("inf") == std::string::npos);
        CHECK(page.find("&lt;server&gt; &amp; more") != std::string::npos);
    }
    record nothing;
    nothing.wanted.what = operation::connect;
    CHECK(
        count_of(
            [&] {
                std::istringstream in{report_html(nothing)};
                boost::property_tree::ptree tree;
                read_xml(in, tree);
                return tree;
            }(),
            "svg"
        ) == 0
    );
}

TEST_CASE("figures follow from operations, bytes and seconds in perftest's units", "[bench]") {
    result r;
    r.size_bytes = 1 << 20;
    r.client.operations = 200;
    r.client.seconds = 2;
    r.client.cpu_seconds = 0.001;
    CHECK(r.operations_per_second() == Approx(100));
    CHECK(r.megabytes_per_second() == Approx(100));
    CHECK(r.gigabits_per_second() == Approx(0.8388608));
    CHECK(r.cpu_us() == Approx(5));
    r.is_bidirectional = true;
    r.server.operations = 100;
    r.server.seconds = 1;
    // The figures of both directions agree with each other: 300 operations in 2 s.
    CHECK(r.operations() == 300);
    CHECK(r.seconds() == Approx(2));
    CHECK(r.operations_per_second() == Approx(150));
    CHECK(r.cpu_us() == Approx(1e3 / 300));
    record both;
    both.rounds.push_back(r);
    auto const row = to_json_record(both)["rounds"][0];
    CHECK(
        row["operations"].get<double>() / row["seconds"].get<double>() / 1e6 ==
        Approx(row["Mops_per_s"].get<double>())
    );
    CHECK(table_row(plan{}, r).size() == table_head(plan{}).size());
    plan latency;
    latency.how = measure::latency;
    CHECK(table_row(latency, r).size() == table_head(latency).size());
    // A row says if operations were started later than they were due.
    r.is_bidirectional = false;
    plan paced;
    paced.how = measure::paced;
    paced.rate = 100;
    CHECK(table_row(paced, r).size() == table_head(paced).size());
    paced.rate = 110;
    CHECK(table_row(paced, r).ends_with("  LATE: 110 ops/s were due"));
}

TEST_CASE("the processor time of a process that is both sides is counted once", "[bench]") {
    record r;
    r.is_one_process = true;
    result one;
    one.client.operations = 1000;
    one.client.seconds = 1;
    one.client.cpu_seconds = one.server.cpu_seconds = 0.002;
    one.is_one_process = true;
    r.rounds.push_back(one);
    CHECK(one.cpu_us() == Approx(2));
    CHECK_FALSE(one.server_cpu_us());
    CHECK(table_row(plan{}, one).size() == table_head(plan{}).size());
    nlohmann::json const written = to_json_record(r);
    nlohmann::json const& row = written["rounds"][0];
    CHECK(row["cpu_us_per_operation"] == Approx(2));
    CHECK(row["server_cpu_us_per_operation"].is_null());
    CHECK(row["server"]["cpu_seconds"].is_null());
    CHECK(written["is_one_process"] == true);
    r.opened.idle_seconds = 1;
    CHECK_FALSE(to_json_record(r)["opening"].contains("server_idle_cpu_seconds"));
}

TEST_CASE("more threads that poll than processors are remarked", "[bench]") {
    plan p;
    p.connections = 2;
    p.polling.mode = rcverbs::poll_mode::busy;
    CHECK(overload_note(p, 2, false).empty());
    CHECK(
        overload_note(p, 2, true).starts_with("4 polling threads of both sides share 2 processors")
    );
    CHECK(overload_note(p, 1, false).starts_with("2 polling threads share 1 processor:"));
    p.own_threads = false;
    p.threads = 1;
    CHECK(overload_note(p, 1, false).empty());
    p.threads = 3;
    p.polling.mode = rcverbs::poll_mode::event;
    CHECK(overload_note(p, 1, true).empty());
}

TEST_CASE("results name the kernel, device, address and path MTU of both sides", "[bench]") {
    side_facts const sent{"Linux 6.1", 2, "rxe0", "10.0.0.1", 4096};
    readiness const ready = parse_ready(make_ready({7, std::chrono::milliseconds{5}, sent}));
    CHECK(describe(ready.machine) == "Linux 6.1, 2 processors, rxe0 at 10.0.0.1, path MTU 4096");
    // Another server may send anything.
    CHECK(parse_ready({{"port", 7}, {"patience_ms", 5}, {"token", 1}}).machine.kernel.empty());
    CHECK(parse_facts({{"kernel", 7}, {"device", "a\nb"}, {"path_mtu", -1}}).device == "a\\x0ab");
    record r;
    r.client_side = r.server_side = sent;
    CHECK(to_json_record(r)["machine"]["device"] == "rxe0");
    CHECK(to_json_record(r)["server_machine"]["path_mtu"] == 4096);
    CHECK(report_html(r).find("rxe0 at 10.0.0.1, path MTU 4096") != std::string::npos);
}

namespace {

nlohmann::json measured(std::vector<double> const& mops, unsigned depth = 128) {
    nlohmann::json rounds = nlohmann::json::array();
    for (double const one : mops)
        rounds.push_back({{"size_bytes", 8}, {"Mops_per_s", one}, {"cpu_us_per_operation", 1 / one}}
        );
    return {
        {"program", "rdma-bench"},
        {"format", 1},
        {"plan", {{"test", "write"}, {"depth", depth}, {"sizes_bytes", {8}}}},
        {"rounds", rounds}};
}

}  // namespace

TEST_CASE("a server refuses what its device lacks", "[bench]") {
    rcverbs::device_limits iwarp;
    iwarp.has_atomics = false;
    iwarp.has_immediate_data = false;
    rcverbs::device_limits roce;
    roce.has_atomics = true;
    auto const lacks = [](operation o, rcverbs::device_limits const& on) {
        plan p;
        p.what = o;
        return p.lacks_on(on);
    };
    CHECK(lacks(operation::write_imm, iwarp) == "immediate data");
    CHECK(lacks(operation::fetch_add, iwarp) == "atomic operations");
    CHECK(lacks(operation::compare_swap, iwarp) == "atomic operations");
    CHECK(lacks(operation::write, iwarp).empty());
    CHECK(lacks(operation::send, iwarp).empty());
    CHECK(lacks(operation::write_imm, roce).empty());
    CHECK(lacks(operation::fetch_add, roce).empty());
}

TEST_CASE("two results differ only if their ranges do not overlap", "[bench]") {
    struct row {
        std::vector<double> before;
        std::vector<double> after;
        verdict rate;
        verdict cpu;
        double ratio;
    };
    using enum verdict;
    for (row const& r : std::vector<row>{
             {{2, 2.1, 1.9, 2, 2}, {3, 3.1, 2.9, 3, 3}, better, better, 1.5},
             {{2, 2.1, 1.9, 2, 2}, {1, 1.1, 0.9, 1, 1}, worse, worse, 0.5},
             {{2, 2.1, 1.9, 2, 2}, {2.05, 2.1, 2, 2.05, 2.05}, no_difference, no_difference, 1.025},
             {{2, 4}, {3}, unknown, unknown, 1},
             {{2}, {3, 3.1}, unknown, unknown, 1.525},
         }) {
        auto const all = compare(read_figures(measured(r.before)), read_figures(measured(r.after)));
        REQUIRE(all.size() == 2);
        CHECK(all[0].before.name == "write.8.rate");
        CHECK(all[0].ratio() == Approx(r.ratio));
        CHECK(all[0].decided() == r.rate);
        CHECK(all[1].before.name == "write.8.cpu");
        CHECK(all[1].decided() == r.cpu);
        CHECK_THAT(describe(all), test::ContainsSubstring("write.8.rate"));
    }
    series other{"read.8.rate", false, {1}};
    CHECK_THROWS_WITH(
        compare(read_figures(measured({1})), {other}),
        test::ContainsSubstring("no figure in common")
    );
    CHECK(differences(measured({1}), measured({1})).empty());
    CHECK(
        differences(measured({1}, 1), measured({1}, 16)) ==
        std::vector<std::string>{"depth is 1 in A and 16 in B"}
    );
}

TEST_CASE("a condition on a ratio holds or says why it does not", "[bench]") {
    auto const all = compare(read_figures(measured({2})), read_figures(measured({1.9})));
    CHECK(problem_of(parse_condition("write.8.rate>=0.95"), all).empty());
    CHECK(problem_of(parse_condition("write.8.rate<=0.95"), all).empty());
    CHECK(
        problem_of(parse_condition("write.8.rate>=0.96"), all) ==
        "write.8.rate>=0.96: the ratio is 0.95"
    );
    CHECK_THROWS_WITH(
        problem_of(parse_condition("write.16.rate>=1"), all),
        test::ContainsSubstring("no such figure") && test::ContainsSubstring("write.8.rate")
    );
    for (char const* const wrong :
         {"",
          ">=1",
          "write.8.rate",
          "write.8.rate>1",
          "write.8.rate>=",
          "write.8.rate>=x",
          "write.8.rate>=1x",
          "write.8.rate>=-1",
          "write.8.rate>=0"})
        CHECK_THROWS_AS(parse_condition(wrong), std::runtime_error);
}

TEST_CASE("only results of rdma-bench are compared", "[bench]") {
    CHECK_NOTHROW(read_figures(measured({1})));
    for (char const* const key : {"program", "format", "plan", "rounds"}) {
        nlohmann::json damaged = measured({1});
        damaged.erase(key);
        CHECK_THROWS_AS(read_figures(damaged), std::runtime_error);
        damaged[key] = "other";
        CHECK_THROWS_AS(read_figures(damaged), std::runtime_error);
    }
    CHECK_THROWS_AS(read_figures(nlohmann::json::array()), std::runtime_error);
}

TEST_CASE("a server of rdma-bench takes orders in their order only", "[bench]") {
    using enum order_kind;
    plan p;
    p.connections = 2;
    struct row {
        std::vector<order_kind> orders;
        bool is_right;
    };
    auto const check = [&](std::vector<row> const& rows) {
        for (row const& r : rows) {
            order_of_orders due{p};
            bool is_right = true;
            try {
                for (order_kind const one : r.orders) due.check(one, 2);
            } catch (protocol_error const&) {
                is_right = false;
            }
            CHECK(is_right == r.is_right);
        }
    };
    check({
        {{pin, begin, measure, end, begin, measure, end, bye}, true},
        {{bye}, true},
        {{run}, false},
        {{end}, false},
        {{measure}, false},
        {{begin}, false},
        {{pin, pin}, false},
        {{pin, begin, begin}, false},
        {{pin, begin, run}, false},
        {{pin, begin, end, end}, false},
    });
    p.is_bidirectional = true;
    check({
        {{pin, begin, measure, run, end, begin, measure, run, end, bye}, true},
        {{pin, run}, false},
        {{pin, begin, run, run}, false},
    });
    p = {};
    p.what = operation::connect;
    p.connections = 2;
    check({{{pin, measure, end, bye}, true}, {{pin, begin}, false}, {{measure}, false}});
    order_of_orders due{p};
    CHECK_THROWS_AS(due.check(pin, 1), protocol_error);
}
