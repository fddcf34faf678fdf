// The words and names of rdma-nvme's command line and configuration.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rdma-nvme/configuration.hpp"
#include "support/catch.hpp"

using namespace demo;

TEST_CASE("a range of controller numbers is read, and other words are refused", "[programs]") {
    CHECK(parse_controller_ids("1-1000") == std::pair<std::uint16_t, std::uint16_t>{1, 1000});
    CHECK(parse_controller_ids("7-7") == std::pair<std::uint16_t, std::uint16_t>{7, 7});
    CHECK(parse_controller_ids("1-65519").second == 65519);
    for (char const* const wrong :
         {"", "-", "5", "5-", "-5", "0-5", "6-5", "1-65520", "1-99999999999", "a-b", "1-2-3"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS(parse_controller_ids(wrong), configuration_error);
    }
}

TEST_CASE("texts of the library name this program's options", "[programs]") {
    CHECK(
        plain_names(
            "an option is out of its range. Correct the option.: namespace_options::id is in use "
            "[rcverbs:13]"
        ) == "namespace \"id\" is in use."
    );
    CHECK(
        plain_names("namespace_options::uuid, or that of the store, is also that of another") ==
        "its \"uuid\", or without one the UUID of its file, is also that of another"
    );
    CHECK(
        plain_names("target_options::queue_depth_max is above 128 [rcverbs:13]") ==
        "\"queue_depth_max\" is above 128."
    );
    CHECK(plain_names("disk: No such file or directory") == "disk: No such file or directory");
}

namespace {

// A configuration file of one test.
class configuration_file {
public:
    explicit configuration_file(std::string const& text) { std::ofstream{path_} << text; }
    configuration_file(configuration_file const&) = delete;
    configuration_file& operator=(configuration_file const&) = delete;
    ~configuration_file() { std::filesystem::remove(path_); }
    std::filesystem::path const& path() const { return path_; }

private:
    std::filesystem::path path_ = std::filesystem::temp_directory_path() /
                                  ("rcverbs-configuration-" + std::to_string(::getpid()));
};

std::vector<subsystem_description> read(std::string const& text) {
    configuration_file const file{text};
    return read_configuration(file.path());
}

// One subsystem with these namespaces.
std::string with_disks(std::string const& disks) {
    return R"({"subsystems": [{"nqn": "nqn.test:disk", "namespaces": [)" + disks + "]}]}";
}

}  // namespace

TEST_CASE("errors in a configuration are refused with their place", "[programs]") {
    struct expectation {
        std::string text;
        char const* error;
    };
    std::string const id = R"("uuid": "00112233-4455-6677-8899-aabbccddeeff")";
    for (expectation const& e : {
             expectation{
                 R"({"subsystems": [], "subsystems": []})",
                 "an object has two fields \"subsystems\""},
             {with_disks(R"({"memory": "1M", "memory": "2M"})"),
              "an object has two fields \"memory\""},
             {with_disks(R"({"memory": "1M", "block_size": 1000})"),
              "subsystem 1, namespace 1: \"block_size\" is none of 512, 1024, 2048 and 4096"},
             {with_disks(R"({"memory": "1M", "block_size": 0})"),
              "subsystem 1, namespace 1: \"block_size\" is none of"},
             {with_disks(R"({"memory": "1M"}, {"memory": "none"})"),
              "subsystem 1, namespace 2: none is not a size"},
             {with_disks(R"({"memory": "1M", "file_io": "fast"})"),
              "subsystem 1, namespace 1: fast is none of"},
             {with_disks(R"({"memory": "1M"}, {"id": 1, "memory": "1M"})"),
              "subsystem 1, namespace 2: there are two of namespace \"id\" 1"},
             {with_disks(R"({"memory": "1M", )" + id + R"(}, {"memory": "1M", )" + id + "}"),
              "subsystem 1, namespace 2: \"uuid\" is that of namespace \"id\" 1"},
             {R"({"subsystems": [{"nqn": "nqn.a", "namespaces": [{"file": "/a", )" + id +
                  R"(}]}, {"nqn": "nqn.b", "namespaces": [{"file": "/b", )" + id + "}]}]}",
              "subsystem 2, namespace 1: \"uuid\" is that of another disk, namespace \"id\" 1 of "
              "nqn.a"},
             {R"({"subsystems": [{"nqn": "nqn.a", "namespaces": []}, {"nqn": "nqn.a", "namespaces": []}]})",
              "subsystem 2: \"nqn\" is that of another subsystem"},
             {with_disks(R"({"memory": "1M", "nbd": "nbd://server"})"),
              "subsystem 1, namespace 1 needs one of \"file\", \"nbd\", \"rbd\" and \"memory\""},
             {with_disks(R"({"nbd": "nbd://server", "rbd": "rbd/disk"})"),
              "subsystem 1, namespace 1 needs one of \"file\", \"nbd\", \"rbd\" and \"memory\""},
             {with_disks(R"({"memory": "1M", "ceph_user": "me"})"),
              "subsystem 1, namespace 1: \"ceph_user\" is for \"rbd\""},
             {with_disks(R"({"rbd": "you@rbd/disk", "ceph_user": "me"})"),
              "subsystem 1, namespace 1: \"rbd\" names a user already"},
             {with_disks(R"({"rbd": "rbd/disk", "shared": true})"),
              "subsystem 1, namespace 1: \"direct\", \"shared\" and \"file_io\" are not for "
              "\"rbd\""},
             {with_disks(R"({"rbd": "rbd/disk", "connections": 2})"),
              "subsystem 1, namespace 1: \"write_through\" and \"connections\" are for \"nbd\""},
             {with_disks(R"({"memory": "1M", "write_through": true})"),
              "subsystem 1, namespace 1: \"write_through\" and \"connections\" are for \"nbd\""},
             {with_disks(R"({"nbd": "nbd://server", "direct": true})"),
              "subsystem 1, namespace 1: \"direct\", \"shared\" and \"file_io\" are not for"},
             {R"({"subsystems": [{"nqn": "nqn.a", "ana": {"5": "fast"}, "namespaces": []}]})",
              "subsystem 1: \"ana\" has \"5\": \"fast\", and not"},
             {R"({"subsystems": [{"nqn": "nqn.a", "ana": {"five": "changing"}, "namespaces": []}]})",
              "subsystem 1: \"ana\" has \"five\""},
             {R"({"subsystems": [{"nqn": "nqn.a", "other_addresses": ["there"], "namespaces": []}]})",
              "subsystem 1: there is no address such as"},
             {R"({"subsystems": [{"nqn": "nqn.a", "other_addresses": ["10.0.0.2:0"], "namespaces": []}]})",
              "subsystem 1: 10.0.0.2:0 is no address such as"},
             {R"({"subsystems": [{"nqn": "nqn.a", "other_addresses": ["[fd00::2]:70000"], "namespaces": []}]})",
              "subsystem 1: [fd00::2]:70000 is no address such as"},
             {R"({"subsystems": [{"nqn": "nqn.a", "ana": ["optimized"], "namespaces": []}]})",
              "subsystem 1: \"ana\" is not an object"},
             {R"({"subsystems": []})", "\"subsystems\" is not a list of one or more"},
             {R"({"subsystems": [{"nqn": "nqn.a"}]})", "subsystem 1: \"namespaces\" is not a list"},
         }) {
        INFO(e.text);
        CHECK_THROWS_WITH(read(e.text), test::ContainsSubstring(e.error));
    }
}

TEST_CASE("other addresses have the standard port unless they say another one", "[programs]") {
    auto const all =
        read(
            R"({"subsystems": [{"nqn": "nqn.a", "namespaces": [], "other_addresses": ["10.0.0.2", "10.0.0.3:4421", "fd00::2", "[fd00::3]", "[fd00::4]:4422"]}]})"
        )
            .front()
            .other_addresses;
    std::vector<rcverbs::endpoint> const expected{
        {"10.0.0.2", 4420},
        {"10.0.0.3", 4421},
        {"fd00::2", 4420},
        {"fd00::3", 4420},
        {"fd00::4", 4422}};
    CHECK(all == expected);
}

TEST_CASE("a disk of Ceph has its user before its pool", "[programs]") {
    demo::disk_description const d =
        read(
            with_disks(
                R"({"rbd": "rbd/disk@monday", "ceph_user": "me", "ceph_conf": "/c", "keyring": "/k"})"
            )
        )
            .front()
            .disks.front();
    CHECK(d.rbd == "me@rbd/disk@monday");
    CHECK(d.ceph_configuration == "/c");
    CHECK(d.keyring == "/k");
    CHECK(read(with_disks(R"({"rbd": "rbd/disk"})")).front().disks.front().rbd == "rbd/disk");
}

TEST_CASE("a subsystem may have no namespaces, and two subsystems the same file", "[programs]") {
    std::string const disk =
        R"("namespaces": [{"file": "/a", "uuid": "00112233-4455-6677-8899-aabbccddeeff"}]})";
    CHECK(read(with_disks("")).front().disks.empty());
    CHECK(
        read(R"({"subsystems": [{"nqn": "nqn.a", )" + disk + R"(, {"nqn": "nqn.b", )" + disk + "]}")
            .size() == 2
    );
}

TEST_CASE("a disk that cannot be opened is named", "[programs]") {
    auto const described =
        read(with_disks(R"({"memory": "1M"}, {"id": 7, "file": "/nowhere/disk"})"));
    CHECK_THROWS_WITH(
        open_stores(described),
        test::ContainsSubstring("subsystem nqn.test:disk, namespace 7: /nowhere/disk")
    );
}

TEST_CASE("a disk that changes its group keeps its bytes, and the change is said", "[programs]") {
    auto const before = open_stores(read(with_disks(R"({"memory": "1M"})")));
    auto now = read(
        R"({"subsystems": [{"nqn": "nqn.test:disk", "ana": {"2": "non-optimized"}, "namespaces": [{"memory": "1M", "ana_group": 2}]}]})"
    );
    CHECK(now.front().ana_states.at(2) == rcverbs::nvme::ana_state::non_optimized);
    auto const lines = changes(before.described, now);
    CHECK(
        lines ==
        std::vector<std::string>{
            "namespace 1 of nqn.test:disk changed.", "\"ana\" of nqn.test:disk changed."}
    );
    auto const after = open_stores(std::move(now), before);
    CHECK(
        after.options.front().namespaces.front().store ==
        before.options.front().namespaces.front().store
    );
    CHECK(after.options.front().namespaces.front().ana_group == 2);
}

TEST_CASE("a disk of an NBD server has its options", "[programs]") {
    auto const disk =
        read(with_disks(R"({"nbd": "nbd://server/a", "write_through": true, "connections": 2})"))
            .front()
            .disks.front();
    CHECK(disk.nbd == "nbd://server/a");
    CHECK(disk.writes_through);
    CHECK(disk.connections == 2);
    CHECK(read(with_disks(R"({"nbd": "nbd://server"})")).front().disks.front().connections == 4);
}

TEST_CASE("a configuration that every user can read is found", "[programs]") {
    using enum std::filesystem::perms;
    configuration_file const file{"{}"};
    std::filesystem::permissions(file.path(), owner_read | group_read);
    CHECK_FALSE(is_readable_by_all(file.path()));
    std::filesystem::permissions(file.path(), owner_read | others_read);
    CHECK(is_readable_by_all(file.path()));
}

TEST_CASE("what a reload changes has a line each", "[programs]") {
    auto const before = read(R"({"subsystems": [
        {"nqn": "nqn.a", "namespaces": [{"memory": "1M"}, {"memory": "1M"}]},
        {"nqn": "nqn.b", "namespaces": []}]})");
    auto const after = read(R"({"subsystems": [
        {"nqn": "nqn.a", "allow_hosts": ["nqn.host"],
         "namespaces": [{"memory": "2M"}, {"id": 3, "memory": "1M"}]},
        {"nqn": "nqn.c", "namespaces": []}]})");
    CHECK(changes(before, before).empty());
    CHECK(
        changes(before, after) ==
        std::vector<std::string>{
            "subsystem nqn.b removed.",
            "namespace 2 of nqn.a removed.",
            "namespace 1 of nqn.a changed.",
            "namespace 3 of nqn.a added.",
            "\"allow_hosts\" of nqn.a changed.",
            "subsystem nqn.c added."}
    );
}

TEST_CASE("namespaces without a number get that of their place", "[programs]") {
    auto const path = std::filesystem::temp_directory_path() /
                      ("rcverbs-configuration-" + std::to_string(::getpid()));
    std::ofstream{path} << R"({"subsystems": [{"nqn": "nqn.test:disk", "namespaces": [
        {"memory": "1M"}, {"id": 7, "memory": "1M"}, {"memory": "1M"}]}]})";
    auto const read = read_configuration(path);
    std::filesystem::remove(path);
    REQUIRE(read.size() == 1);
    REQUIRE(read[0].disks.size() == 3);
    CHECK(read[0].disks[0].id == 1);
    CHECK(read[0].disks[1].id == 7);
    CHECK(read[0].disks[2].id == 3);
}

TEST_CASE("a number of the configuration that is none, or too large, is refused", "[programs]") {
    auto const path = std::filesystem::temp_directory_path() /
                      ("rcverbs-configuration-" + std::to_string(::getpid()));
    for (char const* const wrong : {"1e300", "1.5", "-1", "4294967296", "\"1\"", "null"}) {
        CAPTURE(wrong);
        for (char const* const name : {"id", "block_size"}) {
            std::ofstream{path} << R"({"subsystems": [{"nqn": "nqn.test:disk", "namespaces": [
                {"memory": "1M", ")"
                                << name << "\": " << wrong << "}]}]}";
            CHECK_THROWS_WITH(
                read_configuration(path),
                test::ContainsSubstring(name) &&
                    test::ContainsSubstring("is not an integer from 0 to 4294967295")
            );
        }
    }
    std::filesystem::remove(path);
}
