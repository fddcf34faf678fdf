// Authentication without I/O: files of keys, what the two sides say, and what becomes of a message that was
// changed, cut, repeated or sent back. The vectors are checked by another implementation, too:
// test/unit/authentication_vectors.py.
#include <rcverbs/authentication.hpp>
#include <rcverbs/session_error.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "authentication/digests.hpp"
#include "authentication/exchange.hpp"
#include "authentication/key_set.hpp"
#include "authentication/message_cipher.hpp"
#include "support/catch.hpp"

namespace authentication_unit_tests {

using namespace rcverbs;
using namespace rcverbs::detail;
using wire::authentication_refusal;
using wire::authentication_verdict;

using octets = std::vector<std::byte>;

octets run_of(std::size_t size, unsigned first) {
    octets all(size);
    for (std::size_t i = 0; i < size; ++i) all[i] = std::byte(first + i);
    return all;
}

octets text(std::string_view of) {
    auto const bytes = std::as_bytes(std::span{of});
    return {bytes.begin(), bytes.end()};
}

std::string hex(std::span<std::byte const> bytes) {
    std::string out;
    for (std::byte const b : bytes) {
        constexpr char digits[] = "0123456789abcdef";
        out += digits[std::to_integer<unsigned>(b) >> 4U];
        out += digits[std::to_integer<unsigned>(b) & 15U];
    }
    return out;
}

template <class Array>
Array array_of(unsigned first) {
    Array all{};
    std::ranges::copy(run_of(all.size(), first), all.begin());
    return all;
}

secret key_of(unsigned first) { return secret{run_of(32, first)}; }

authenticated_addresses const addresses{
    array_of<authenticated_address>(0x10), array_of<authenticated_address>(0x40)};

// What each side says, and may be changed on the way.
struct wire_of {
    octets request, acceptance, proof, result;
};

struct sides {
    std::vector<secret> connecting_keys{key_of(1)};
    std::vector<secret> accepting_keys{key_of(1)};
    std::string identity = "alice";
    bool connecting_encrypts = false;
    bool accepting_encrypts = false;
    authenticated_addresses seen_by_connecting = addresses;
    authenticated_addresses seen_by_accepting = addresses;
    authentication_verdict verdict = authentication_verdict::accepted;
    std::function<void(wire_of&)> on_request, on_acceptance, on_proof, on_result;

    wire_of said;
    std::string end;
    std::optional<message_keys> connecting, accepting;

    // Runs until one side refuses; says where.
    std::string run(unsigned nonces = 0x70) {
        accepting_authentication server{accepting_encrypts};
        connecting_authentication client{
            identity,
            connecting_keys,
            connecting_encrypts,
            array_of<wire::authentication_nonce>(nonces)};
        said.request = client.request();
        if (on_request) on_request(said);
        auto const refused = server.take_request(said.request, [&](std::string_view who) {
            return who == "alice" ? accepting_keys : std::vector<secret>{};
        });
        if (refused != authentication_refusal::none)
            return "request " + std::to_string(static_cast<int>(refused));
        said.acceptance = server.acceptance(
            seen_by_accepting,
            array_of<wire::authentication_nonce>(nonces + 0x20),
            array_of<wire::authentication_proof>(0xC0)
        );
        if (on_acceptance) on_acceptance(said);
        if (error_code const ec = client.take_acceptance(said.acceptance, seen_by_connecting))
            return "acceptance " + std::to_string(ec.value());
        said.proof = client.proof(text("hello of the client"));
        if (on_proof) on_proof(said);
        if (error_code const ec = server.take_proof(said.proof))
            return "proof " + std::to_string(ec.value());
        said.result = server.result(verdict, text("hello of the server"));
        if (on_result) on_result(said);
        if (error_code const ec = client.take_result(said.result))
            return "result " + std::to_string(ec.value());
        CHECK(server.identity() == identity);
        CHECK(hex(server.peer_hello()) == hex(text("hello of the client")));
        CHECK(hex(client.peer_hello()) == hex(text("hello of the server")));
        CHECK(client.verdict() == verdict);
        connecting = client.keys();
        accepting = server.keys();
        return "";
    }
};

std::string const failed = std::to_string(static_cast<int>(errc::authentication_failed));
std::string const mismatch = std::to_string(static_cast<int>(errc::security_mismatch));

struct temporary_file {
    std::string const path =
        (std::filesystem::temp_directory_path() / ("rcverbs-keys-" + std::to_string(::getpid())))
            .string();

    explicit temporary_file(std::string const& content, ::mode_t mode = 0600) {
        std::ofstream{path} << content;
        ::chmod(path.c_str(), mode);
    }
    ~temporary_file() { std::filesystem::remove(path); }
};

TEST_CASE("authentication: the text of a file of keys", "[authentication]") {
    std::string const key(32, 'a');
    struct row {
        std::string text, problem;
    };
    row const rows[] = {
        {"alice " + key + "\n", ""},
        {"alice " + key, ""},
        {"# a comment\n\n  alice\t " + key + " \r\nbob " + key + "\n", ""},
        {"alice " + key + "\nalice " + std::string(128, 'F') + "\n", ""},
        {std::string(32, 'n') + " " + key, ""},
        {"", "there are no keys"},
        {"# alice " + key + "\n", "there are no keys"},
        {"alice\n", "line 1: not an identity and a key in hexadecimal digits"},
        {key + "\n", "line 1: not an identity and a key in hexadecimal digits"},
        {"\nalice " + key + " " + key, "line 2: not an identity and a key in hexadecimal digits"},
        {"alice " + key + "0", "line 1: not an identity and a key in hexadecimal digits"},
        {"alice 0x" + key, "line 1: not an identity and a key in hexadecimal digits"},
        {"alice " + std::string(30, 'a'), "line 1: the key has less than 16 bytes"},
        {"alice " + std::string(130, 'a'), "line 1: the key has more than 64 bytes"},
        {std::string(33, 'n') + " " + key,
         "line 1: an identity has 1 to 32 printable characters of ASCII"},
        {"al\x01ice " + key, "line 1: an identity has 1 to 32 printable characters of ASCII"},
        {"al\xc3\xa4 " + key, "line 1: an identity has 1 to 32 printable characters of ASCII"},
        {std::string("a\0b ", 4) + key,
         "line 1: an identity has 1 to 32 printable characters of ASCII"},
        {"a " + key + "\na " + key + "\na " + key, "line 3: the third key of this identity"},
    };
    for (row const& r : rows) {
        INFO(r.text);
        error_code ec;
        std::string problem;
        key_map const found = parse_keys(r.text, ec, problem);
        CHECK(problem == r.problem);
        CHECK(ec == (r.problem.empty() ? error_code{} : error_code{errc::invalid_key_file}));
        CHECK(found.empty() == !r.problem.empty());
    }
}

TEST_CASE("authentication: a file that others may read or write is refused", "[authentication]") {
    for (::mode_t const mode : {0600U, 0400U, 0640U, 0604U, 0602U, 0601U, 0660U, 0666U}) {
        INFO(std::oct << mode);
        temporary_file const file{"alice " + std::string(64, '1'), mode};
        error_code ec;
        auto const keys = pre_shared_keys::load(file.path, ec);
        bool const is_private = (mode & 027U) == 0;
        CHECK(ec == (is_private ? error_code{} : error_code{errc::invalid_key_file}));
        CHECK(keys.is_empty() == !is_private);
    }
    CHECK_THROWS_WITH(
        pre_shared_keys::load("/nonexistent/keys"), test::ContainsSubstring("/nonexistent/keys")
    );
    error_code ec;
    CHECK(pre_shared_keys::load("/dev/null", ec).is_empty());
    CHECK(ec == errc::invalid_key_file);
    temporary_file const bad{"alice 12"};
    CHECK_THROWS_WITH(
        pre_shared_keys::load(bad.path),
        test::ContainsSubstring(bad.path + ": line 1: the key has less than 16 bytes")
    );
}

TEST_CASE("authentication: keys are added, copied and read again", "[authentication]") {
    pre_shared_keys none;
    CHECK(none.is_empty());
    CHECK(none.identities().empty());
    none.reload();
    pre_shared_keys added;
    CHECK_THROWS(added.add("", run_of(32, 0)));
    CHECK_THROWS(added.add("a b", run_of(32, 0)));
    CHECK_THROWS(added.add("#a", run_of(32, 0)));
    CHECK_THROWS(added.add("a", run_of(15, 0)));
    CHECK_THROWS(added.add("a", run_of(65, 0)));
    CHECK(added.is_empty());
    added.add("bob", run_of(16, 0));
    pre_shared_keys const copy = added;
    added.add("alice", run_of(64, 0));
    added.add("alice", run_of(64, 1));
    CHECK_THROWS(added.add("alice", run_of(64, 2)));
    CHECK(copy.identities() == std::vector<std::string>{"alice", "bob"});

    temporary_file const file{"alice " + std::string(64, '1')};
    auto keys = pre_shared_keys::load(file.path);
    auto const other = keys;
    std::ofstream{file.path} << "bob " + std::string(64, '2');
    keys.reload();
    CHECK(other.identities() == std::vector<std::string>{"bob"});
    // A file that is being written does not lock anybody out.
    std::ofstream{file.path} << "";
    CHECK_THROWS(keys.reload());
    error_code ec;
    keys.reload(ec);
    CHECK(ec == errc::invalid_key_file);
    CHECK(other.identities() == std::vector<std::string>{"bob"});
}

TEST_CASE("authentication: HKDF and HMAC as in their standards", "[authentication]") {
    // RFC 5869, test case 1: the first 32 bytes.
    secret const from{octets(22, std::byte{0x0b})};
    octets const info = run_of(10, 0xf0);
    std::string_view const label{reinterpret_cast<char const*>(info.data()), info.size()};
    CHECK(
        hex(derive(from, run_of(13, 0), label, {}).bytes()) ==
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    );
    CHECK(
        hex(derive(from, run_of(13, 0), label.substr(0, 4), {std::span{info}.subspan(4)}).bytes()
        ) == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    );
    CHECK(
        hex(hash("abc", {})) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

TEST_CASE("authentication: which keys of the two sides fit", "[authentication]") {
    struct row {
        std::vector<unsigned> connecting, accepting;
        std::string end;
    };
    row const rows[] = {
        {{1}, {1}, ""},
        {{1}, {2}, "acceptance " + failed},
        {{1}, {1, 2}, ""},
        {{2}, {1, 2}, ""},
        {{3}, {1, 2}, "acceptance " + failed},
        {{1, 2}, {1}, ""},
        {{1, 2}, {2}, ""},
        {{2, 1}, {1, 2}, ""},
        {{1, 2}, {3, 4}, "acceptance " + failed},
        {{1}, {}, "request 3"},
    };
    for (row const& r : rows) {
        sides s;
        s.connecting_keys.clear();
        s.accepting_keys.clear();
        for (unsigned const k : r.connecting) s.connecting_keys.push_back(key_of(k));
        for (unsigned const k : r.accepting) s.accepting_keys.push_back(key_of(k));
        INFO(r.connecting.size() << " " << r.accepting.size());
        CHECK(s.run() == r.end);
    }
    sides stranger;
    stranger.identity = "mallory";
    CHECK(stranger.run() == "request 3");
    for (bool const connecting : {false, true}) {
        for (bool const accepting : {false, true}) {
            sides s;
            s.connecting_encrypts = connecting;
            s.accepting_encrypts = accepting;
            CHECK(s.run() == (connecting == accepting ? "" : "request 2"));
        }
    }
}

TEST_CASE(
    "authentication: both sides have the same keys for messages, new ones each time",
    "[authentication]"
) {
    std::set<std::string> all;
    for (unsigned const nonces : {0x01U, 0x02U, 0x70U}) {
        sides s;
        CHECK(s.run(nonces).empty());
        CHECK(hex(s.connecting->connecting.bytes()) == hex(s.accepting->connecting.bytes()));
        CHECK(hex(s.connecting->accepting.bytes()) == hex(s.accepting->accepting.bytes()));
        all.insert(hex(s.connecting->connecting.bytes()));
        all.insert(hex(s.connecting->accepting.bytes()));
    }
    CHECK(all.size() == 6);
}

TEST_CASE("authentication: a refusal is proved like an acceptance", "[authentication]") {
    for (auto const verdict :
         {authentication_verdict::refused, authentication_verdict::identity_refused}) {
        sides s;
        s.verdict = verdict;
        CHECK(s.run().empty());
        sides forged;
        forged.verdict = verdict;
        forged.on_result = [](wire_of& w) { w.result[33] = std::byte{0}; };
        CHECK(forged.run() == "result " + failed);
    }
}

TEST_CASE("authentication: no bit of what is said can be changed", "[authentication]") {
    struct step_of {
        octets wire_of::*what;
        std::function<void(wire_of&)> sides::*when;
    };
    step_of const steps[] = {
        {&wire_of::request, &sides::on_request},
        {&wire_of::acceptance, &sides::on_acceptance},
        {&wire_of::proof, &sides::on_proof},
        {&wire_of::result, &sides::on_result},
    };
    sides plain;
    REQUIRE(plain.run().empty());
    for (step_of const& s : steps) {
        std::size_t const size = (plain.said.*s.what).size();
        for (std::size_t bit = 0; bit < size * 8; ++bit) {
            sides changed;
            changed.*
                s.when = [&](wire_of& w) { (w.*s.what)[bit / 8] ^= std::byte(1U << (bit % 8)); };
            std::string const end = changed.run();
            // The second proof of an acceptance is of no key here.
            bool const is_filler = s.what == &wire_of::acceptance && bit >= 52 * 8;
            INFO(bit);
            CHECK(end.empty() == is_filler);
        }
        for (std::size_t length = 0; length < size; ++length) {
            sides cut;
            cut.*s.when = [&](wire_of& w) { (w.*s.what).resize(length); };
            INFO(length);
            CHECK_FALSE(cut.run().empty());
        }
        sides longer;
        longer.*s.when = [&](wire_of& w) { (w.*s.what).resize(size + 1); };
        // The connection manager pads private data.
        bool const is_padded = s.what == &wire_of::request || s.what == &wire_of::acceptance;
        CHECK(longer.run().empty() == is_padded);
    }
}

TEST_CASE("authentication: an answer without it is a downgrade", "[authentication]") {
    for (octets const& answer :
         {octets{}, octets(196), text("RCVC and more of a channel's hello")}) {
        sides s;
        s.on_acceptance = [&](wire_of& w) { w.acceptance = answer; };
        CHECK(s.run() == "acceptance " + mismatch);
        sides t;
        t.on_request = [&](wire_of& w) { w.request = answer; };
        CHECK(t.run() == "request 2");
    }
    // Of a later version.
    sides later;
    later.on_request = [](wire_of& w) { w.request[2] = std::byte{2}; };
    CHECK(later.run() == "request 1");
}

TEST_CASE(
    "authentication: what was said before, elsewhere or by oneself proves nothing",
    "[authentication]"
) {
    sides first;
    REQUIRE(first.run().empty());
    // To a new random number of each side.
    sides repeated;
    repeated.on_request = [&](wire_of& w) { w.request = first.said.request; };
    repeated.on_acceptance = [&](wire_of& w) { w.acceptance = first.said.acceptance; };
    CHECK(repeated.run(0x71) == "acceptance " + failed);
    sides again;
    again.on_proof = [&](wire_of& w) { w.proof = first.said.proof; };
    CHECK(again.run(0x71) == "proof " + failed);
    sides once_more;
    once_more.on_result = [&](wire_of& w) { w.result = first.said.result; };
    CHECK(once_more.run(0x71) == "result " + failed);
    // The accepting side's own proof, sent back.
    sides reflected;
    reflected.on_proof = [](wire_of& w) {
        std::copy_n(w.acceptance.begin() + 20, 32, w.proof.begin());
    };
    CHECK(reflected.run() == "proof " + failed);
    sides returned;
    returned.on_result = [](wire_of& w) { std::copy_n(w.proof.begin(), 32, w.result.begin()); };
    CHECK(returned.run() == "result " + failed);
    // Passed on by one who stands between the two: the addresses differ.
    for (int side = 0; side < 2; ++side) {
        sides relayed;
        auto& which =
            side == 0 ? relayed.seen_by_accepting.connecting : relayed.seen_by_connecting.accepting;
        for (std::size_t i : {std::size_t{0}, std::size_t{15}, std::size_t{17}}) {
            which = side == 0 ? addresses.connecting : addresses.accepting;
            which[i] ^= std::byte{1};
            CHECK(relayed.run() == "acceptance " + failed);
        }
    }
}

TEST_CASE("authentication: the bytes are those of the vectors", "[authentication]") {
    std::map<std::string, std::string> expected{
#include "unit/authentication_vectors.inc"
    };
    REQUIRE(expected.size() == 9);
    sides s;
    s.accepting_keys.push_back(key_of(2));
    s.connecting_encrypts = s.accepting_encrypts = true;
    REQUIRE(s.run().empty());
    CHECK(hex(s.said.request) == expected["request"]);
    CHECK(hex(s.said.acceptance) == expected["acceptance"]);
    CHECK(hex(s.said.proof) == expected["proof"]);
    CHECK(hex(s.said.result) == expected["result"]);
    CHECK(hex(s.connecting->connecting.bytes()) == expected["connecting-key"]);
    CHECK(hex(s.connecting->accepting.bytes()) == expected["accepting-key"]);
    message_cipher cipher{*s.connecting, true};
    for (char const* name : {"message-0", "message-1"}) {
        octets message = text("a message");
        message.resize(message.size() + message_cipher::tag_bytes);
        REQUIRE(cipher.seal(message));
        CHECK(hex(message) == expected[name]);
    }
    sides refused;
    refused.verdict = authentication_verdict::refused;
    REQUIRE(refused.run().empty());
    CHECK(hex(refused.said.result) == expected["refusal"]);
}

TEST_CASE("authentication: a message opens once, in its place, unchanged", "[authentication]") {
    sides s;
    REQUIRE(s.run().empty());
    auto const sealed = [](message_cipher& by, std::string_view what) {
        octets m = text(what);
        m.resize(m.size() + message_cipher::tag_bytes);
        REQUIRE(by.seal(m));
        return m;
    };
    auto const opened = [](message_cipher& by, octets m) {
        bool const is_right = by.open(m);
        return is_right ? std::string(reinterpret_cast<char const*>(m.data()), m.size() - 16)
                        : std::string{"refused"};
    };
    message_cipher client{*s.connecting, true};
    message_cipher server{*s.accepting, false};
    for (std::string const& each : {std::string{"one"}, std::string{}, std::string(1 << 20, 'x')}) {
        CHECK(opened(server, sealed(client, each)) == each);
        CHECK(opened(client, sealed(server, each)) == each);
    }
    CHECK(hex(sealed(client, "the same")) != hex(sealed(client, "the same")));
    auto const with = [&](auto change) {
        message_cipher from{*s.connecting, true};
        message_cipher to{*s.accepting, false};
        octets const first = sealed(from, "first");
        octets const second = sealed(from, "second");
        return change(to, first, second);
    };
    CHECK(with([&](auto& to, auto, auto second) { return opened(to, second); }) == "refused");
    CHECK(with([&](auto& to, auto first, auto) {
              opened(to, first);
              return opened(to, first);
          }) == "refused");
    CHECK(with([&](auto& to, auto first, auto) {
              first.pop_back();
              return opened(to, first);
          }) == "refused");
    CHECK(with([&](auto& to, auto, auto) { return opened(to, octets(15)); }) == "refused");
    for (std::size_t i = 0; i < 21 * 8; ++i) {
        CHECK(with([&](auto& to, auto first, auto) {
                  first[i / 8] ^= std::byte(1U << (i % 8));
                  return opened(to, first);
              }) == "refused");
    }
    // Sent back to where it came from.
    message_cipher one{*s.connecting, true};
    CHECK(opened(one, sealed(one, "own")) == "refused");
}

}  // namespace authentication_unit_tests
