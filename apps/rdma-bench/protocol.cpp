#include "rdma-bench/protocol.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "common/json_number.hpp"
#include "common/printable.hpp"

namespace rdma_bench {

using demo::integer;
using demo::member;
using nlohmann::json;
using rcverbs::access_flags;

namespace {

constexpr std::array<char const*, 6> order_names{"pin", "begin", "measure", "run", "end", "bye"};
constexpr std::size_t text_max = 200;

// Calls `read`, and turns the JSON library's exceptions into protocol_error: its own texts are no
// use to a user.
template <class Read>
auto parsed(std::string const& what, Read read) {
    try {
        return read();
    } catch (json::exception const&) {
        throw protocol_error{"the peer sent a malformed " + what};
    } catch (std::invalid_argument const& e) {
        throw protocol_error{
            "the peer sent a malformed " + what + ": " + demo::printable(e.what(), text_max)};
    }
}

std::vector<std::uint64_t> counts(json const& text, plan const& p) {
    json const& listed = text.at("operations");
    if (!listed.is_array() || listed.size() > p.connections)
        throw std::invalid_argument{"not one count for each connection"};
    std::vector<std::uint64_t> all;
    for (json const& count : listed) all.push_back(integer<std::uint64_t>(count, "operations"));
    return all;
}

}  // namespace

json parse_text(std::string_view text) {
    json read = json::parse(text, nullptr, false);
    if (!read.is_object()) throw protocol_error{"the peer sent a text that is not a JSON object"};
    return read;
}

// --- hello and answer ----------------------------------------------------------------------------

json make_hello(plan const& p) { return {{"version", protocol_version}, {"plan", p}}; }

plan parse_hello(json const& hello) {
    return parsed("plan", [&] {
        if (hello.at("version") != protocol_version)
            throw protocol_error{"this server speaks another version of the protocol"};
        plan wanted = hello.at("plan").get<plan>();
        if (std::string const problem = wanted.problem(); !problem.empty())
            throw protocol_error{problem};
        return wanted;
    });
}

json make_ready(readiness const& r) {
    return {
        {"port", r.port},
        {"patience_ms", r.patience.count()},
        {"machine", r.machine},
        {"token", r.token}};
}

readiness parse_ready(json const& answer) {
    return parsed("answer", [&] {
        readiness r;
        r.port = member<std::uint16_t>(answer, "port", 1);
        constexpr std::chrono::milliseconds day = std::chrono::hours{24};
        r.patience =
            std::chrono::milliseconds{member<std::int64_t>(answer, "patience_ms", 1, day.count())};
        r.machine = parse_facts(answer.value("machine", json{}));
        r.token = answer.at("token").get<std::uint64_t>();
        return r;
    });
}

std::vector<std::byte> busy_mark() {
    constexpr std::string_view text = "rvb busy";
    auto const* const first = reinterpret_cast<std::byte const*>(text.data());  // chars are bytes
    return {first, first + text.size()};
}

bool is_busy_mark(std::span<std::byte const> private_data) noexcept {
    auto const mark = busy_mark();
    return private_data.size() >= mark.size() &&
           std::equal(mark.begin(), mark.end(), private_data.begin());
}

// --- orders --------------------------------------------------------------------------------------

json make_order(order const& o) {
    json text{{"order", order_names[static_cast<std::size_t>(o.kind)]}};
    if (o.kind == order_kind::begin) {
        text["size_bytes"] = o.next.size_bytes;
        text["seed"] = o.next.seed;
    }
    if (o.kind == order_kind::end) text["operations"] = o.operations;
    return text;
}

order parse_order(json const& text, plan const& p) {
    return parsed("order", [&] {
        order o;
        auto const name = text.at("order").get<std::string>();
        auto const found = std::ranges::find(order_names, name);
        if (found == order_names.end())
            throw std::invalid_argument{"unknown: " + name.substr(0, 40)};
        o.kind = static_cast<order_kind>(found - order_names.begin());
        if (o.kind == order_kind::begin) {
            o.next = {
                member<std::uint64_t>(text, "size_bytes"), member<std::uint64_t>(text, "seed")};
            bool const is_planned =
                std::ranges::find(p.sizes_bytes, o.next.size_bytes) != p.sizes_bytes.end();
            if (!is_planned) throw std::invalid_argument{"a size that the plan does not have"};
        }
        if (o.kind == order_kind::end) o.operations = counts(text, p);
        return o;
    });
}

side_result parse_result(json const& answer) {
    return parsed("result", [&] { return answer.at("result").get<side_result>(); });
}

std::vector<std::uint64_t> parse_operations(json const& answer, plan const& p) {
    return parsed("result", [&] { return counts(answer, p); });
}

order_of_orders::order_of_orders(plan const& p)
    : has_rounds_{p.what != operation::connect},
      is_bidirectional_{p.is_bidirectional},
      connections_{p.connections} {}

void order_of_orders::check(order_kind next, std::size_t connections) {
    bool is_due = false;
    switch (next) {
    case order_kind::pin: is_due = !is_pinned_ && connections == connections_; break;
    case order_kind::begin: is_due = has_rounds_ && is_pinned_ && !has_begun_; break;
    case order_kind::run: is_due = has_begun_ && is_bidirectional_ && !has_run_; break;
    case order_kind::measure:
    case order_kind::end: is_due = has_rounds_ ? has_begun_ : is_pinned_; break;
    case order_kind::bye: is_due = true; break;
    }
    if (!is_due) throw protocol_error{"the client sent an order that is not due"};
    is_pinned_ |= next == order_kind::pin;
    has_run_ = (has_run_ || next == order_kind::run) && next != order_kind::end;
    has_begun_ = (has_begun_ || next == order_kind::begin) && next != order_kind::end;
}

// --- greetings -----------------------------------------------------------------------------------

namespace {

constexpr std::uint32_t greeting_magic = 0x72766231;  // "rvb1"
// The rights that a peer can grant: remote_write, remote_read, remote_atomic.
constexpr std::uint32_t known_rights = 2 + 4 + 8;

template <class Integer>
void put(std::span<std::byte> out, std::size_t at, Integer value) noexcept {
    for (std::size_t i = sizeof value; i-- > 0; value = static_cast<Integer>(value >> 8)) {
        out[at + i] = static_cast<std::byte>(value & 0xff);
    }
}

template <class Integer>
Integer get(std::span<std::byte const> in, std::size_t at) noexcept {
    Integer value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i)
        value = static_cast<Integer>(value << 8 | std::to_integer<Integer>(in[at + i]));
    return value;
}

// The right that the test needs on the peer's region; none where it uses no region.
std::optional<access_flags> right_for(operation o) noexcept {
    switch (o) {
    case operation::write:
    case operation::write_imm: return access_flags::remote_write;
    case operation::read: return access_flags::remote_read;
    case operation::fetch_add:
    case operation::compare_swap: return access_flags::remote_atomic;
    case operation::send:
    case operation::connect: break;
    }
    return std::nullopt;
}

}  // namespace

std::array<std::byte, greeting_bytes> encode_greeting(
    rcverbs::remote_region const& exposed, std::uint64_t token
) noexcept {
    std::array<std::byte, greeting_bytes> out{};
    put(out, 0, greeting_magic);
    put(out, 4, static_cast<std::uint32_t>(exposed.rights()));
    put(out, 8, exposed.address());
    put(out, 16, exposed.size());
    put(out, 24, exposed.key().value);
    put(out, 32, token);
    return out;
}

rcverbs::remote_region decode_greeting(
    std::span<std::byte const> in, plan const& p, std::uint64_t token
) {
    if (in.size() < greeting_bytes || get<std::uint32_t>(in, 0) != greeting_magic) {
        throw protocol_error{"the peer of a measured connection is no rdma-bench"};
    }
    if (get<std::uint64_t>(in, 32) != token)
        throw protocol_error{"the peer of a measured connection is of another benchmark"};
    rcverbs::remote_region const region{
        get<std::uint64_t>(in, 8),
        get<std::uint64_t>(in, 16),
        rcverbs::remote_key{get<std::uint32_t>(in, 24)},
        static_cast<access_flags>(get<std::uint32_t>(in, 4) & known_rights)};
    std::optional<access_flags> const needed = right_for(p.what);
    if (!needed) return region;
    layout const shape{p};
    bool const is_whole = region.size() <= UINT64_MAX - region.address();
    bool const is_large_enough = region.size() >= shape.stride_bytes * shape.slots;
    bool const is_aligned = !is_atomic(p.what) || region.address() % sizeof(std::uint64_t) == 0;
    if (!is_whole || !is_large_enough || !is_aligned || !allows(region.rights(), *needed)) {
        throw protocol_error{"the peer exposes other memory than the plan needs"};
    }
    return region;
}

}  // namespace rdma_bench
