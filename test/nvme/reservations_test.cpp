// Reservations: who may do what under each type, what each command changes, and that the state survives as text and as a
// file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reservation_keeper.hpp"
#include "reservations.hpp"
#include "support/catch.hpp"
#include "support/folder.hpp"

namespace test::reserving {

using namespace rcverbs::nvme::detail;
using type = reservation_type;
using notice = reservation_notice;

namespace {

host_id host(unsigned number) {
    host_id h{};
    h[15] = static_cast<std::byte>(number);
    return h;
}

struct request {
    command what;
    std::vector<std::byte> data;
};
request with_keys(
    std::uint8_t code, std::uint32_t dword10, std::uint64_t first, std::uint64_t second
) {
    request r;
    r.what.code = code;
    r.what.dword[0] = dword10;
    r.data.resize(16);
    store(r.data, 0, first);
    store(r.data, 8, second);
    return r;
}
// Each as its action, and keys.
request add(std::uint64_t key) { return with_keys(opcode::reservation_register, 0, 0, key); }
request remove(std::uint64_t key) { return with_keys(opcode::reservation_register, 1, key, 0); }
request replace(std::uint64_t key, std::uint64_t next) {
    return with_keys(opcode::reservation_register, 2, key, next);
}
request acquire(std::uint64_t key, type t) {
    return with_keys(opcode::reservation_acquire, static_cast<std::uint32_t>(t) << 8, key, 0);
}
request preempt(std::uint64_t key, type t, std::uint64_t others, bool aborts = false) {
    return with_keys(
        opcode::reservation_acquire,
        static_cast<std::uint32_t>(t) << 8 | (aborts ? 2U : 1U),
        key,
        others
    );
}
request release(std::uint64_t key, type t) {
    return with_keys(opcode::reservation_release, static_cast<std::uint32_t>(t) << 8, key, 0);
}
request clear(std::uint64_t key) { return with_keys(opcode::reservation_release, 1, key, 0); }

reservations::outcome run(reservations& r, unsigned number, request const& what) {
    return r.execute(what.what, host(number), what.data, true);
}
status code_of(reservations& r, unsigned number, request const& what) {
    return run(r, number, what).code;
}

struct reported {
    std::uint32_t generation = 0;
    unsigned type = 0;
    bool is_kept = false;
    std::vector<std::pair<unsigned, std::uint64_t>> registrants;  // host, key
    std::vector<unsigned> holders;
};
reported report(reservations const& r) {
    std::vector<std::byte> const all = r.report();
    reported out;
    out.generation = load<std::uint32_t>(all, 0);
    out.type = static_cast<unsigned>(all[4]);
    out.is_kept = all[9] != std::byte{0};
    std::size_t const count = load<std::uint16_t>(all, 5);
    REQUIRE(all.size() == 64 * (1 + count));
    for (std::size_t i = 1; i <= count; ++i) {
        auto const one = std::span{all}.subspan(64 * i, 64);
        CHECK(load<std::uint16_t>(one, 0) == 0xffff);
        auto const number = static_cast<unsigned>(one[31]);
        out.registrants.emplace_back(number, load<std::uint64_t>(one, 8));
        if (one[2] != std::byte{0}) out.holders.push_back(number);
    }
    return out;
}

// 1 holds a reservation, 2 is registered, 3 is not.
reservations held(type t) {
    reservations r;
    REQUIRE(code_of(r, 1, add(11)) == status::success);
    REQUIRE(code_of(r, 2, add(22)) == status::success);
    REQUIRE(code_of(r, 1, acquire(11, t)) == status::success);
    return r;
}

// The number of registrants.
std::size_t report_of(reservation_keeper const& k) { return load<std::uint16_t>(k.report(), 5); }

bool was_told(reservations::outcome const& o, unsigned number, notice what) {
    return std::ranges::any_of(o.notices, [&](auto const& n) {
        return n.host == host(number) && n.what == what;
    });
}

}  // namespace

// Source: Base Specification 2.0, the figure of commands in the presence of a reservation.
TEST_CASE("reservations: each type lets in whom it should", "[nvme]") {
    struct row {
        type held;
        // Whether a registrant that is not the holder, and another host, may read and write.
        bool registrant_reads, registrant_writes, other_reads, other_writes;
    };
    for (row const& r :
         {row{type::write_exclusive, true, false, true, false},
          {type::exclusive_access, false, false, false, false},
          {type::write_exclusive_registrants_only, true, true, true, false},
          {type::exclusive_access_registrants_only, true, true, false, false},
          {type::write_exclusive_all_registrants, true, true, true, false},
          {type::exclusive_access_all_registrants, true, true, false, false}}) {
        INFO("type " << static_cast<int>(r.held));
        reservations const now = held(r.held);
        CHECK(!now.conflicts(host(1), access_kind::read));
        CHECK(!now.conflicts(host(1), access_kind::write));
        CHECK(now.conflicts(host(2), access_kind::read) == !r.registrant_reads);
        CHECK(now.conflicts(host(2), access_kind::write) == !r.registrant_writes);
        CHECK(now.conflicts(host(3), access_kind::read) == !r.other_reads);
        CHECK(now.conflicts(host(3), access_kind::write) == !r.other_writes);
        bool const is_of_all = r.held >= type::write_exclusive_all_registrants;
        CHECK(report(now).holders == (is_of_all ? std::vector{1U, 2U} : std::vector{1U}));
    }
    reservations const none;
    CHECK(!none.conflicts(host(3), access_kind::write));
}

TEST_CASE("reservations: hosts register, change and remove their keys", "[nvme]") {
    reservations r;
    CHECK(code_of(r, 1, add(11)) == status::success);
    CHECK(code_of(r, 1, add(11)) == status::success);
    CHECK(code_of(r, 1, add(12)) == status::reservation_conflict);
    CHECK(code_of(r, 1, replace(99, 12)) == status::reservation_conflict);
    CHECK(code_of(r, 2, replace(0, 22)) == status::reservation_conflict);
    CHECK(code_of(r, 1, replace(11, 12)) == status::success);
    request any = replace(99, 13);
    any.what.dword[0] |= 1U << 3;  // ignore existing key
    CHECK(code_of(r, 1, any) == status::success);
    CHECK(code_of(r, 2, any) == status::reservation_conflict);
    CHECK(report(r).registrants == std::vector{std::pair{1U, std::uint64_t{13}}});
    CHECK(report(r).generation == 4);
    CHECK(code_of(r, 1, remove(11)) == status::reservation_conflict);
    CHECK(code_of(r, 1, remove(13)) == status::success);
    CHECK(report(r).registrants.empty());
    CHECK(code_of(r, 1, remove(13)) == status::reservation_conflict);
    CHECK(code_of(r, 1, with_keys(opcode::reservation_register, 3, 0, 1)) == status::invalid_field);
    request short_one = add(1);
    short_one.data.resize(15);
    CHECK(code_of(r, 1, short_one) == status::sgl_data_length_invalid);
    for (unsigned i = 0; i < reservations::registrants_max; ++i) {
        host_id h = host(i & 0xff);
        h[0] = std::byte{1};
        request const one = add(i);
        REQUIRE(r.execute(one.what, h, one.data, true).code == status::success);
    }
    CHECK(code_of(r, 3, add(3)) == status::capacity_exceeded);
}

TEST_CASE("reservations: one host holds, and releases what it holds", "[nvme]") {
    reservations r = held(type::write_exclusive);
    CHECK(code_of(r, 1, acquire(11, type::write_exclusive)) == status::success);
    CHECK(code_of(r, 1, acquire(11, type::exclusive_access)) == status::reservation_conflict);
    CHECK(code_of(r, 2, acquire(22, type::write_exclusive)) == status::reservation_conflict);
    CHECK(code_of(r, 3, acquire(0, type::write_exclusive)) == status::reservation_conflict);
    CHECK(code_of(r, 1, acquire(99, type::write_exclusive)) == status::reservation_conflict);
    CHECK(code_of(r, 1, acquire(11, type::none)) == status::invalid_field);
    CHECK(code_of(r, 1, acquire(11, static_cast<type>(7))) == status::invalid_field);
    request any = acquire(11, type::write_exclusive);
    any.what.dword[0] |= 1U << 3;
    CHECK(code_of(r, 1, any) == status::invalid_field);
    CHECK(report(r).generation == 2);

    // Of one that does not hold it: success, and nothing changes.
    CHECK(code_of(r, 2, release(22, type::write_exclusive)) == status::success);
    CHECK(report(r).type == 1);
    CHECK(code_of(r, 1, release(11, type::exclusive_access)) == status::invalid_field);
    CHECK(code_of(r, 1, release(99, type::write_exclusive)) == status::reservation_conflict);
    CHECK(run(r, 1, release(11, type::write_exclusive)).notices.empty());
    CHECK(report(r).type == 0);
    CHECK(report(r).registrants.size() == 2);

    // Of registrants only: the others hear that it is over. So with the holder's registration.
    r = held(type::exclusive_access_registrants_only);
    CHECK(was_told(
        run(r, 1, release(11, type::exclusive_access_registrants_only)),
        2,
        notice::reservation_released
    ));
    r = held(type::write_exclusive_registrants_only);
    CHECK(was_told(run(r, 1, remove(11)), 2, notice::reservation_released));
    CHECK(report(r).type == 0);
    // Of all registrants: it lasts until the last one leaves.
    r = held(type::write_exclusive_all_registrants);
    CHECK(code_of(r, 1, remove(11)) == status::success);
    CHECK(report(r).type == 5);
    CHECK(code_of(r, 2, remove(22)) == status::success);
    CHECK(report(r).type == 0);

    r = held(type::write_exclusive);
    auto const cleared = run(r, 2, clear(22));
    CHECK(cleared.code == status::success);
    CHECK(was_told(cleared, 1, notice::reservation_preempted));
    CHECK(report(r).type == 0);
    CHECK(report(r).registrants.empty());
    CHECK(report(r).generation == 3);
}

TEST_CASE("reservations: a host takes over from another one", "[nvme]") {
    reservations r = held(type::write_exclusive);
    // A key that nobody has; none; one that is not registered.
    CHECK(code_of(r, 2, preempt(22, type::write_exclusive, 99)) == status::reservation_conflict);
    CHECK(code_of(r, 2, preempt(22, type::write_exclusive, 0)) == status::invalid_field);
    CHECK(code_of(r, 3, preempt(0, type::write_exclusive, 11)) == status::reservation_conflict);
    auto const done = run(r, 2, preempt(22, type::exclusive_access, 11, true));
    CHECK(done.code == status::success);
    CHECK(done.preempted == std::vector{host(1)});
    CHECK(was_told(done, 1, notice::registration_preempted));
    CHECK(report(r).type == 2);
    CHECK(report(r).holders == std::vector{2U});
    CHECK(report(r).registrants.size() == 1);
    CHECK(report(r).generation == 3);
    CHECK(r.conflicts(host(1), access_kind::read));

    // The holder changes its own type, and stays registered.
    CHECK(code_of(r, 2, preempt(22, type::write_exclusive, 22)) == status::success);
    CHECK(report(r).type == 1);
    CHECK(report(r).registrants.size() == 1);

    // Others' registrations, without the reservation.
    r = held(type::write_exclusive);
    REQUIRE(code_of(r, 3, add(33)) == status::success);
    CHECK(code_of(r, 2, preempt(22, type::exclusive_access, 33)) == status::success);
    CHECK(report(r).type == 1);
    CHECK(report(r).holders == std::vector{1U});
    CHECK(report(r).registrants.size() == 2);

    // Of all registrants, key 0 stands for all others.
    r = held(type::write_exclusive_all_registrants);
    REQUIRE(code_of(r, 3, add(33)) == status::success);
    CHECK(
        run(r, 3, preempt(33, type::write_exclusive, 0)).preempted == std::vector{host(1), host(2)}
    );
    CHECK(report(r).holders == std::vector{3U});
    // Those that stay hear that theirs is over.
    r = held(type::write_exclusive_registrants_only);
    REQUIRE(code_of(r, 3, add(33)) == status::success);
    auto const other_type = run(r, 3, preempt(33, type::write_exclusive, 11));
    CHECK(was_told(other_type, 2, notice::reservation_released));
    CHECK(was_told(other_type, 1, notice::registration_preempted));
}

TEST_CASE("reservations: random commands keep what is true of all states", "[nvme]") {
    std::mt19937 random{7};
    auto const pick = [&random](unsigned count) {
        return std::uniform_int_distribution<unsigned>{0, count - 1}(random);
    };
    reservations r;
    for (int i = 0; i < 200'000; ++i) {
        unsigned const number = 1 + pick(4);
        auto const t = static_cast<type>(pick(8));
        request const what = [&] {
            switch (pick(8)) {
            case 0: return add(pick(3));
            case 1: return remove(pick(3));
            case 2: return replace(pick(3), pick(3));
            case 3: return acquire(pick(3), t);
            case 4: return preempt(pick(3), t, pick(4), pick(2) == 0);
            case 5: return release(pick(3), t);
            case 6: return clear(pick(3));
            default: return add(pick(3));
            }
        }();
        reservations const before = r;
        auto const done = run(r, number, what);
        reported const now = report(r);
        if (done.code != status::success) REQUIRE(r == before);
        // Whoever holds is registered, and somebody holds what is held.
        REQUIRE((now.type == 0) == now.holders.empty());
        REQUIRE((now.type == 0 || now.type >= 5 || now.holders.size() == 1));
        for (unsigned const each : now.holders) {
            REQUIRE(!r.conflicts(host(each), access_kind::read));
            REQUIRE(!r.conflicts(host(each), access_kind::write));
        }
        for (unsigned each = 1; each <= 5; ++each) {
            // Who may not read may not write.
            if (r.conflicts(host(each), access_kind::read))
                REQUIRE(r.conflicts(host(each), access_kind::write));
        }
        for (auto const& each : done.preempted)
            REQUIRE(std::ranges::none_of(now.registrants, [&](auto const& one) {
                return host(one.first) == each;
            }));
        REQUIRE(now.generation >= report(before).generation);
        r.keep(true);
        REQUIRE(reservations::from_text(r.to_text()) == r);
    }
}

TEST_CASE("reservations: text that is not theirs is refused", "[nvme]") {
    reservations r = held(type::write_exclusive);
    std::string const text = r.to_text();
    REQUIRE(reservations::from_text(text));
    for (std::size_t size = 0; size + 1 < text.size(); ++size)
        CHECK(!reservations::from_text(text.substr(0, size)));
    auto const with = [&text](std::string const& from, std::string const& to) {
        std::string other = text;
        other.replace(other.find(from), from.size(), to);
        return other;
    };
    CHECK(!reservations::from_text(with("type 1", "type 9")));
    CHECK(!reservations::from_text(with("reservations 1", "reservations 2")));
    CHECK(!reservations::from_text(with("registrant", "guest")));
    // A holder that is not registered.
    CHECK(!reservations::from_text(with("holder 00", "holder 01")));
    CHECK(!reservations::from_text(with("end", "registrant 01 1\nend")));
}

TEST_CASE("reservations: what is to be kept is in the file, and nothing else", "[nvme]") {
    test::folder const here;
    auto const file = here / "disk.reservations";
    uuid_bytes disk{};
    disk[0] = std::byte{1};
    request keep = add(11);
    keep.what.dword[0] |= 3U << 30;
    {
        auto const keeper = reservation_keeper::open(file, disk);
        CHECK(reservation_keeper::open(file, disk) == keeper);
        CHECK(keeper->execute(keep.what, host(1), keep.data).code == status::success);
        request const mine = acquire(11, type::write_exclusive);
        CHECK(keeper->execute(mine.what, host(1), mine.data).code == status::success);
        CHECK(keeper->conflicts(host(2), access_kind::write));
    }
    {
        auto const keeper = reservation_keeper::open(file, disk);
        CHECK(keeper->is_kept());
        CHECK(keeper->conflicts(host(2), access_kind::write));
        CHECK(!keeper->conflicts(host(1), access_kind::write));
        uuid_bytes other{};
        CHECK_THROWS_WITH(
            reservation_keeper::open(file, other), test::ContainsSubstring("another disk")
        );
        CHECK(keeper->keep(false));
        CHECK(keeper->conflicts(host(2), access_kind::write));
    }
    {
        auto const keeper = reservation_keeper::open(file, disk);
        CHECK(!keeper->is_kept());
        CHECK(!keeper->conflicts(host(2), access_kind::write));
        CHECK(report_of(*keeper) == 0);
    }
    std::ofstream{file} << "something else\n";
    CHECK_THROWS_WITH(
        reservation_keeper::open(file, disk), test::ContainsSubstring("it holds no reservations")
    );
    CHECK_THROWS_WITH(
        reservation_keeper::open(here / "none" / "file", disk),
        test::ContainsSubstring("No such file")
    );
}

TEST_CASE("reservations: a change that cannot be written is not made", "[nvme]") {
    test::folder const here;
    auto const file = here / "disk.reservations";
    auto const keeper = reservation_keeper::open(file, uuid_bytes{});
    // A folder in the place of the new file.
    std::filesystem::create_directories(here / "disk.reservations.new");
    request keep = add(11);
    keep.what.dword[0] |= 3U << 30;
    CHECK(keeper->execute(keep.what, host(1), keep.data).code == status::internal_error);
    CHECK(report_of(*keeper) == 0);
    std::filesystem::remove(here / "disk.reservations.new");
    CHECK(keeper->execute(keep.what, host(1), keep.data).code == status::success);
    CHECK(report_of(*keeper) == 1);
}

}  // namespace test::reserving
