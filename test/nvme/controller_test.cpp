// The controller's answers to admin commands, byte by byte, without a connection.
#include "controller.hpp"

#include "authentication.hpp"
#include "report_budget.hpp"

#include <string>

#include <rcverbs/nvme/memory_store.hpp>

#include "support/catch.hpp"

using namespace rcverbs;
using namespace rcverbs::nvme::detail;
using nvme::memory_store;

namespace {

constexpr char const* nqn = "nqn.test:disks";

std::shared_ptr<subsystem> disks(std::initializer_list<std::uint32_t> ids) {
    nvme::subsystem_options o;
    o.nqn = nqn;
    for (std::uint32_t const id : ids) {
        nvme::namespace_options n;
        n.id = id;
        n.store = std::make_shared<memory_store>(1U << 20, 512);
        o.namespaces.push_back(n);
    }
    return std::make_shared<subsystem>(std::move(o));
}

/// A host's side of a controller.
struct host {
    explicit host(std::shared_ptr<subsystem> to)
        : target{7, std::move(to), {"nqn.host", {}}, controller_terms{}} {}

    std::optional<completion> run(command c, std::size_t data_bytes = 0) {
        out.assign(data_bytes, std::byte{0});
        return target.execute(c, {}, out);
    }
    completion must(command c, std::size_t data_bytes = 0) {
        auto const done = run(c, data_bytes);
        REQUIRE(done);
        return *done;
    }
    void enable() {
        command set;
        set.code = opcode::fabrics;
        set.fabrics = fabrics_type::property_set;
        set.dword = {0, 0x14, 0x00460001, 0, 0, 0};
        CHECK(must(set).code == status::success);
    }
    std::uint64_t property(std::uint32_t offset, bool is_wide) {
        command get;
        get.code = opcode::fabrics;
        get.fabrics = fabrics_type::property_get;
        get.dword = {is_wide, offset, 0, 0, 0, 0};
        return must(get).result;
    }
    status identify(std::uint8_t what, std::uint32_t id, std::size_t bytes = 4096) {
        command c;
        c.code = opcode::identify;
        c.namespace_id = id;
        c.dword[0] = what;
        return must(c, bytes).code;
    }
    status log(std::uint8_t page, std::size_t bytes, std::uint64_t offset = 0) {
        command c;
        c.code = opcode::get_log_page;
        c.dword = {
            page | static_cast<std::uint32_t>(bytes / 4 - 1) << 16,
            0,
            static_cast<std::uint32_t>(offset),
            0,
            0,
            0};
        return must(c, bytes).code;
    }
    std::uint32_t word(std::size_t at) const { return load<std::uint32_t>(out, at); }

    controller target;
    std::vector<std::byte> out;
};

command of(std::uint8_t code) {
    command c;
    c.code = code;
    return c;
}

command event_request(std::uint16_t id) {
    command c = of(opcode::async_event);
    c.id = id;
    return c;
}

}  // namespace

TEST_CASE("nvme: properties report the controller's capabilities, and enable it", "[nvme]") {
    host h{disks({1})};
    std::uint64_t const capabilities = h.property(0, true);
    CHECK((capabilities & 0xffff) == 127);  // queue entries, 0-based
    CHECK((capabilities >> 37 & 1) == 1);  // the NVM command set
    CHECK(h.property(8, false) == 0x00010400);
    CHECK(h.property(0x1c, false) == 0);
    CHECK(h.must(of(opcode::keep_alive)).code == status::command_sequence);
    h.enable();
    CHECK(h.property(0x1c, false) == 1);
    CHECK(h.must(of(opcode::keep_alive)).code == status::success);
    command shut_down;
    shut_down.code = opcode::fabrics;
    shut_down.dword = {0, 0x14, 0x00464001, 0, 0, 0};
    h.must(shut_down);
    CHECK(h.target.is_shutting_down());
    CHECK(h.property(0x1c, false) == 5);
    h.target.on_shut_down(true);
    CHECK(h.property(0x1c, false) == 9);
    // Asked once more, it has been done.
    h.must(shut_down);
    CHECK_FALSE(h.target.is_shutting_down());
    command other = shut_down;
    other.dword[1] = 0x1c;
    CHECK(h.must(other).code == status::invalid_field);
}

TEST_CASE("nvme: a configuration that the controller cannot work with is fatal", "[nvme]") {
    std::uint32_t const right = 0x00460001;
    std::uint32_t const wrong[] = {
        right | 1U << 4,  // another command set
        right | 1U << 7,  // pages of 8 KiB
        right | 1U << 11,  // another arbitration
        right | 1U << 16,  // entries of 128 bytes
        right & ~(4U << 20)};
    for (std::uint32_t const value : wrong) {
        host h{disks({1})};
        command set = of(opcode::fabrics);
        set.fabrics = fabrics_type::property_set;
        set.dword = {0, 0x14, value, 0, 0, 0};
        CHECK(h.must(set).code == status::success);
        CHECK(h.property(0x1c, false) == 2);
        CHECK(h.must(of(opcode::keep_alive)).code == status::command_sequence);
        // It is left by a reset.
        set.dword[2] = 0;
        h.must(set);
        h.enable();
        CHECK(h.property(0x1c, false) == 1);
    }
}

TEST_CASE("nvme: identify describes the controller and its namespaces", "[nvme]") {
    host h{disks({1, 3, 9})};
    h.enable();
    REQUIRE(h.identify(1, 0) == status::success);
    auto const* const text = reinterpret_cast<char const*>(h.out.data());
    CHECK(std::string{text + 24, 7} == "rcverbs");
    CHECK(std::string{text + 768} == nqn);
    CHECK(h.word(78) % 65536 == 7);  // the controller's number
    CHECK(h.word(1792) == (64 + 4096) / 16);  // the capsule of a command, in 16 bytes
    REQUIRE(h.identify(2, 1) == status::success);
    CHECK(h.word(0) == 3);
    CHECK(h.word(4) == 9);
    CHECK(h.word(8) == 0);
    REQUIRE(h.identify(0, 3) == status::success);
    CHECK(h.word(0) == 2048);  // blocks
    CHECK((h.word(128) >> 16 & 0xff) == 9);  // 2^9 bytes each
    REQUIRE(h.identify(0, 4) == status::success);
    CHECK(h.word(0) == 0);
    CHECK(h.identify(0, 5000) == status::invalid_namespace);
    CHECK(h.identify(3, 4) == status::invalid_namespace);
    CHECK(h.identify(0x55, 1) == status::invalid_field);
    command zoned = of(opcode::identify);
    zoned.dword = {6, 2U << 24, 0, 0, 0, 0};
    CHECK(h.must(zoned, 4096).code == status::invalid_field);
    CHECK(h.identify(1, 0, 512) == status::sgl_data_length_invalid);
}

TEST_CASE("nvme: log pages are read in parts, and unknown ones refused", "[nvme]") {
    host h{disks({1})};
    h.enable();
    CHECK(h.log(2, 512) == status::success);
    CHECK(h.out[3] == std::byte{100});  // the spare capacity in percent
    CHECK(h.log(5, 4096) == status::success);
    CHECK(h.word(4UL * opcode::identify) == 1);
    CHECK(h.log(5, 64, 1024) == status::success);
    CHECK(h.word(4UL * opcode::write) == 3);
    CHECK(h.log(5, 64, 4096) == status::success);
    CHECK(h.word(0) == 0);
    CHECK(h.log(5, 64, 4100) == status::invalid_field);
    CHECK(h.log(5, 64, 2) == status::invalid_field);
    CHECK(h.log(0x70, 1024) == status::invalid_log_page);
    CHECK(h.log(0x99, 512) == status::invalid_log_page);
    // There is one SMART log for all namespaces, no list of UUIDs, and no index of offsets.
    command smart = of(opcode::get_log_page);
    smart.dword[0] = 2 | 127U << 16;
    for (std::uint32_t const id : {0U, 0xffffffffU}) {
        smart.namespace_id = id;
        CHECK(h.must(smart, 512).code == status::success);
    }
    for (std::uint32_t const id : {1U, 9U}) {
        smart.namespace_id = id;
        CHECK(h.must(smart, 512).code == status::invalid_field);
    }
    smart.namespace_id = 0;
    for (std::uint32_t const index : {1U, 1U << 23}) {
        smart.dword[4] = index;
        CHECK(h.must(smart, 512).code == status::invalid_field);
    }
    command longer = of(opcode::get_log_page);
    longer.dword[0] = 2 | 127U << 16;
    CHECK(h.must(longer, 256).code == status::sgl_data_length_invalid);
}

TEST_CASE("nvme: command sets and UUIDs that the controller does not have are refused", "[nvme]") {
    host h{disks({1})};
    h.enable();
    for (std::uint8_t const code :
         {opcode::identify, opcode::get_log_page, opcode::get_features, opcode::set_features}) {
        INFO(static_cast<int>(code));
        command c = of(code);
        c.dword[0] = 1;  // the controller, the error log, arbitration
        if (code == opcode::get_log_page) c.dword[0] |= 15U << 16;
        if (code == opcode::get_features || code == opcode::set_features) c.dword[0] = 0x0f;
        CHECK(h.must(c, 4096).code == status::success);
        c.dword[4] = 1;
        CHECK(h.must(c, 4096).code == status::invalid_field);
        c.dword[4] = 1U << 24;
        bool const has_command_set = code == opcode::get_log_page;
        CHECK(h.must(c, 4096).code == (has_command_set ? status::invalid_field : status::success));
    }
}

TEST_CASE("nvme: the error log keeps the newest errors, and counts all of them", "[nvme]") {
    host h{disks({1})};
    h.enable();
    CHECK(h.log(1, 4096) == status::success);
    CHECK(h.word(0) == 0);
    for (std::uint16_t i = 1; i <= 70; ++i) {
        command c = of(opcode::read);
        c.id = i;
        c.namespace_id = 1;
        c.dword[0] = 5000U + i;
        h.target.note_error(2, c, status::lba_range);
    }
    h.target.note_error(0, of(opcode::identify), status::invalid_field);
    CHECK(h.log(1, 4096) == status::success);
    CHECK(h.word(0) == 71);
    CHECK(h.word(8) == 0);  // the admin queue
    CHECK(h.word(12) % 65536 == 0x002 << 1);
    CHECK(h.word(16) == 0);
    CHECK(h.word(64) == 70);
    CHECK(h.word(64 + 8) == (2 | 70U << 16));
    CHECK(h.word(64 + 12) == (0x080U << 1 | 0xffff0000));
    CHECK(h.word(64 + 16) == 5070);
    CHECK(h.word(64 + 24) == 1);
    CHECK(h.word(63 * 64) == 8);  // older ones are gone
    CHECK(h.log(2, 512) == status::success);
    CHECK(h.word(176) == 71);
    // They are the subsystem's: the controller of a host that comes again has them, too.
    h.target.of().log().written_bytes = 512'000;
    auto const same = std::shared_ptr<subsystem>{std::shared_ptr<void>{}, &h.target.of()};
    host again{same};
    again.enable();
    CHECK(again.log(1, 64) == status::success);
    CHECK(again.word(0) == 71);
    CHECK(again.log(2, 512) == status::success);
    CHECK(again.word(48) == 1);
}

TEST_CASE("nvme: a change of namespaces raises one event until its log is read", "[nvme]") {
    host h{disks({1, 2})};
    h.enable();
    command wants = of(opcode::set_features);
    wants.dword = {0x0b, 1U << 8, 0, 0, 0, 0};
    CHECK_FALSE(h.target.on_namespace_change(2));  // not asked for
    CHECK(h.must(wants).code == status::success);
    CHECK_FALSE(h.run(event_request(40)));
    CHECK_FALSE(h.run(event_request(41)));
    auto const told = h.target.on_namespace_change(2);
    REQUIRE(told);
    CHECK(told->command_id == 40);
    CHECK(told->what.result == 0x040002);
    CHECK_FALSE(h.target.on_namespace_change(1));
    CHECK(h.log(4, 4096) == status::success);
    CHECK(h.word(0) == 1);
    CHECK(h.word(4) == 2);
    CHECK(h.word(8) == 0);
    auto const again = h.target.on_namespace_change(1);
    REQUIRE(again);
    CHECK(again->command_id == 41);
    // Without a request the event waits for one.
    CHECK(h.log(4, 4096) == status::success);
    CHECK_FALSE(h.target.on_namespace_change(2));
    auto const late = h.run(event_request(42));
    REQUIRE(late);
    CHECK(late->result == 0x040002);
}

TEST_CASE(
    "nvme: a host hears how the groups of its disks are reached, and of each change", "[nvme]"
) {
    auto const options = [](std::map<std::uint32_t, nvme::ana_state> states) {
        nvme::subsystem_options o;
        o.nqn = nqn;
        o.ana_states = std::move(states);
        for (std::uint32_t const id : {1U, 2U, 3U}) {
            nvme::namespace_options n;
            n.id = id;
            n.ana_group = id == 2 ? 7 : 1;
            n.store = std::make_shared<memory_store>(1U << 20, 512);
            o.namespaces.push_back(n);
        }
        return o;
    };
    auto const served = std::make_shared<subsystem>(options({{7, nvme::ana_state::non_optimized}}));
    host h{served};
    h.enable();
    REQUIRE(h.identify(1, 0) == status::success);
    CHECK((h.word(76) & 0xff) == 0x0a);  // several controllers, ANA
    CHECK((h.word(92) & 1U << 11) != 0);  // its events
    CHECK(h.word(340) >> 16 == (10 | 0x1f << 8));  // seconds of a change, the states
    CHECK(h.word(344) == 32);
    CHECK(h.word(348) == 32);
    REQUIRE(h.identify(0, 2) == status::success);
    CHECK(h.word(92) == 7);

    // The number of changes, the groups, and of each its number, namespaces and state.
    REQUIRE(h.log(0x0c, 8192) == status::success);
    CHECK(h.word(0) == 0);
    CHECK(h.word(8) == 2);
    CHECK(h.word(16) == 1);
    CHECK(h.word(20) == 2);
    CHECK((h.word(32) & 0xff) == 1);
    CHECK(h.word(48) == 1);
    CHECK(h.word(52) == 3);
    CHECK(h.word(56) == 7);
    CHECK(h.word(60) == 1);
    CHECK((h.word(72) & 0xff) == 2);
    CHECK(h.word(88) == 2);

    command wants = of(opcode::set_features);
    wants.dword = {0x0b, 1U << 8 | 1U << 11, 0, 0, 0, 0};
    CHECK(served->set_ana_state(7, nvme::ana_state::inaccessible));
    CHECK_FALSE(h.target.on_ana_change());  // not asked for
    CHECK(h.must(wants).code == status::success);
    CHECK_FALSE(h.run(event_request(40)));
    CHECK_FALSE(h.run(event_request(41)));
    CHECK_FALSE(h.run(event_request(42)));
    CHECK_FALSE(served->set_ana_state(7, nvme::ana_state::inaccessible));
    auto const told = h.target.on_ana_change();
    REQUIRE(told);
    CHECK(told->command_id == 40);
    CHECK(told->what.result == 0x0c0302);
    // One event until its log is read; those of namespaces are others.
    CHECK_FALSE(h.target.on_ana_change());
    auto const other = h.target.on_namespace_change(1);
    REQUIRE(other);
    CHECK(other->what.result == 0x040002);
    // Without the namespaces.
    command brief = of(opcode::get_log_page);
    brief.dword[0] = 0x0c | 1U << 8 | (96 / 4 - 1) << 16;
    CHECK(h.must(brief, 96).code == status::success);
    CHECK(h.word(0) == 1);
    CHECK(h.word(20) == 0);
    CHECK(h.word(48) == 7);
    CHECK(h.word(56) == 1);  // its last change
    CHECK((h.word(64) & 0xff) == 3);
    CHECK(h.target.on_ana_change());

    // A new list of subsystems: group 7 is as it is without a word, group 1 has changed, and namespace 3 its group.
    nvme::subsystem_options next = options({{1, nvme::ana_state::persistent_loss}});
    for (std::uint32_t i = 0; i < 3; ++i)
        next.namespaces[i].store = served->find(i + 1)->options.store;
    next.namespaces[2].ana_group = 7;
    subsystem replacing{next};
    auto const changed = served->exchange(replacing);
    CHECK(changed.has_ana);
    CHECK(changed.namespaces == std::vector<std::uint32_t>{3});
    CHECK(served->find(1)->group->state == nvme::ana_state::persistent_loss);
    CHECK(served->find(3)->group == served->find(2)->group);
    CHECK(served->find(2)->group->state == nvme::ana_state::optimized);
    CHECK(served->ana().changes == 3);

    CHECK_THROWS_AS(
        served->set_ana_state(0, nvme::ana_state::optimized), boost::system::system_error
    );
    CHECK_THROWS_AS(
        served->set_ana_state(33, nvme::ana_state::optimized), boost::system::system_error
    );
    CHECK_THROWS_AS(
        subsystem{options({{33, nvme::ana_state::optimized}})}, boost::system::system_error
    );
}

TEST_CASE("nvme: a host never reaches another disk under a number that it knows", "[nvme]") {
    constexpr std::uint8_t of_namespace = 0;
    constexpr std::uint8_t list = 2;
    constexpr std::uint8_t descriptors = 3;
    auto const served = disks({1, 2});
    host h{served};
    h.enable();
    command wants = of(opcode::set_features);
    wants.dword = {0x0b, 1U << 8, 0, 0, 0, 0};
    CHECK(h.must(wants).code == status::success);
    for (std::uint16_t i = 0; i < 4; ++i) CHECK_FALSE(h.run(event_request(i)));
    auto const before = served->find(1);
    // The host has seen the disk, or, after it has connected again, goes on with it.
    if (GENERATE(true, false)) CHECK(h.identify(descriptors, 1) == status::success);
    else CHECK(h.target.find_for_io(1).of == before);
    CHECK(h.identify(descriptors, 2) == status::success);

    // Each disk gets another UUID; a number keeps its disk if that is put back.
    auto const others = disks({1, 2});
    CHECK(served->exchange(*others).namespaces == std::vector<std::uint32_t>{1, 2});
    CHECK(h.target.find_for_io(1).of == nullptr);
    CHECK(h.target.find_for_io(2).of == nullptr);
    REQUIRE(h.target.on_namespace_change(1));
    CHECK_FALSE(h.target.on_namespace_change(2));
    CHECK(h.identify(descriptors, 1) == status::invalid_namespace);
    CHECK(h.identify(of_namespace, 1) == status::success);
    CHECK(h.word(0) == 0);  // as of a number without a disk
    CHECK(h.target.find_for_io(1).of == nullptr);
    CHECK(h.log(4, 4096) == status::success);

    // The host learns that the old ones are gone, and is told to look again.
    CHECK_FALSE(h.target.take_due_event());
    CHECK(h.identify(list, 0) == status::success);
    CHECK(h.word(0) == 0);
    REQUIRE(h.target.take_due_event());
    CHECK_FALSE(h.target.take_due_event());
    // What it has cached of the old disk is still not for the new one.
    CHECK(h.target.find_for_io(1).of == nullptr);
    CHECK(h.log(4, 4096) == status::success);
    CHECK(h.word(0) == 1);
    CHECK(h.word(4) == 2);
    CHECK(h.identify(list, 0) == status::success);
    CHECK(h.word(0) == 1);
    CHECK(h.word(4) == 2);
    CHECK(h.target.find_for_io(1).of == nullptr);
    CHECK(h.identify(descriptors, 1) == status::success);
    CHECK(h.target.find_for_io(1).of == served->find(1));
    CHECK(h.target.find_for_io(1).of != before);
    CHECK(h.target.find_for_io(2).of == nullptr);
    CHECK_FALSE(h.target.take_due_event());

    // The same disk with another size stays the same disk.
    served->refresh(1);
    CHECK(h.target.find_for_io(1).of != nullptr);
}

namespace {

/// The same disk, whatever the size of its blocks is.
class one_disk final : public nvme::block_store {
public:
    explicit one_disk(std::uint32_t block_bytes, std::uint32_t optimal_io_bytes = 0)
        : block_bytes_{block_bytes},
          optimal_io_bytes_{optimal_io_bytes} {}
    nvme::store_geometry geometry() const override {
        return {1U << 20, block_bytes_, false, false, optimal_io_bytes_};
    }
    std::optional<std::array<std::byte, 16>> uuid() const override {
        std::array<std::byte, 16> all;
        all.fill(std::byte{7});
        return all;
    }
    void start(nvme::store_request& r) override { r.complete({}); }

private:
    std::uint32_t const block_bytes_;
    std::uint32_t const optimal_io_bytes_;
};

std::shared_ptr<subsystem> with_blocks_of(std::uint32_t bytes, std::uint32_t optimal_io_bytes = 0) {
    nvme::subsystem_options o;
    o.nqn = nqn;
    nvme::namespace_options n;
    n.id = 1;
    n.store = std::make_shared<one_disk>(bytes, optimal_io_bytes);
    o.namespaces.push_back(n);
    return std::make_shared<subsystem>(std::move(o));
}

}  // namespace

TEST_CASE("nvme: a host is told the size of requests that a store likes best", "[nvme]") {
    constexpr std::uint8_t namespace_data = 0;
    constexpr std::size_t nows = 72;
    for (auto const& [block, best, said] :
         {std::array{4096U, 4U << 20, 1023U},
          {512U, 65536U, 127U},
          {512U, 32U << 20, 65535U},
          {4096U, 0U, 0U}}) {
        INFO(block << ' ' << best);
        host h{with_blocks_of(block, best)};
        h.enable();
        CHECK(h.identify(namespace_data, 1) == status::success);
        CHECK((h.word(nows) & 0xffff) == said);
    }
    CHECK_THROWS_WITH(with_blocks_of(4096, 6144), test::ContainsSubstring("optimal_io_bytes"));
    CHECK_THROWS_WITH(with_blocks_of(512, 64U << 20), test::ContainsSubstring("optimal_io_bytes"));
}

// What it means by a number of blocks is other bytes.
TEST_CASE(
    "nvme: a host uses a disk with blocks of another size only after it has heard", "[nvme]"
) {
    constexpr std::uint8_t list = 2;
    constexpr std::uint8_t descriptors = 3;
    auto const served = with_blocks_of(4096);
    host h{served};
    h.enable();
    CHECK(h.identify(descriptors, 1) == status::success);
    CHECK(h.target.find_for_io(1).of != nullptr);
    auto const same = with_blocks_of(4096);
    served->exchange(*same);
    CHECK(h.target.find_for_io(1).of != nullptr);
    auto const other = with_blocks_of(512);
    served->exchange(*other);
    CHECK(h.target.find_for_io(1).of == nullptr);
    CHECK(h.identify(descriptors, 1) == status::invalid_namespace);
    CHECK(h.identify(list, 0) == status::success);
    CHECK(h.word(0) == 0);
    CHECK(h.target.find_for_io(1).of == nullptr);
    CHECK(h.identify(list, 0) == status::success);
    CHECK(h.word(0) == 1);
    CHECK(h.identify(descriptors, 1) == status::success);
    CHECK(h.target.find_for_io(1).of != nullptr);
}

TEST_CASE("nvme: a host hears of the limits of a discard", "[nvme]") {
    host h{disks({1})};
    h.enable();
    command c = of(opcode::identify);
    c.dword[0] = 6;
    CHECK(h.must(c, 4096).code == status::success);
    CHECK(h.word(0) == (255U << 24 | 12U << 8));  // DMRL, and WZSL as a power of two of 4 KiB
    CHECK(h.word(4) == 16384);  // DMRSL, in blocks
    CHECK(h.word(8) == 16384);  // DMSL
    CHECK(h.word(12) == 0);
}

TEST_CASE("nvme: more event requests than the controller has room for are refused", "[nvme]") {
    host h{disks({1})};
    h.enable();
    for (std::uint16_t i = 0; i < 4; ++i) CHECK_FALSE(h.run(event_request(i)));
    CHECK(h.must(event_request(4)).code == status::aer_limit_exceeded);
}

TEST_CASE("nvme: features are set and read", "[nvme]") {
    host h{disks({1})};
    h.enable();
    command get = of(opcode::get_features);
    get.dword[0] = 7;
    CHECK(h.must(get).result == 0x000f000f);
    command queues = of(opcode::set_features);
    queues.dword = {7, 0x00030003, 0, 0, 0, 0};
    CHECK(h.must(queues).result == 0x00030003);
    CHECK(h.must(get).result == 0x00030003);
    queues.dword[1] = 0x00ff00ff;
    CHECK(h.must(queues).result == 0x000f000f);
    h.target.io_queues_left = [] { return 2U; };
    CHECK(h.must(queues).result == 0x00010001);
    h.target.io_queues_left = [] { return 0U; };
    CHECK(h.must(queues).result == 0);
    queues.dword[1] = 0xffff;
    CHECK(h.must(queues).code == status::invalid_field);
    queues.dword[1] = 0x00030003;
    h.target.on_queue(true);
    CHECK(h.must(queues).code == status::command_sequence);
    h.target.on_queue(false);
    CHECK(h.must(queues).code == status::success);
    queues.dword[0] |= 1U << 31;
    CHECK(h.must(queues).code == status::feature_not_saveable);
    command saved = get;
    saved.dword[0] |= 2U << 8;
    CHECK(h.must(saved).code == status::invalid_field);
    command events = of(opcode::set_features);
    events.dword = {0x0b, 1U << 9, 0, 0, 0, 0};
    CHECK(h.must(events).code == status::invalid_field);
    command keep_alive = of(opcode::set_features);
    keep_alive.dword = {0x0f, 2500, 0, 0, 0, 0};
    h.must(keep_alive);
    CHECK(h.target.keep_alive() == std::chrono::milliseconds{2500});
    keep_alive.dword[1] = 1;
    h.must(keep_alive);
    CHECK(h.target.keep_alive() == std::chrono::milliseconds{100});
    keep_alive.dword[1] = 0xffffffff;
    h.must(keep_alive);
    CHECK(h.target.keep_alive() == std::chrono::milliseconds{4294967300});
    command unknown = of(opcode::get_features);
    unknown.dword[0] = 0x7e;
    CHECK(h.must(unknown).code == status::invalid_field);
    CHECK(h.must(of(0x55)).code == status::invalid_opcode);
}

TEST_CASE("nvme: a subsystem refuses invalid names and namespaces", "[nvme]") {
    auto const make = [](auto change) {
        nvme::subsystem_options o;
        o.nqn = nqn;
        nvme::namespace_options n;
        n.store = std::make_shared<memory_store>(1U << 20);
        o.namespaces = {n};
        change(o);
        return subsystem{std::move(o)};
    };
    CHECK_NOTHROW(make([](auto&) {}));
    CHECK_THROWS_AS(make([](auto& o) { o.nqn = "disk"; }), boost::system::system_error);
    CHECK_THROWS_AS(
        make([](auto& o) { o.nqn = "nqn." + std::string(220, 'x'); }), boost::system::system_error
    );
    CHECK_THROWS_AS(make([](auto& o) { o.nqn = "nqn.\n"; }), boost::system::system_error);
    CHECK_THROWS_AS(make([](auto& o) { o.namespaces[0].id = 0; }), boost::system::system_error);
    CHECK_THROWS_AS(
        make([](auto& o) { o.namespaces.push_back(o.namespaces[0]); }), boost::system::system_error
    );
    CHECK_THROWS_AS(
        make([](auto& o) { o.namespaces[0].store = nullptr; }), boost::system::system_error
    );
    CHECK_THROWS_AS(
        make([](auto& o) { o.serial_number = std::string(21, '1'); }), boost::system::system_error
    );
    CHECK_THROWS_AS(memory_store(1000, 512), boost::system::system_error);
    CHECK_THROWS_AS(memory_store(1024, 768), boost::system::system_error);
}

TEST_CASE(
    "nvme: more events than the budget are counted, and reported with a later one", "[nvme]"
) {
    using std::chrono::seconds;
    report_budget b{2};
    report_budget::clock::time_point const begin{};
    CHECK(b.admit(begin) == 0U);
    CHECK(b.admit(begin + seconds{1}) == 0U);
    CHECK_FALSE(b.admit(begin + seconds{2}));
    CHECK_FALSE(b.admit(begin + seconds{9}));
    CHECK(b.admit(begin + seconds{10}) == 2U);
    CHECK(b.admit(begin + seconds{19}) == 0U);
    CHECK_FALSE(b.admit(begin + seconds{19}));
    CHECK(b.admit(begin + seconds{60}) == 1U);
}

// --- authentication ------------------------------------------------------------------------------

namespace {

// From `nvme gen-dhchap-key`; the second is transformed with SHA-256.
constexpr char const* host_secret = "DHHC-1:00:Rvgk+yuyDhDsGoTmaqNlibn8dLh6dAqk2g+cOusJwpEwmL/U:";

nvme::host_secrets secrets() { return {"nqn.host", host_secret, {}}; }

std::vector<std::byte> negotiation(std::uint8_t hash, std::uint8_t group) {
    std::vector<std::byte> m(72);
    m[1] = std::byte{0};
    store(std::span{m}, 4, std::uint16_t{77});
    m[7] = std::byte{1};
    m[8] = std::byte{1};
    m[10] = std::byte{1};
    m[11] = std::byte{1};
    m[12] = static_cast<std::byte>(hash);
    m[42] = static_cast<std::byte>(group);
    return m;
}

}  // namespace

TEST_CASE("nvme: secrets are decoded, and damaged ones refused", "[nvme]") {
    dhchap_key const key = dhchap_key::decode(host_secret);
    CHECK(key.hash == 0);
    CHECK(key.value.size() == 32);
    std::string const good = host_secret;
    for (std::size_t i = 0; i < good.size(); ++i) {
        std::string damaged = good;
        damaged[i] = damaged[i] == 'A' ? 'B' : 'A';
        INFO(damaged);
        CHECK(dhchap_key::decode(damaged).value.empty());
    }
    for (std::size_t size = 0; size < good.size(); ++size)
        CHECK(dhchap_key::decode(good.substr(0, size)).value.empty());
}

TEST_CASE("nvme: a host without the secret fails, whatever it answers", "[nvme]") {
    authenticator a{secrets(), nqn};
    std::vector<std::byte> out(4096);
    CHECK_FALSE(a.next_message(out));
    REQUIRE(a.on_message(negotiation(1, 0)));
    REQUIRE(a.next_message(out));
    CHECK(out[0] == std::byte{1});
    CHECK(out[1] == std::byte{1});
    CHECK(load<std::uint16_t>(out, 4) == 77);
    std::vector<std::byte> reply(16 + 64);
    reply[0] = std::byte{1};
    reply[1] = std::byte{2};
    store(std::span{reply}, 4, std::uint16_t{77});
    reply[6] = std::byte{32};
    // The challenge itself, as if it were the answer.
    std::copy_n(out.begin() + 16, 32, reply.begin() + 16);
    REQUIRE(a.on_message(reply));
    CHECK_FALSE(a.is_done());
    std::ranges::fill(out, std::byte{0});
    REQUIRE(a.next_message(out));
    CHECK(out[1] == std::byte{0xf1});
    CHECK(out[7] == std::byte{1});
    CHECK(a.has_failed());
    CHECK_FALSE(a.on_message(negotiation(1, 0)));
}

TEST_CASE("nvme: messages out of order, cut off or without a common hash are refused", "[nvme]") {
    std::vector<std::byte> out(4096);
    auto const whole = negotiation(1, 1);
    for (std::size_t size = 0; size < whole.size(); ++size) {
        authenticator a{secrets(), nqn};
        bool const taken = a.on_message(std::span{whole}.first(size));
        if (!taken) continue;
        REQUIRE(a.next_message(out));
        CHECK(out[1] == std::byte{0xf1});
    }
    authenticator unknown{secrets(), nqn};
    REQUIRE(unknown.on_message(negotiation(9, 0)));
    REQUIRE(unknown.next_message(out));
    CHECK(out[7] == std::byte{4});
    authenticator early{secrets(), nqn};
    std::vector<std::byte> success(16);
    success[0] = std::byte{1};
    success[1] = std::byte{4};
    CHECK_FALSE(early.on_message(success));
    REQUIRE(early.on_message(negotiation(1, 1)));
    CHECK_FALSE(early.on_message(negotiation(1, 1)));  // the challenge is due
    CHECK(early.next_message(out));
    CHECK(load<std::uint16_t>(out, 10) == 256);  // the public value of ffdhe2048
    CHECK_FALSE(early.is_done());
    // A host without room for the challenge has failed.
    authenticator narrow{secrets(), nqn};
    REQUIRE(narrow.on_message(negotiation(1, 1)));
    CHECK_FALSE(narrow.next_message(std::span{out}.first(20)));
    CHECK(narrow.has_failed());
}

TEST_CASE("nvme: a host's counters exist once it has identified the namespace", "[nvme]") {
    host h{disks({1, 2})};
    std::vector<std::uint32_t> made;
    h.target.counters_of = [&](std::uint32_t id) {
        made.push_back(id);
        return std::make_shared<host_counters>();
    };
    h.enable();
    REQUIRE(h.identify(0, 1) == status::success);
    CHECK(made == std::vector<std::uint32_t>{1});
    host_counters* const counters = h.target.find_for_io(1).counters;
    CHECK(counters != nullptr);
    CHECK(h.target.find_for_io(1).counters == counters);
    CHECK(made == std::vector<std::uint32_t>{1});
    // A host that connects again may use a disk before it identifies it.
    CHECK(h.target.find_for_io(2).counters != counters);
    REQUIRE(h.identify(0, 2) == status::success);
    CHECK(made == std::vector<std::uint32_t>{1, 2});
}
