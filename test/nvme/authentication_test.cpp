// DH-HMAC-CHAP between a target and a host that computes its side with OpenSSL. (The kernel of
// Debian 12 is built without it: it cannot be the host.)
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/param_build.h>

#include <boost/asio/steady_timer.hpp>

#include <rcverbs/nvme/memory_store.hpp>

#include "nvme/host.hpp"

using namespace rcverbs;
using namespace test;
namespace nvme = rcverbs::nvme;

namespace {

using bytes = std::vector<std::byte>;

// The base64 of the keys below and their CRC-32.
constexpr char const* host_secret = "DHHC-1:00:ERERERERERERERERERERERERERERERERERERERERERHYIEm8:";
constexpr char const* controller_secret =
    "DHHC-1:00:IiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIGuf2I:";
bytes const host_key = bytes(32, std::byte{0x11});
bytes const controller_key = bytes(32, std::byte{0x22});

/// A hash function as the exchange names it: 1 to 3.
struct hash_choice {
    std::uint8_t id = 1;

    EVP_MD const* function() const {
        if (id == 1) return EVP_sha256();
        return id == 2 ? EVP_sha384() : EVP_sha512();
    }
    std::size_t size() const { return static_cast<std::size_t>(EVP_MD_get_size(function())); }
};

bytes hmac(hash_choice h, bytes const& key, bytes const& text) {
    bytes out(h.size());
    unsigned size = 0;
    HMAC(
        h.function(),
        key.data(),
        static_cast<int>(key.size()),
        reinterpret_cast<unsigned char const*>(text.data()),
        text.size(),
        reinterpret_cast<unsigned char*>(out.data()),
        &size
    );
    return out;
}

bytes digest(hash_choice h, bytes const& text) {
    bytes out(h.size());
    EVP_Digest(
        text.data(),
        text.size(),
        reinterpret_cast<unsigned char*>(out.data()),
        nullptr,
        h.function(),
        nullptr
    );
    return out;
}

/// The host's half of the exchange of Diffie and Hellman, with ffdhe2048 or ffdhe3072: group 1 or 2.
struct dh_half {
    explicit dh_half(std::uint8_t group)
        : size_bytes{group == 1 ? 256U : 384U},
          own{generated(group == 1 ? "ffdhe2048" : "ffdhe3072")} {}
    ~dh_half() { EVP_PKEY_free(own); }
    dh_half(dh_half const&) = delete;
    dh_half& operator=(dh_half const&) = delete;

    static EVP_PKEY* generated(char const* name) {
        EVP_PKEY_CTX* const c = EVP_PKEY_CTX_new_from_name(nullptr, "DH", nullptr);
        OSSL_PARAM const p[] = {
            OSSL_PARAM_construct_utf8_string("group", const_cast<char*>(name), 0),
            OSSL_PARAM_construct_end()};
        EVP_PKEY* made = nullptr;
        EVP_PKEY_keygen_init(c);
        EVP_PKEY_CTX_set_params(c, p);
        EVP_PKEY_generate(c, &made);
        EVP_PKEY_CTX_free(c);
        return made;
    }
    bytes value() const {
        bytes out(size_bytes);
        std::size_t size = 0;
        EVP_PKEY_get_octet_string_param(
            own,
            OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY,
            reinterpret_cast<unsigned char*>(out.data()),
            out.size(),
            &size
        );
        return out;
    }
    bytes secret(bytes const& theirs) const {
        EVP_PKEY* const peer = EVP_PKEY_new();
        EVP_PKEY_copy_parameters(peer, own);
        EVP_PKEY_set1_encoded_public_key(
            peer, reinterpret_cast<unsigned char const*>(theirs.data()), theirs.size()
        );
        EVP_PKEY_CTX* const c = EVP_PKEY_CTX_new_from_pkey(nullptr, own, nullptr);
        bytes out(size_bytes);
        std::size_t size = out.size();
        EVP_PKEY_derive_init(c);
        unsigned pad = 1;
        OSSL_PARAM const p[] = {
            OSSL_PARAM_construct_uint(OSSL_EXCHANGE_PARAM_PAD, &pad), OSSL_PARAM_construct_end()};
        EVP_PKEY_CTX_set_params(c, p);
        EVP_PKEY_derive_set_peer(c, peer);
        EVP_PKEY_derive(c, reinterpret_cast<unsigned char*>(out.data()), &size);
        EVP_PKEY_CTX_free(c);
        EVP_PKEY_free(peer);
        return out;
    }
    std::size_t size_bytes;
    EVP_PKEY* own;
};

struct choice {
    std::uint8_t group = 0;  // none, ffdhe2048, ffdhe3072
    bool wants_proof = false;
    bool knows_secret = true;
    std::uint8_t hash = 1;
    bool goes_on = false;  // sends another command in the middle of the exchange
};

struct outcome {
    bool is_accepted = false;
    bool is_proven = false;  // the controller's response is right
    bool is_told = false;  // has the completion of the last message
};

bytes text_of(
    bytes challenge,
    std::uint32_t sequence,
    char const* role,
    std::string const& whose,
    std::string const& other
) {
    bytes t = std::move(challenge);
    std::array<std::byte, 7> numbers{};
    put(std::span<std::byte>{numbers}, 0, sequence);
    put(std::span<std::byte>{numbers}, 4, std::uint16_t{5});
    t.insert(t.end(), numbers.begin(), numbers.end());
    std::string const names = role + whose + '\0' + other;
    auto const more = std::as_bytes(std::span{names});
    t.insert(t.end(), more.begin(), more.end());
    return t;
}

asio::awaitable<response> exchange(
    host_queue& q, registered_buffer& memory, std::uint8_t type, std::size_t size
) {
    capsule c{0x7f, type};
    c.dword(10, 0xe9010100).dword(11, static_cast<std::uint32_t>(size));
    c.keyed(memory.remote().slice(0, size));
    co_return co_await q.run(c);
}

/// Authenticates a queue that is connected.
asio::awaitable<outcome> authenticate(host_queue& q, choice how) {
    registered_buffer memory{
        q.connection().domain(), 4096, access_flags::remote_read | access_flags::remote_write};
    auto const m = memory.bytes();
    auto const send = [&](std::size_t size) { return exchange(q, memory, 5, size); };
    auto const receive = [&](std::size_t size) {
        std::ranges::fill(m, std::byte{0});
        return exchange(q, memory, 6, size);
    };
    hash_choice const h{how.hash};
    std::size_t const hash_bytes = h.size();
    std::ranges::fill(m, std::byte{0});
    put(m, 4, std::uint16_t{5});
    m[7] = m[8] = m[10] = m[11] = std::byte{1};
    m[12] = static_cast<std::byte>(how.hash);
    m[42] = static_cast<std::byte>(how.group);
    response r = co_await send(72);
    REQUIRE(r.status == 0);
    r = co_await receive(4096);
    REQUIRE(r.status == 0);
    REQUIRE(m[1] == std::byte{1});
    REQUIRE(m[6] == static_cast<std::byte>(hash_bytes));
    REQUIRE(m[8] == static_cast<std::byte>(how.hash));
    REQUIRE(m[9] == static_cast<std::byte>(how.group));
    auto const sequence = get<std::uint32_t>(m, 12);
    auto const first = m.subspan(16, hash_bytes);
    bytes theirs(first.begin(), first.end());
    if (how.goes_on) {
        response const other = co_await q.run(capsule{0x18, 0});
        CHECK(other.status == 0);
    }
    bytes value;
    bytes shared;
    if (how.group != 0) {
        dh_half const dh{how.group};
        value = dh.value();
        REQUIRE(get<std::uint16_t>(m, 10) == dh.size_bytes);
        auto const public_value = m.subspan(16 + hash_bytes, dh.size_bytes);
        shared = dh.secret({public_value.begin(), public_value.end()});
        theirs = hmac(h, digest(h, shared), theirs);
    }
    bytes const ours(hash_bytes, std::byte{0x77});
    bytes const key = how.knows_secret ? host_key : controller_key;
    bytes const response = hmac(h, key, text_of(theirs, sequence, "HostHost", host_nqn, disk_nqn));
    std::ranges::fill(m, std::byte{0});
    m[0] = std::byte{1};
    m[1] = std::byte{2};
    put(m, 4, std::uint16_t{5});
    m[6] = static_cast<std::byte>(hash_bytes);
    m[8] = static_cast<std::byte>(how.wants_proof);
    put(m, 10, static_cast<std::uint16_t>(value.size()));
    put(m, 12, std::uint32_t{99});
    std::ranges::copy(response, m.begin() + 16);
    std::ranges::copy(ours, m.subspan(16 + hash_bytes).begin());
    std::ranges::copy(value, m.subspan(16 + 2 * hash_bytes).begin());
    r = co_await send(16 + 2 * hash_bytes + value.size());
    REQUIRE(r.status == 0);
    r = co_await receive(4096);
    REQUIRE(r.status == 0);
    outcome o;
    o.is_told = r.is_alive;
    o.is_accepted = m[0] == std::byte{1} && m[1] == std::byte{3};
    if (!o.is_accepted || !how.wants_proof) co_return o;
    bytes challenge = ours;
    if (!shared.empty()) challenge = hmac(h, digest(h, shared), challenge);
    bytes const wanted =
        hmac(h, controller_key, text_of(challenge, 99, "Controller", disk_nqn, host_nqn));
    o.is_proven = std::equal(wanted.begin(), wanted.end(), m.begin() + 16);
    std::ranges::fill(m, std::byte{0});
    m[0] = std::byte{1};
    m[1] = std::byte{4};
    put(m, 4, std::uint16_t{5});
    r = co_await send(16);
    REQUIRE(r.status == 0);
    co_return o;
}

nvme::target secretive(asio::io_context& io, nvme::target_options options = {}) {
    nvme::namespace_options n;
    n.store = std::make_shared<nvme::memory_store>(1U << 20);
    nvme::subsystem_options o;
    o.nqn = disk_nqn;
    o.namespaces = {n};
    o.secrets = {{host_nqn, host_secret, controller_secret}};
    return nvme::target{io, {device_address(), 0}, {o}, with_io_poller(std::move(options))};
}

asio::awaitable<std::uint16_t> open(
    host_queue& q, endpoint to, std::uint16_t id, std::uint16_t of
) {
    error_code const ec = co_await q.open(std::move(to), id);
    REQUIRE_FALSE(ec);
    response const r = co_await q.run(q.connect_command(id, of));
    REQUIRE(r.status == 0);
    CHECK((r.result >> 17 & 1) == 1);  // authentication is required
    co_return static_cast<std::uint16_t>(r.result);
}

asio::awaitable<void> wait_for_no_queue(asio::io_context& io, nvme::target& t) {
    asio::steady_timer timer{io};
    for (int i = 0; i < 1000 && t.statistics().queues > 0; ++i) {
        timer.expires_after(10ms);
        co_await timer.async_wait(asio::use_awaitable);
    }
    CHECK(t.statistics().queues == 0);
}

}  // namespace

TEST_CASE("nvme: a host and a controller prove themselves, on every queue", "[device][nvme]") {
    auto const group = GENERATE(std::uint8_t{0}, std::uint8_t{1});
    auto const wants_proof = GENERATE(false, true);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target t = secretive(io);
        host_queue admin{io};
        std::uint16_t const id = co_await open(admin, t.local_endpoint(), 0, 0xffff);
        capsule const enable = capsule{0x7f, 0}.dword(11, 0x14).dword(12, 0x00460001);
        response r = co_await admin.run(enable);
        CHECK(r.status == 0x191);
        outcome o = co_await authenticate(admin, {group, wants_proof, true});
        CHECK(o.is_accepted);
        CHECK(o.is_proven == wants_proof);
        r = co_await admin.run(enable);
        CHECK(r.status == 0);
        // An I/O queue of somebody who knows the names only.
        host_queue queue{io};
        co_await open(queue, t.local_endpoint(), 1, id);
        r = co_await queue.run(capsule{0x00, 1});
        CHECK(r.status == 0x191);
        o = co_await authenticate(queue, {group, wants_proof, true});
        CHECK(o.is_accepted);
        r = co_await queue.run(capsule{0x00, 1});
        CHECK(r.status == 0);
        co_await end(io, t);
    });
}

TEST_CASE("nvme: every hash and every group prove a host", "[device][nvme][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target t = secretive(io);
        for (std::uint8_t hash = 1; hash <= 3; ++hash) {
            for (std::uint8_t group = 0; group <= 2; ++group) {
                CAPTURE(hash, group);
                host_queue admin{io};
                co_await open(admin, t.local_endpoint(), 0, 0xffff);
                outcome const o = co_await authenticate(admin, {group, true, true, hash});
                CHECK(o.is_accepted);
                CHECK(o.is_proven);
                admin.connection().close();
            }
        }
        co_await end(io, t);
    });
}

TEST_CASE("nvme: a host authenticates again while it goes on", "[device][nvme][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target t = secretive(io);
        host_queue admin{io};
        co_await open(admin, t.local_endpoint(), 0, 0xffff);
        capsule const enable = capsule{0x7f, 0}.dword(11, 0x14).dword(12, 0x00460001);
        for (bool const is_again : {false, true, true}) {
            choice how{1, true, true};
            how.goes_on = is_again;
            outcome const o = co_await authenticate(admin, how);
            CHECK(o.is_accepted);
            CHECK(o.is_proven);
            response const r = co_await admin.run(enable);
            CHECK(r.status == 0);
        }
        co_await end(io, t);
    });
}

TEST_CASE(
    "nvme: a host with a wrong secret is rejected, and disconnected", "[device][nvme][any-device]"
) {
    auto const group = GENERATE(std::uint8_t{0}, std::uint8_t{1});
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target t = secretive(io);
        host_queue admin{io};
        co_await open(admin, t.local_endpoint(), 0, 0xffff);
        outcome const o = co_await authenticate(admin, {group, false, false});
        CHECK_FALSE(o.is_accepted);
        co_await admin.connection().async_wait_disconnected(awaiting);
        CHECK(t.statistics().refused == 1);
        co_await end(io, t);
    });
}

TEST_CASE(
    "nvme: a host that does not authenticate ends after connect_timeout, and is reported once",
    "[device][nvme][any-device]"
) {
    // The keep-alive time is of hosts that have authenticated.
    auto const keep_alive_ms = GENERATE(1U, 0xffffffffU);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options soon;
        soon.connect_timeout = 2s;
        std::vector<std::string> said;
        soon.on_event = [&](std::string const& message) { said.push_back(message); };
        nvme::target t = secretive(io, soon);
        host_queue silent{io};
        error_code const ec = co_await silent.open(t.local_endpoint(), 0);
        REQUIRE_FALSE(ec);
        response const r =
            co_await silent.run(silent.connect_command(0, 0xffff, disk_nqn, host_nqn, keep_alive_ms)
            );
        REQUIRE(r.status == 0);
        co_await silent.connection().async_wait_disconnected(awaiting);
        co_await wait_for_no_queue(io, t);
        CHECK(t.statistics().refused == 1);
        CHECK(t.statistics().keep_alive_expired == 0);
        CHECK(t.statistics().controllers == 0);
        REQUIRE(said.size() == 1);
        CHECK(said[0].ends_with(": did not authenticate within 2000 ms"));
        co_await end(io, t);
    });
}

TEST_CASE(
    "nvme: hosts that do not authenticate do not keep out one that does",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options few;
        few.connections_max = 4;
        few.io_queues_max = 1;
        nvme::target t = secretive(io, few);
        std::vector<std::unique_ptr<host_queue>> silent;
        for (int i = 0; i < 3; ++i) {
            silent.push_back(std::make_unique<host_queue>(io));
            co_await open(*silent.back(), t.local_endpoint(), 0, 0xffff);
        }
        host_queue admin{io};
        co_await open(admin, t.local_endpoint(), 0, 0xffff);
        outcome const o = co_await authenticate(admin, {std::uint8_t{0}, false, true});
        CHECK(o.is_accepted);
        co_await silent[0]->connection().async_wait_disconnected(awaiting);
        CHECK(t.statistics().refused == 1);
        // More silent ones end each other, and not the host.
        for (int i = 0; i < 5; ++i) {
            silent.push_back(std::make_unique<host_queue>(io));
            co_await open(*silent.back(), t.local_endpoint(), 0, 0xffff);
        }
        response const alive =
            co_await admin.run(capsule{0x7f, 0}.dword(11, 0x14).dword(12, 0x00460001));
        CHECK(alive.status == 0);
        CHECK(t.statistics().queues == 3);
        CHECK(t.statistics().refused == 6);
        co_await end(io, t);
    });
}

// Linux waits a minute for each completion that does not come.
TEST_CASE(
    "nvme: every host with a wrong secret is told so before it ends", "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target t = secretive(io);
        int told = 0;
        constexpr int hosts = 100;
        for (int i = 0; i < hosts; ++i) {
            host_queue admin{io};
            co_await open(admin, t.local_endpoint(), 0, 0xffff);
            outcome const o = co_await authenticate(admin, {std::uint8_t{0}, false, false});
            CHECK_FALSE(o.is_accepted);
            told += o.is_told;
            co_await admin.connection().async_wait_disconnected(awaiting);
        }
        CHECK(told == hosts);
        co_await end(io, t);
    });
}

TEST_CASE(
    "nvme: a host that has no secret with the subsystem is refused", "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target t = secretive(io);
        host_queue admin{io};
        error_code const ec = co_await admin.open(t.local_endpoint(), 0);
        REQUIRE_FALSE(ec);
        response const r =
            co_await admin.run(admin.connect_command(0, 0xffff, disk_nqn, "nqn.other"));
        CHECK(r.status == 0x184);
        co_await end(io, t);
    });
}
