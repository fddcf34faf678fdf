#include <algorithm>
#include <string>
#include <vector>

#include "authentication/key_set.hpp"
#include "fuzz/targets.hpp"
#include "wire/authentication_message.hpp"

namespace fuzz {

namespace {

// What is accepted encodes to the bytes that it was decoded from; private data is padded behind them.
void begins_with(bytes in, std::vector<std::byte> const& again) {
    must(again.size() <= in.size() && std::ranges::equal(again, in.first(again.size())));
}

}  // namespace

// The first byte chooses the message.
void authentication_message(bytes in) {
    if (in.empty()) return;
    auto const what = std::to_integer<unsigned>(in.front()) % 5;
    in = in.subspan(1);
    if (what == 0) {
        if (!rcverbs::wire::is_authentication(in)) return;
        rcverbs::wire::authentication_request r;
        if (rcverbs::wire::decode(in, r) != rcverbs::wire::authentication_refusal::none) return;
        must(!r.identity.empty());
        must(r.identity.size() <= rcverbs::wire::authentication_identity_bytes_max);
        begins_with(in, rcverbs::wire::encode(r));
    } else if (what == 1) {
        if (auto const a = rcverbs::wire::decode_authentication_acceptance(in))
            begins_with(in, rcverbs::wire::encode(*a));
    } else if (what == 2) {
        if (!rcverbs::wire::is_authentication(in)) return;
        auto const why = rcverbs::wire::decode_authentication_refusal(in);
        must(why != rcverbs::wire::authentication_refusal::none);
        must(rcverbs::wire::to_error(why).failed());
    } else if (what == 3) {
        auto const m = rcverbs::wire::decode_authentication_proof(in);
        if (!m) return;
        must(m->hello.size() <= rcverbs::wire::authentication_hello_bytes_max);
        must(std::ranges::equal(rcverbs::wire::encode(*m), in));
    } else {
        auto const m = rcverbs::wire::decode_authentication_result(in);
        if (!m) return;
        must(m->hello.size() <= rcverbs::wire::authentication_hello_bytes_max);
        must(std::ranges::equal(rcverbs::wire::encode(*m), in));
    }
}

void key_file(bytes in) {
    rcverbs::error_code ec;
    std::string problem;
    auto const all = rcverbs::detail::parse_keys(
        {reinterpret_cast<char const*>(in.data()), in.size()}, ec, problem
    );
    must(ec.failed() == !problem.empty());
    must(ec.failed() == all.empty());
    for (auto const& [identity, keys] : all) {
        must(!identity.empty() && identity.size() <= rcverbs::pre_shared_keys::identity_bytes_max);
        must(identity.front() != '#');
        must(std::ranges::all_of(identity, [](char c) { return c > ' ' && c < 0x7f; }));
        must(!keys.empty() && keys.size() <= rcverbs::pre_shared_keys::keys_each_max);
        for (rcverbs::detail::secret const& key : keys) {
            must(key.bytes().size() >= rcverbs::pre_shared_keys::key_bytes_min);
            must(key.bytes().size() <= rcverbs::pre_shared_keys::key_bytes_max);
        }
    }
}

}  // namespace fuzz
