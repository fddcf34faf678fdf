#include "authentication.hpp"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/param_build.h>
#include <openssl/rand.h>

#include <boost/crc.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "command.hpp"

namespace rcverbs::nvme::detail {

namespace {

using octets = std::vector<std::byte>;

// Types of messages, and the two kinds they are of.
constexpr std::byte common{0x00};
constexpr std::byte dhchap{0x01};
constexpr std::byte negotiate{0x00};
constexpr std::byte challenge{0x01};
constexpr std::byte reply{0x02};
constexpr std::byte success1{0x03};
constexpr std::byte success2{0x04};
constexpr std::byte failure1{0xf1};
constexpr std::byte failure2{0xf0};

// Reasons of a failure.
constexpr std::uint8_t failed_authentication = 0x01;
constexpr std::uint8_t unusable_protocol = 0x02;
constexpr std::uint8_t unusable_channel = 0x03;
constexpr std::uint8_t unusable_hash = 0x04;
constexpr std::uint8_t unusable_group = 0x05;
constexpr std::uint8_t incorrect_payload = 0x06;

constexpr std::size_t header_bytes = 16;
constexpr std::size_t descriptor_bytes = 64;
constexpr std::uint8_t dhchap_protocol = 1;
constexpr unsigned negotiations_max = 16;

struct hash_function {
    std::uint8_t id;
    EVP_MD const* (*function)();
    std::size_t size_bytes;
};
constexpr hash_function hashes[] = {{1, EVP_sha256, 32}, {2, EVP_sha384, 48}, {3, EVP_sha512, 64}};

struct dh_group {
    std::uint8_t id;
    char const* name;  // null for none
    std::size_t size_bytes;
};
// The first that the host has is used. Larger groups cost seconds on small machines.
constexpr dh_group groups[] = {{1, "ffdhe2048", 256}, {2, "ffdhe3072", 384}, {0, nullptr, 0}};

hash_function const* find_hash(std::uint8_t id) {
    auto const found = std::ranges::find(hashes, id, &hash_function::id);
    return found == std::end(hashes) ? nullptr : found;
}

dh_group const* find_group(std::uint8_t id) {
    auto const found = std::ranges::find(groups, id, &dh_group::id);
    return found == std::end(groups) ? nullptr : found;
}

unsigned char const* chars(std::span<std::byte const> b) {
    return reinterpret_cast<unsigned char const*>(b.data());
}
unsigned char* chars(std::span<std::byte> b) { return reinterpret_cast<unsigned char*>(b.data()); }

void append(octets& to, std::string const& text) {
    auto const more = std::as_bytes(std::span{text});
    to.insert(to.end(), more.begin(), more.end());
}

octets hmac(hash_function const& h, octets const& key, octets const& text) {
    octets out(h.size_bytes);
    unsigned size = 0;
    HMAC(
        h.function(),
        key.data(),
        static_cast<int>(key.size()),
        chars(text),
        text.size(),
        chars(std::span{out}),
        &size
    );
    return out;
}

octets digest(hash_function const& h, octets const& text) {
    octets out(h.size_bytes);
    EVP_Digest(text.data(), text.size(), chars(std::span{out}), nullptr, h.function(), nullptr);
    return out;
}

// A secret is bound to the name of its owner.
octets transformed(dhchap_key const& key, std::string const& owner) {
    hash_function const* const h = find_hash(key.hash);
    if (h == nullptr) return key.value;
    octets text;
    append(text, owner + "NVMe-over-Fabrics");
    return hmac(*h, key.value, text);
}

// Challenges must not repeat and must not be guessed.
octets random_bytes(std::size_t size) {
    octets out(size);
    if (RAND_bytes(chars(std::span{out}), static_cast<int>(size)) != 1) out.clear();
    return out;
}

}  // namespace

dhchap_key dhchap_key::decode(std::string const& text) {
    std::string const start = "DHHC-1:";
    // "DHHC-1:NN:" and a colon at the end.
    if (!text.starts_with(start) || text.size() < 12 || text[9] != ':' || text.back() != ':')
        return {};
    dhchap_key key;
    if (text[7] != '0' || text[8] < '0' || text[8] > '3') return {};
    key.hash = static_cast<std::uint8_t>(text[8] - '0');
    std::string const coded = text.substr(10, text.size() - 11);
    if (coded.size() % 4 != 0) return {};
    octets decoded(coded.size() / 4 * 3);
    int const size = EVP_DecodeBlock(
        chars(std::span{decoded}),
        reinterpret_cast<unsigned char const*>(coded.data()),
        static_cast<int>(coded.size())
    );
    if (size < 0) return {};
    decoded.resize(
        static_cast<std::size_t>(size) -
        static_cast<std::size_t>(std::count(coded.begin(), coded.end(), '='))
    );
    constexpr std::size_t checksum_bytes = 4;
    if (decoded.size() < checksum_bytes) return {};
    std::size_t const key_bytes = decoded.size() - checksum_bytes;
    if (key_bytes != 32 && key_bytes != 48 && key_bytes != 64) return {};
    boost::crc_32_type crc;
    crc.process_bytes(decoded.data(), key_bytes);
    if (crc.checksum() != load<std::uint32_t>(decoded, key_bytes)) return {};
    decoded.resize(key_bytes);
    key.value = std::move(decoded);
    return key;
}

// --- Diffie and Hellman --------------------------------------------------------------------------

class authenticator::dh_exchange {
public:
    explicit dh_exchange(dh_group const& g) : group_{g} {
        context const made{EVP_PKEY_CTX_new_from_name(nullptr, "DH", nullptr)};
        OSSL_PARAM const parameters[] = {
            OSSL_PARAM_construct_utf8_string(
                OSSL_PKEY_PARAM_GROUP_NAME, const_cast<char*>(group_.name), 0
            ),
            OSSL_PARAM_construct_end()};
        EVP_PKEY* raw = nullptr;
        if (made != nullptr && EVP_PKEY_keygen_init(made.get()) == 1 &&
            EVP_PKEY_CTX_set_params(made.get(), parameters) == 1)
            EVP_PKEY_generate(made.get(), &raw);
        own_.reset(raw);
    }

    /// The public value, in the group's size; empty if OpenSSL failed.
    octets public_value() const {
        BIGNUM* raw = nullptr;
        if (own_ == nullptr ||
            EVP_PKEY_get_bn_param(own_.get(), OSSL_PKEY_PARAM_PUB_KEY, &raw) != 1)
            return {};
        octets out(group_.size_bytes);
        int const size =
            BN_bn2binpad(raw, chars(std::span{out}), static_cast<int>(group_.size_bytes));
        BN_free(raw);
        if (size < 0) out.clear();
        return out;
    }

    /// The shared secret; empty if the peer's value is none.
    octets derive(std::span<std::byte const> theirs) const {
        std::unique_ptr<BIGNUM, free_number> const number{
            BN_bin2bn(chars(theirs), static_cast<int>(theirs.size()), nullptr)};
        std::unique_ptr<OSSL_PARAM_BLD, free_builder> const builder{OSSL_PARAM_BLD_new()};
        if (number == nullptr || builder == nullptr || own_ == nullptr) return {};
        OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, group_.name, 0);
        OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, number.get());
        std::unique_ptr<OSSL_PARAM, free_parameters> const parameters{
            OSSL_PARAM_BLD_to_param(builder.get())};
        context const making{EVP_PKEY_CTX_new_from_name(nullptr, "DH", nullptr)};
        EVP_PKEY* raw = nullptr;
        if (parameters == nullptr || making == nullptr ||
            EVP_PKEY_fromdata_init(making.get()) != 1 ||
            EVP_PKEY_fromdata(making.get(), &raw, EVP_PKEY_PUBLIC_KEY, parameters.get()) != 1)
            return {};
        key const peer{raw};
        context const deriving{EVP_PKEY_CTX_new_from_pkey(nullptr, own_.get(), nullptr)};
        octets out(group_.size_bytes);
        std::size_t size = out.size();
        if (deriving == nullptr || EVP_PKEY_derive_init(deriving.get()) != 1 ||
            EVP_PKEY_derive_set_peer(deriving.get(), peer.get()) != 1)
            return {};
        unsigned pad = 1;
        OSSL_PARAM const options[] = {
            OSSL_PARAM_construct_uint(OSSL_EXCHANGE_PARAM_PAD, &pad), OSSL_PARAM_construct_end()};
        if (EVP_PKEY_CTX_set_params(deriving.get(), options) != 1 ||
            EVP_PKEY_derive(deriving.get(), chars(std::span{out}), &size) != 1)
            return {};
        out.resize(size);
        return out;
    }

private:
    struct free_context {
        void operator()(EVP_PKEY_CTX* p) const noexcept { EVP_PKEY_CTX_free(p); }
    };
    struct free_key {
        void operator()(EVP_PKEY* p) const noexcept { EVP_PKEY_free(p); }
    };
    struct free_number {
        void operator()(BIGNUM* p) const noexcept { BN_free(p); }
    };
    struct free_builder {
        void operator()(OSSL_PARAM_BLD* p) const noexcept { OSSL_PARAM_BLD_free(p); }
    };
    struct free_parameters {
        void operator()(OSSL_PARAM* p) const noexcept { OSSL_PARAM_free(p); }
    };
    using context = std::unique_ptr<EVP_PKEY_CTX, free_context>;
    using key = std::unique_ptr<EVP_PKEY, free_key>;

    dh_group const& group_;
    key own_;
};

// --- the exchange --------------------------------------------------------------------------------

authenticator::authenticator(host_secrets const& secrets, std::string subsystem)
    : host_{secrets.host},
      subsystem_{std::move(subsystem)},
      host_key_{dhchap_key::decode(secrets.secret)},
      own_key_{dhchap_key::decode(secrets.controller_secret)} {}

authenticator::~authenticator() = default;

bool authenticator::on_message(std::span<std::byte const> in) {
    if (in.size() < 8) return false;
    bool const is_negotiate = in[0] == common && in[1] == negotiate;
    // A host may begin again when it is done, but not for ever: each time costs a key.
    if (is_negotiate && (state_ == state::expects_negotiate || state_ == state::done))
        return ++negotiations_ <= negotiations_max && on_negotiate(in);
    if (in[0] == common && in[1] == failure2) {
        state_ = state::failed;
        return true;
    }
    if (in[0] != dhchap || load<std::uint16_t>(in, 4) != transaction_) return false;
    if (in[1] == reply && state_ == state::expects_reply) return on_reply(in);
    if (in[1] == success2 && state_ == state::expects_success) {
        state_ = state::done;
        is_proven_ = true;
        return true;
    }
    return false;
}

bool authenticator::on_negotiate(std::span<std::byte const> in) {
    transaction_ = load<std::uint16_t>(in, 4);
    std::size_t const count = static_cast<std::size_t>(in[7]);
    constexpr std::uint8_t no_secure_channel = 0;
    if (static_cast<std::uint8_t>(in[6]) != no_secure_channel) return fail(unusable_channel);
    if (in.size() < 8 + count * descriptor_bytes) return fail(incorrect_payload);
    for (std::size_t i = 0; i < count; ++i) {
        auto const d = in.subspan(8 + i * descriptor_bytes, descriptor_bytes);
        if (static_cast<std::uint8_t>(d[0]) != dhchap_protocol) continue;
        constexpr std::size_t list_max = 30;
        auto const offered = [&](std::size_t at, std::size_t length, std::uint8_t wanted) {
            auto const list = d.subspan(at, std::min(length, list_max));
            return std::ranges::find(list, static_cast<std::byte>(wanted)) != list.end();
        };
        auto const hash_count = static_cast<std::size_t>(d[2]);
        auto const group_count = static_cast<std::size_t>(d[3]);
        auto const hash = std::ranges::find_if(hashes, [&](hash_function const& h) {
            return offered(4, hash_count, h.id);
        });
        auto const group = std::ranges::find_if(groups, [&](dh_group const& g) {
            return offered(34, group_count, g.id);
        });
        if (hash == std::end(hashes)) return fail(unusable_hash);
        if (group == std::end(groups)) return fail(unusable_group);
        hash_ = hash->id;
        group_ = group->id;
        state_ = state::owes_challenge;
        return true;
    }
    return fail(unusable_protocol);
}

bool authenticator::fail(std::uint8_t reason) {
    failure_ = reason;
    state_ = state::owes_failure;
    return true;
}

bool authenticator::on_reply(std::span<std::byte const> in) {
    hash_function const& h = *find_hash(hash_);
    if (in.size() < header_bytes) return fail(incorrect_payload);
    bool const wants_proof = in[8] != std::byte{0};
    std::size_t const value_bytes = load<std::uint16_t>(in, 10);
    std::size_t const expected = header_bytes + 2 * h.size_bytes + value_bytes;
    if (static_cast<std::size_t>(in[6]) != h.size_bytes || in.size() < expected)
        return fail(incorrect_payload);
    auto const response = in.subspan(header_bytes, h.size_bytes);
    auto const their_challenge = in.subspan(header_bytes + h.size_bytes, h.size_bytes);
    shared_.clear();
    if (dh_ != nullptr) {
        shared_ = dh_->derive(in.subspan(header_bytes + 2 * h.size_bytes, value_bytes));
        if (shared_.empty()) return fail(incorrect_payload);
    }
    if (host_key_.value.empty() || challenge_.size() != h.size_bytes)
        return fail(failed_authentication);
    octets const wanted = respond(host_key_, challenge_, sequence_, "HostHost", host_, subsystem_);
    if (CRYPTO_memcmp(wanted.data(), response.data(), wanted.size()) != 0)
        return fail(failed_authentication);
    proof_.clear();
    if (wants_proof) {
        if (own_key_.value.empty()) return fail(failed_authentication);
        // A challenge like the controller's own would make it answer for the host.
        if (std::ranges::equal(their_challenge, challenge_)) return fail(failed_authentication);
        proof_ = respond(
            own_key_,
            {their_challenge.begin(), their_challenge.end()},
            load<std::uint32_t>(in, 12),
            "Controller",
            subsystem_,
            host_
        );
    }
    state_ = state::owes_success;
    return true;
}

// HMAC of the challenge, its number, the transaction, and the names of both. With a shared secret
// the challenge is augmented by it.
octets authenticator::respond(
    dhchap_key const& key,
    octets nonce,
    std::uint32_t sequence,
    std::string const& role,
    std::string const& whose,
    std::string const& other
) const {
    hash_function const& h = *find_hash(hash_);
    if (!shared_.empty()) nonce = hmac(h, digest(h, shared_), nonce);
    octets text = std::move(nonce);
    std::array<std::byte, 7> numbers{};  // the last is the secure channel: none
    store(std::span<std::byte>{numbers}, 0, sequence);
    store(std::span<std::byte>{numbers}, 4, transaction_);
    text.insert(text.end(), numbers.begin(), numbers.end());
    append(text, role + whose);
    text.push_back(std::byte{0});
    append(text, other);
    return hmac(h, transformed(key, whose), text);
}

bool authenticator::next_message(std::span<std::byte> out) {
    octets message;
    state after = state::failed;
    switch (state_) {
    case state::owes_challenge:
        message = write_challenge();
        after = state::expects_reply;
        if (message.empty()) {
            failure_ = failed_authentication;
            message = write_failure();
            after = state::failed;
        }
        break;
    case state::owes_success:
        message = write_success();
        after = proof_.empty() ? state::done : state::expects_success;
        break;
    case state::owes_failure: message = write_failure(); break;
    default: return false;
    }
    if (message.size() > out.size()) {
        state_ = state::failed;
        return false;
    }
    std::ranges::copy(message, out.begin());
    state_ = after;
    is_proven_ = is_proven_ || after == state::done;
    return true;
}

octets authenticator::write_challenge() {
    hash_function const& h = *find_hash(hash_);
    dh_group const& g = *find_group(group_);
    challenge_ = random_bytes(h.size_bytes);
    octets const number = random_bytes(sizeof sequence_);
    octets value;
    dh_.reset();
    if (g.name != nullptr) {
        dh_ = std::make_unique<dh_exchange>(g);
        value = dh_->public_value();
    }
    if (challenge_.empty() || number.empty() || value.size() != g.size_bytes) return {};
    sequence_ = std::max(load<std::uint32_t>(number, 0), 1U);
    octets m(header_bytes);
    m[0] = dhchap;
    m[1] = challenge;
    store(std::span{m}, 4, transaction_);
    m[6] = static_cast<std::byte>(h.size_bytes);
    m[8] = static_cast<std::byte>(h.id);
    m[9] = static_cast<std::byte>(g.id);
    store(std::span{m}, 10, static_cast<std::uint16_t>(value.size()));
    store(std::span{m}, 12, sequence_);
    m.insert(m.end(), challenge_.begin(), challenge_.end());
    m.insert(m.end(), value.begin(), value.end());
    return m;
}

octets authenticator::write_success() const {
    octets m(header_bytes + proof_.size());
    m[0] = dhchap;
    m[1] = success1;
    store(std::span{m}, 4, transaction_);
    m[6] = static_cast<std::byte>(find_hash(hash_)->size_bytes);
    m[8] = static_cast<std::byte>(!proof_.empty());
    std::ranges::copy(proof_, m.begin() + header_bytes);
    return m;
}

octets authenticator::write_failure() const {
    octets m(8);
    m[0] = common;
    m[1] = failure1;
    store(std::span{m}, 4, transaction_);
    m[6] = std::byte{1};  // authentication failed
    m[7] = static_cast<std::byte>(failure_);
    return m;
}

}  // namespace rcverbs::nvme::detail
