// rdma-copy as it is used, and what disks, kills and stops do to it.
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdlib>
#include <random>
#include <sstream>

#include "device/copy_programs.hpp"

using namespace test;

namespace {

std::uint64_t size_of(fs::path const& at) {
    std::error_code ec;
    auto const size = fs::file_size(at, ec);
    return ec ? 0 : size;
}

std::size_t entries_in(fs::path const& at) {
    std::error_code ec;
    auto const all = fs::directory_iterator{at, ec};
    return ec ? 0 : static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Nothing but whole files and temporary ones.
void check_no_half(fs::path const& from, fs::path const& to) {
    for (auto const& e : fs::directory_iterator{to}) {
        std::string const name = e.path().filename().string();
        if (copy::is_reserved(name)) continue;
        CHECK((content(e.path()) == content(from / name)));
    }
}

void shell(std::string const& line) {
    INFO(line);
    REQUIRE(std::system(line.c_str()) == 0);
}

}  // namespace

TEST_CASE("rdma-copy: exit codes, and what is said", "[demo]") {
    folder here;
    folder there;
    make_tree(here / "tree");
    copy_server s{there / "", {"--statistics", (here / "socket").string()}};
    std::string const tree = (here / "tree").string();
    {
        child_process c = s.client({tree, s.place("")});
        CHECK(c.wait() == 0);
        CHECK(has_text(c.output(), "50 entries, 2.9 MiB in "));
        CHECK(c.output_lines().size() == 1);
        CHECK(c.error().empty());
        CHECK(s.process.wait_for_output(": received into .: 50 entries, 2.9 MiB\n"));
        CHECK(listing(here / "tree") == listing(there / "tree"));
    }
    {
        child_process c = s.client({tree, s.place(""), "--quiet"});
        CHECK(c.wait() == 1);
        CHECK(c.output().empty());
        CHECK(has_text(
            c.error(),
            "tree/large: at the target: it exists; files and links are replaced with --force"
        ));
    }
    {
        child_process c =
            s.client({s.place("tree"), (here / "back").string(), "--json", "--verify"});
        CHECK(c.wait() == 0);
        CHECK(listing(here / "back") == listing(there / "tree"));
        CHECK(s.process.wait_for_output(": sent tree: 50 entries, 2.9 MiB\n"));
        std::istringstream lines{c.output()};
        nlohmann::json last;
        for (std::string line; std::getline(lines, line);) last = nlohmann::json::parse(line);
        CHECK(last["type"] == "result");
        CHECK(last["entries"] == 50);
        CHECK(last["failures"].empty());
    }
    {
        // What is in it, as with cp and rsync.
        fs::create_directory(here / "content");
        child_process c = s.client({s.place("tree/."), (here / "content").string()});
        CHECK(c.wait() == 0);
        CHECK(listing(here / "content") == listing(there / "tree"));
    }
    {
        child_process c = s.client({s.place("absent"), (here / "x").string(), "--json"});
        CHECK(c.wait() == 1);
        CHECK(has_text(c.error(), "the server refuses absent: No such file or directory"));
        CHECK(nlohmann::json::parse(c.output())["error"].is_string());
    }
    {
        child_process c{command("rdma-copy", {tree, s.place(""), "--port", "1"})};
        CHECK(c.wait() == 2);
        CHECK_FALSE(c.error().empty());
    }
    for (std::vector<std::string> const& wrong :
         {std::vector<std::string>{tree},
          {tree, "nowhere"},
          {s.place("a"), s.place("b")},
          {tree, s.place(""), "--memory", "5"},
          {tree, s.place("/./"), "--no-target-directory"},
          {tree + "/.", s.place("")},
          {tree + "/.", tree, s.place("a")},
          {tree, "somebody@" + s.place("")},
          {tree, s.place(""), "--unknown"}}) {
        child_process c{command("rdma-copy", wrong)};
        CHECK(c.wait() == 64);
    }
    std::string const metrics = answer_to_get((here / "socket").string(), "/metrics");
    CHECK(has_text(metrics, "rdma_copy_connections_total 5\n"));
    CHECK(has_text(metrics, "rdma_copy_failed_entries_total 45\n"));
    CHECK(has_text(metrics, "rdma_copy_clients 0\n"));
}

TEST_CASE("rdma-copy: a side that is stopped by a signal is no failure of the other", "[demo]") {
    bool const is_server = GENERATE(false, true);
    CAPTURE(is_server);
    folder here;
    folder there;
    write_large(here / "file", 30 * mebibyte, 1);
    copy_server s{there / "", {"--statistics", (here / "socket").string()}};
    child_process c = s.client({(here / "file").string(), s.place("")});
    wait_until([&] { return size_of(there / ".file.rdma-copy.part") > 0; });
    (is_server ? s.process : c).signal(SIGINT);
    CHECK(c.wait() == 2);
    if (is_server) {
        CHECK(has_text(c.error(), "the other side was stopped"));
        CHECK(s.process.wait() == 0);
    } else {
        CHECK(has_text(c.error(), "stopped by a signal"));
        CHECK(s.process.wait_for_output(": stopped by the client; received into .: 0 entries"));
        CHECK(s.process.error().empty());
        std::string const metrics = answer_to_get((here / "socket").string(), "/metrics");
        CHECK(has_text(metrics, "rdma_copy_failed_connections_total 0\n"));
    }
}

TEST_CASE("rdma-copy: only allowed addresses connect, and not too many of one", "[demo]") {
    folder here;
    folder there;
    write_file(here / "file", pattern(100, 1));
    std::string const file = (here / "file").string();
    {
        copy_server s{there / "", {"--allow", "192.0.2.0/24", "--allow", "2001:db8::1"}};
        child_process c = s.client({file, s.place("")});
        CHECK(c.wait() == 2);
        CHECK(has_text(c.error(), "--allow"));
        CHECK(s.process.wait_for_error(": refused: its address is not allowed (--allow)\n"));
    }
    {
        copy_server s{
            there / "",
            {"--allow", "192.0.2.0/24", "--allow", device_address(), "--max-clients", "2"}};
        child_process c = s.client({file, s.place("")});
        CHECK(c.wait() == 0);
        // One that stays.
        write_large(here / "large", 30 * mebibyte, 1);
        child_process first = s.client({(here / "large").string(), s.place("")});
        wait_until([&] { return size_of(there / ".large.rdma-copy.part") > 0; });
        first.signal(SIGSTOP);
        child_process second = s.client({file, s.place("again")});
        CHECK(second.wait() == 2);
        first.signal(SIGKILL);
        CHECK(s.process.wait_for_error(": refused: --max-per-address is 1\n"));
    }
    child_process wrong{command("rdma-copy", {"serve", there.string(), "--allow", "somebody"})};
    CHECK(wrong.wait() == 64);
}

TEST_CASE("rdma-copy: who is killed at any time leaves no half file", "[demo]") {
    bool const is_server = GENERATE(false, true);
    folder here;
    folder there;
    fs::create_directories(here / "tree");
    for (int i = 0; i < 40; ++i)
        write_large(
            here / ("tree/" + std::to_string(i)), 100'000 + 4096 * static_cast<unsigned>(i), 1
        );
    std::mt19937 random{5};
    for (int round = 0; round < 6; ++round) {
        copy_server s{there / ""};
        std::string const all = (here / "tree").string();
        child_process c = s.client({all, s.place(""), "--force"});
        auto const wanted = random() % 25;
        wait_until([&] { return entries_in(there / "tree") > wanted; });
        (is_server ? s.process : c).signal(SIGKILL);
        if (is_server) CHECK(c.wait() == 2);
        else
            CHECK((s.process.wait_for_error("\n", 20s) || s.process.wait_for_output("entries", 20s))
            );
        if (fs::exists(there / "tree")) check_no_half(here / "tree", there / "tree");
        fs::remove_all(there / "tree");
    }
    copy_server const s{there / ""};
    child_process c = s.client({(here / "tree").string(), s.place("")});
    CHECK(c.wait() == 0);
    CHECK(listing(here / "tree") == listing(there / "tree"));
}

TEST_CASE("rdma-copy: after kill -9 a large file continues, and is right", "[demo][long]") {
    bool const is_server = GENERATE(false, true);
    folder here;
    folder there;
    std::uint64_t const size = 72 * mebibyte + 5;
    write_large(here / "file", size, 1);
    fs::path const state = there / ".file.rdma-copy.state";
    std::string const file = (here / "file").string();
    {
        copy_server s{there / ""};
        child_process c = s.client({file, s.place("")});
        wait_until([&] { return size_of(state) > 56 + 24; });  // the first checkpoint
        (is_server ? s.process : c).signal(SIGKILL);
        if (is_server) CHECK(c.wait() == 2);
        // A server that lives stores what has arrived.
        else CHECK(s.process.wait_for_error("\n"));
        CHECK_FALSE(fs::exists(there / "file"));
    }
    copy_server const s{there / ""};
    child_process c = s.client({file, s.place(""), "--json", "--verify"});
    CHECK(c.wait() == 0);
    auto const lines = c.output_lines();
    auto const result = nlohmann::json::parse(lines.back());
    CHECK(result["continued_bytes"] >= 64 * mebibyte);
    CHECK((content(here / "file") == content(there / "file")));
    CHECK(leftovers(there / "").empty());
}

TEST_CASE("rdma-copy: a side that is stopped ends the copy in time", "[demo]") {
    bool const is_server = GENERATE(false, true);
    folder here;
    folder there;
    write_large(here / "file", 30 * mebibyte, 1);
    copy_server s{there / "", {"--timeout", "2s"}};
    child_process c = s.client({(here / "file").string(), s.place(""), "--timeout", "2s"});
    wait_until([&] { return size_of(there / ".file.rdma-copy.part") > 0; });
    (is_server ? s.process : c).signal(SIGSTOP);
    std::string const why = "has not responded for 2 s";
    if (is_server) {
        CHECK(c.wait() == 2);
        CHECK(has_text(c.error(), why));
    } else {
        CHECK(s.process.wait_for_error(why));
    }
    (is_server ? s.process : c).signal(SIGCONT);
    if (!is_server) CHECK(c.wait() == 2);
    CHECK_FALSE(fs::exists(there / "file"));
    child_process again = s.client({(here / "file").string(), s.place("")});
    CHECK(again.wait() == 0);
    CHECK((content(here / "file") == content(there / "file")));
}

TEST_CASE("rdma-copy: a full disk is an error of that file, before and in the middle", "[demo]") {
    if (::geteuid() != 0) {
        WARN("skipped: only root mounts file systems");
        return;
    }
    folder here;
    folder there;
    shell("mount -t tmpfs -o size=4m tmpfs " + there.string());
    write_large(here / "dense", 6 * mebibyte, 1);
    write_large(here / "sparse", 6 * mebibyte, 2);
    fs::resize_file(here / "sparse", 12 * mebibyte);  // no room is reserved for it
    write_large(here / "small", 100'000, 3);
    {
        copy_server const s{there / ""};
        for (std::string const name : {"dense", "sparse"}) {
            CAPTURE(name);
            child_process c =
                s.client({(here / name).string(), (here / "small").string(), s.place(""), "--force"}
                );
            CHECK(c.wait() == 1);
            CHECK(has_text(c.error(), name + ": at the target: No space left on device"));
            CHECK((content(here / "small") == content(there / "small")));
            // What has arrived of the file without reserved room waits to be continued.
            CHECK(leftovers(there / "").size() == (name == "sparse" ? 2 : 0));
            CHECK(listing(there / "").size() == 1 + leftovers(there / "").size());
        }
    }
    shell("umount " + there.string());
}

TEST_CASE(
    "rdma-copy: a part of the target that is read-only is an error of what goes there", "[demo]"
) {
    if (::geteuid() != 0) {
        WARN("skipped: only root mounts file systems");
        return;
    }
    folder here;
    folder there;
    make_tree(here / "tree");
    fs::create_directories(there / "tree/a/b");
    std::string const fixed = (there / "tree/a/b").string();
    shell("mount -t tmpfs -o ro tmpfs " + fixed);
    {
        copy_server s{there / ""};
        child_process c = s.client({(here / "tree").string(), s.place("")});
        CHECK(c.wait() == 1);
        std::string const why = ": at the target: Read-only file system";
        // A file, a directory, what is in it, and the directory's own mode and time.
        for (std::string const path : {"a/b/0", "a/b/c", "a/b"})
            CHECK(has_text(c.error(), "tree/" + path + why));
        CHECK(s.process.wait_for_error("tree/a/b/0: Read-only file system"));
        CHECK((content(here / "tree/large") == content(there / "tree/large")));
        CHECK((content(here / "tree/a/page") == content(there / "tree/a/page")));
        CHECK(leftovers(there / "").empty());
    }
    shell("umount " + fixed);
}

TEST_CASE("rdma-copy: a disk that does not write finishes no file", "[demo]") {
    if (::geteuid() != 0 ||
        std::system("modprobe -rq brd; modprobe brd rd_nr=1 rd_size=65536 && modprobe dm_mod") !=
            0) {
        WARN("skipped: only root makes a disk in memory");
        return;
    }
    folder here;
    folder there;
    // The first 20 MiB work: what the file system says of itself, and the beginning of the file.
    shell(
        "dmsetup --noudevsync create spoiled --table '0 131072 linear /dev/ram0 0' && dmsetup "
        "mknodes"
    );
    shell("mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=0 /dev/mapper/spoiled");
    shell("mount /dev/mapper/spoiled " + there.string());
    write_large(here / "good", 100'000, 1);
    write_large(here / "bad", 40 * mebibyte, 2);
    {
        copy_server const s{there / ""};
        child_process first = s.client({(here / "good").string(), s.place("")});
        CHECK(first.wait() == 0);
        shell(
            "printf '0 40960 linear /dev/ram0 0\\n40960 90112 error\\n' | dmsetup --noudevsync "
            "reload spoiled && "
            "dmsetup --noudevsync resume spoiled"
        );
        child_process c = s.client({(here / "bad").string(), s.place("")});
        CHECK(c.wait() == 1);
        CHECK(has_text(c.error(), "bad: at the target: Input/output error"));
        CHECK_FALSE(fs::exists(there / "bad"));
        CHECK(fs::exists(there / "good"));
    }
    shell(
        "umount " + there.string() +
        "; dmsetup --noudevsync remove --retry spoiled; modprobe -r brd"
    );
}
