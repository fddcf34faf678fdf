// What rdma-copy asks of the system, and what it does where the system refuses.
#include <boost/asio/co_spawn.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "rdma-copy/directory_stream.hpp"
#include "rdma-copy/file_io.hpp"
#include "rdma-copy/incoming_file.hpp"
#include "rdma-copy/link.hpp"
#include "rdma-copy/removal.hpp"
#include "rdma-copy/result.hpp"
#include "rdma-copy/tree.hpp"
#include "support/catch.hpp"
#include "support/folder.hpp"
#include "support/system_calls.hpp"

using test::folder;
using test::where_refused;

namespace fs = std::filesystem;

namespace {

std::vector<std::byte> bytes_of(std::size_t size, unsigned seed) {
    std::vector<std::byte> all(size);
    for (std::size_t i = 0; i < size; ++i) all[i] = static_cast<std::byte>(i * 7 + seed);
    return all;
}

// Reads and writes with an engine of its own; in a file, past its end, and where nothing can be.
struct transfers {
    int written = -1;
    int read = -1;
    int read_past_end = -1;
    int read_of_nothing = -1;
    int written_to_full = -1;
    bool is_same = false;
    bool has_ring = false;
};
transfers transfer_in(fs::path const& at) {
    namespace asio = boost::asio;
    transfers t;
    asio::io_context io;
    copy::disk threads{io};
    std::vector<std::byte> memory = bytes_of(16384, 1);
    std::span<std::byte> const first = std::span{memory}.first(8192);
    std::span<std::byte> const second = std::span{memory}.subspan(8192);
    copy::file_io engine{io, threads, memory, 2};
    t.has_ring = engine.has_ring();
    int const file = ::open(at.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int const full = ::open("/dev/full", O_RDWR | O_CLOEXEC);
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
            t.written = co_await engine.write(file, 5, first);
            t.read = co_await engine.read(file, 5, second);
            t.is_same = std::equal(first.begin(), first.end(), second.begin());
            t.read_past_end = co_await engine.read(file, 6, second);
            t.read_of_nothing = co_await engine.read(-1, 0, second);
            t.written_to_full = co_await engine.write(full, 0, first);
        },
        [](std::exception_ptr e) {
            if (e) std::rethrow_exception(e);
        }
    );
    io.run();
    ::close(file);
    ::close(full);
    return t;
}

// What a process finds that may lock this much, has locked some of it, and is not root.
std::size_t memory_for(std::size_t may_lock, std::size_t has_locked) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        // Not mlock(2), which does nothing under a sanitizer.
        void* const locked = ::mmap(
            nullptr,
            has_locked + 1,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | (has_locked > 0 ? MAP_LOCKED : 0),
            -1,
            0
        );
        rlimit const limit{may_lock, may_lock};
        bool const is_ready = locked != MAP_FAILED && ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
                              (::geteuid() != 0 || ::setresuid(65534, 65534, 65534) == 0);
        std::size_t const memory = is_ready ? copy::usual_memory() : 1;
        auto const sent = ::write(ends[1], &memory, sizeof memory);
        ::_exit(sent == sizeof memory ? 0 : 1);
    }
    std::size_t memory = 0;
    CHECK(::read(ends[0], &memory, sizeof memory) == sizeof memory);
    ::waitpid(child, nullptr, 0);
    ::close(ends[0]);
    ::close(ends[1]);
    return memory;
}

// What a child that is not root returns.
bool as_nobody(std::function<bool()> const& what) {
    pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        bool const is_ready = ::geteuid() != 0 || ::setresuid(65534, 65534, 65534) == 0;
        ::_exit(is_ready && what() ? 0 : 1);
    }
    int status = 1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("copy: without openat2 paths stay inside too", "[programs]") {
    int const refusal = GENERATE(ENOSYS, EPERM);
    CAPTURE(refusal);
    folder here;
    fs::create_directories(here / "root/a/b");
    fs::create_directory(here / "outside");
    std::ofstream{here / "root/a/b/file"} << "inside";
    std::ofstream{here / "outside/file"} << "outside";
    fs::create_directory_symlink("../../outside", here / "root/a/link");
    fs::create_directory_symlink("a", here / "root/near");
    fs::create_symlink("a/b/file", here / "root/file");
    struct found {
        std::string path;
        int with_it = 0;
        int without = -1;
    };
    std::vector<found> all{
        {"a/b/file"},
        {"a/link/file"},
        {"near/b/file"},
        {"file"},
        {"a/link"},
        {"a/absent"},
        {"a/b/file/x"},
        {"../outside/file"}};
    int error = 0;
    copy::tree const root = copy::tree::open((here / "root").string(), error);
    REQUIRE(error == 0);
    for (found& f : all) root.open_at(f.path, O_RDONLY, f.with_it);
    where_refused(SYS_openat2, refusal, [&] {
        for (found& f : all) root.open_at(f.path, O_RDONLY, f.without);
    });
    for (found const& f : all) {
        CAPTURE(f.path, f.with_it, f.without);
        bool const is_inside = f.path == "a/b/file";
        CHECK((f.with_it == 0) == is_inside);
        CHECK((f.without == 0) == is_inside);
    }
    // Of a link itself.
    int absent = -1;
    struct stat link {};
    where_refused(SYS_openat2, refusal, [&] { link = root.status_of("a/link", absent); });
    CHECK(absent == 0);
    CHECK(S_ISLNK(link.st_mode));
}

TEST_CASE(
    "copy: files are read and written with io_uring, and where that is refused", "[programs]"
) {
    folder here;
    auto const check = [](transfers const& t) {
        CHECK(t.written == 0);
        CHECK(t.read == 0);
        CHECK(t.is_same);
        CHECK(t.read_past_end == copy::error_source_changed);
        CHECK(t.read_of_nothing == EBADF);
        CHECK(t.written_to_full == ENOSPC);
    };
    SECTION("threads") {
        int const refusal = GENERATE(ENOSYS, EPERM, ENOMEM);
        transfers t;
        where_refused(SYS_io_uring_setup, refusal, [&] { t = transfer_in(here / "file"); });
        CHECK_FALSE(t.has_ring);
        check(t);
    }
#ifdef RCVERBS_HAS_LIBURING
    SECTION("io_uring") {
        transfers const t = transfer_in(here / "file");
        if (!t.has_ring) {
            WARN("skipped: this system refuses io_uring");
            return;
        }
        check(t);
    }
    SECTION("io_uring without fixed buffers") {
        transfers t;
        where_refused(SYS_io_uring_register, EPERM, [&] { t = transfer_in(here / "file"); });
        if (!t.has_ring) {
            WARN("skipped: this system refuses io_uring");
            return;
        }
        check(t);
    }
#endif
}

TEST_CASE(
    "copy: without --memory half of what may be locked is used, 8 MiB at most", "[programs]"
) {
    constexpr std::size_t mebibyte = std::size_t{1} << 20;
    CHECK(memory_for(4 * mebibyte, 0) == 2 * mebibyte);
    CHECK(memory_for(0, 0) == 0);
    // Whole pages are locked, with what is around them.
    std::size_t const rest = memory_for(4 * mebibyte, mebibyte);
    CHECK(rest <= 3 * mebibyte / 2);
    CHECK(rest > mebibyte);
    CHECK(copy::usual_memory() <= 8 * mebibyte);
}

TEST_CASE(
    "copy: long names with the same beginning have temporary files of their own", "[programs]"
) {
    std::string const beginning(250, 'n');
    auto const of = [](std::string const& name) { return copy::temporary_name(name, "state"); };
    CHECK(of(beginning + "1") != of(beginning + "2"));
    CHECK(of(beginning + "1") == of(beginning + "1"));
    CHECK(of(std::string(255, 'n')).size() == 255);
    CHECK(of("name") == ".name.rdma-copy.state");
    // The longest that is not cut.
    CHECK(of(std::string(238, 'n')) == '.' + std::string(238, 'n') + ".rdma-copy.state");
}

TEST_CASE("copy: what is in a directory comes with the error of its status", "[programs]") {
    folder here;
    std::ofstream{here / "file"} << "x";
    int error = 0;
    copy::tree const root = copy::tree::open((here / "").string(), error);
    int const refusal = GENERATE(EACCES, EIO, ENOENT);
    copy::directory_stream entries = copy::directory_stream::open(root, "", error);
    REQUIRE(error == 0);
    std::vector<copy::directory_entry> some;
    auto const read = [&] { some = entries.next(error); };
    where_refused(SYS_newfstatat, refusal, read, AT_SYMLINK_NOFOLLOW);
    CHECK(error == 0);
    REQUIRE(some.size() == 1);
    CHECK(some[0].error == refusal);
    CHECK(entries.next(error).empty());
    CHECK(error == 0);
}

TEST_CASE("copy: a directory of any size is read in small pieces", "[programs]") {
    constexpr std::size_t files = 1000;
    folder here;
    fs::create_directory(here / "many");
    for (std::size_t i = 0; i < files; ++i)
        std::ofstream{here / ("many/" + std::string(i % 200, 'n') + std::to_string(i))} << "x";
    // Closed and opened again behind this entry of each piece, or never.
    auto const closed_behind =
        GENERATE(std::optional<std::size_t>{}, std::size_t{0}, std::size_t{3});
    int error = 0;
    copy::tree const root = copy::tree::open((here / "").string(), error);
    copy::directory_stream entries = copy::directory_stream::open(root, "many", error);
    REQUIRE(error == 0);
    std::multiset<std::string> names;
    for (;;) {
        std::vector<copy::directory_entry> some = entries.next(error);
        REQUIRE(error == 0);
        if (some.empty()) break;
        CHECK(some.size() <= copy::directory_stream::entries_max);
        if (closed_behind && *closed_behind < some.size()) {
            some.resize(*closed_behind + 1);
            entries.close_behind(some.back());
        }
        for (copy::directory_entry const& e : some) {
            names.insert(e.name);
            CHECK(e.status.st_size == 1);
        }
    }
    CHECK(names.size() == files);
    CHECK(std::set<std::string>(names.begin(), names.end()).size() == files);
    // Another one that has its name now.
    copy::directory_stream moved = copy::directory_stream::open(root, "many", error);
    moved.close_behind(moved.next(error).front());
    fs::rename(here / "many", here / "old");
    fs::create_directory(here / "many");
    CHECK(moved.next(error).empty());
    CHECK(error == copy::error_source_changed);
}

TEST_CASE("copy: a file has the time of its source as its file system keeps it", "[programs]") {
    struct row {
        timespec has;
        timespec changed;  // what programs cannot set
        timespec source;
        bool is_vfat;
        bool is_same;
    };
    timespec const fine{1'700'000'500, 123'456'789};
    timespec const coarse{1'700'000'500, 0};
    for (row const& r : std::vector<row>{
             {{100, 5}, fine, {100, 5}, false, true},
             {{100, 5}, coarse, {100, 5}, false, true},
             // Files whose times were set to whole seconds, where they need not be.
             {{100, 0}, fine, {100, 5}, false, false},
             {{100, 0}, fine, {101, 0}, false, false},
             // ext3
             {{100, 0}, coarse, {100, 999'999'999}, false, true},
             {{100, 0}, coarse, {101, 0}, false, false},
             {{100, 0}, coarse, {99, 999'999'999}, false, false},
             {{-1, 0}, coarse, {-1, 5}, false, true},
             // vfat
             {{100, 0}, coarse, {101, 999'999'999}, true, true},
             {{100, 0}, coarse, {102, 0}, true, false},
             {{100, 0}, coarse, {99, 0}, true, false},
             {{-2, 0}, coarse, {-1, 5}, true, true},
             // exFAT
             {{100, 120'000'000}, {7, 10'000'000}, {100, 129'999'999}, false, true},
             {{100, 120'000'000}, {7, 10'000'000}, {100, 130'000'000}, false, false},
             {{100, 0}, {7, 10'000'000}, {100, 500'000'000}, false, false},
             // CIFS
             {{100, 123'456'700}, {7, 100}, {100, 123'456'789}, false, true},
             {{100, 123'456'700}, {7, 100}, {100, 123'456'800}, false, false}}) {
        CAPTURE(r.has.tv_sec, r.has.tv_nsec, r.changed.tv_nsec, r.source.tv_sec, r.source.tv_nsec);
        struct stat there {};
        there.st_mtim = r.has;
        there.st_ctim = r.changed;
        CHECK(copy::has_time(there, r.source, r.is_vfat) == r.is_same);
    }
}

// As of a file system that does not tell a from A: what seems to be another file may be the one that was copied.
TEST_CASE("copy: nothing is deleted where a copied name is not listed", "[programs]") {
    bool const is_listed = GENERATE(false, true);
    folder here;
    for (char const* const name : {"copied", "old"}) std::ofstream{here / name};
    int error = 0;
    copy::tree const root = copy::tree::open(here.string(), error);
    copy::removal r{{}, false};
    std::vector<std::uint64_t> names{copy::hash_of_name("copied")};
    if (!is_listed) names.push_back(copy::hash_of_name("Old"));
    r.begin(copy::directory_stream::open(root, "", error), "", names, {});
    CHECK(r.run());
    auto const results = r.take_results();
    REQUIRE(results.size() == 1);
    CHECK(results[0].error == (is_listed ? 0 : copy::error_names_differ));
    CHECK(fs::exists(here / "copied"));
    CHECK(fs::exists(here / "old") == !is_listed);
}

TEST_CASE("copy: what a failed sync may have lost is never continued", "[programs]") {
    constexpr std::size_t size = std::size_t{9} << 20;
    constexpr std::size_t half = std::size_t{1} << 20;
    // Which of the syncs fails: that of the first part, of the second, or the last one.
    long const refused = GENERATE(0, 1, 2);
    CAPTURE(refused);
    folder here;
    int error = 0;
    copy::tree const root = copy::tree::open((here / "").string(), error);
    copy::incoming_options options;
    options.size = size;
    std::vector<std::byte> const data = bytes_of(half, 1);
    auto const part = [&](std::size_t end) { return copy::file_part{end, copy::hash_of(data)}; };
    {
        copy::incoming_file f = copy::incoming_file::create(root, "file", options, error);
        REQUIRE(error == 0);
        REQUIRE(f.has_state());
        for (std::size_t at = 0; at < size; at += half)
            REQUIRE(
                ::pwrite(f.descriptor_of_data(), data.data(), half, static_cast<off_t>(at)) ==
                static_cast<ssize_t>(half)
            );
        int failed = 0;
        auto const store = [&](std::size_t end, bool is_refused) {
            auto const now = [&] { failed = f.store({part(end)}); };
            if (is_refused) where_refused(SYS_fdatasync, ENOSPC, now);
            else now();
        };
        store(half, refused == 0);
        CHECK(failed == (refused == 0 ? ENOSPC : 0));
        store(2 * half, refused == 1);
        CHECK(failed == (refused == 0 ? EIO : refused == 1 ? ENOSPC : 0));
        if (refused == 2) {
            where_refused(SYS_fsync, ENOSPC, [&] { failed = f.finish({}, {}); });
            CHECK(failed == ENOSPC);
        }
        // The system call works again, but what it has lost is lost.
        store(3 * half, false);
        CHECK(failed == EIO);
        CHECK(f.finish({}, {}) == EIO);
        f.keep();
    }
    CHECK_FALSE(fs::exists(here / "file"));
    copy::incoming_file const again = copy::incoming_file::create(root, "file", options, error);
    REQUIRE(error == 0);
    CHECK(again.begin() == static_cast<std::uint64_t>(refused) * half);
}

TEST_CASE(
    "copy: a file that could not be renamed can be continued, and takes no more room", "[programs]"
) {
    constexpr std::size_t size = std::size_t{9} << 20;
    constexpr std::size_t half = std::size_t{1} << 20;
    folder here;
    int error = 0;
    copy::tree const root = copy::tree::open((here / "").string(), error);
    copy::incoming_options options;
    options.size = size;
    std::vector<std::byte> const data = bytes_of(half, 1);
    copy::attributes read_only;
    read_only.mode = 0444;
    bool const is_full = GENERATE(true, false);
    CAPTURE(is_full);
    {
        copy::incoming_file f = copy::incoming_file::create(root, "file", options, error);
        REQUIRE(error == 0);
        REQUIRE(
            ::pwrite(f.descriptor_of_data(), data.data(), half, 0) == static_cast<ssize_t>(half)
        );
        CHECK(f.store({{half, copy::hash_of(data)}}) == 0);
        int failed = 0;
        if (is_full) {
            where_refused(SYS_renameat2, ENOSPC, [&] { failed = f.finish(read_only, {}); });
            CHECK(failed == ENOSPC);
        }
        f.keep();
    }
    struct stat left {};
    REQUIRE(::stat((here / ".file.rdma-copy.part").c_str(), &left) == 0);
    CHECK((left.st_mode & 0777) == 0600);
    CHECK(left.st_size == static_cast<off_t>(half));
    CHECK(left.st_blocks * 512 < 2 * static_cast<off_t>(half));
    // As if it had been killed before the rename.
    REQUIRE(::chmod((here / ".file.rdma-copy.part").c_str(), 0444) == 0);
    copy::incoming_file again = copy::incoming_file::create(root, "file", options, error);
    REQUIRE(error == 0);
    CHECK(again.begin() == half);
}

TEST_CASE("copy: what cannot be continued does not stay", "[programs]") {
    folder here;
    int error = 0;
    copy::tree const root = copy::tree::open((here / "").string(), error);
    copy::incoming_options options;
    options.size = std::size_t{9} << 20;
    bool const is_foreign = GENERATE(true, false);
    CAPTURE(is_foreign);
    fs::path const part = here / ".file.rdma-copy.part";
    std::ofstream{part} << "old";
    if (is_foreign) REQUIRE(::chown(part.c_str(), 65534, 65534) == 0);
    else fs::create_hard_link(part, here / "other");
    {
        copy::incoming_file f = copy::incoming_file::create(root, "file", options, error);
        REQUIRE(error == 0);
        CHECK(f.begin() == 0);
        CHECK_FALSE(f.has_state());
        CHECK(f.finish({}, {}) == 0);
    }
    CHECK(fs::exists(here / "file"));
    // A second name of another file is not removed.
    CHECK(fs::exists(part) == !is_foreign);
    CHECK_FALSE(fs::exists(here / ".file.rdma-copy.state"));
}

TEST_CASE("copy: a directory that was there is written to the disk", "[programs]") {
    folder here;
    int error = 0;
    copy::tree const root = copy::tree::open((here / "").string(), error);
    copy::file_id made;
    REQUIRE(root.make_directory("new", made) == 0);
    int failed = 0;
    where_refused(SYS_fsync, EIO, [&] { failed = root.make_directory("new", made); });
    CHECK(failed == EIO);
    CHECK(root.make_directory("new", made) == 0);
}

TEST_CASE("copy: what is in a directory that cannot be listed can be sent", "[programs]") {
    folder here;
    fs::create_directories(here / "closed");
    std::ofstream{here / "closed/file"} << "text";
    fs::create_symlink("nowhere", here / "closed/link");
    REQUIRE(::chmod((here / "").c_str(), 0755) == 0);
    REQUIRE(::chmod((here / "closed").c_str(), 0711) == 0);
    CHECK(as_nobody([&] {
        int error = 0;
        copy::tree const listed = copy::tree::open((here / "closed").string(), error);
        bool const is_closed = error == EACCES;
        struct stat status {};
        copy::tree const root = copy::tree::open_to_read((here / "closed").string(), error);
        return is_closed && error == 0 && root.target_of_link("link", status, error) == "nowhere" &&
               root.open_at("file", O_RDONLY, error).is_open();
    }));
}

TEST_CASE("copy: a directory that was there keeps what its files inherit", "[programs]") {
    folder here;
    fs::create_directories(here / "old");
    REQUIRE(::chmod((here / "old").c_str(), 02755) == 0);
    int error = 0;
    copy::tree const root = copy::tree::open((here / "").string(), error);
    copy::file_id made;
    REQUIRE(root.make_directory("old", made) == 0);
    copy::attributes a;
    a.mode = 0700;
    a.mtime = {5, 6};
    struct stat s {};
    copy::extended lost;
    REQUIRE(root.set_attributes("old", made, a, s, lost) == 0);
    s = root.status_of("old", error);
    CHECK((s.st_mode & 07777) == 02700);
    CHECK(s.st_mtim.tv_sec == 5);
}

TEST_CASE(
    "copy: a hard link needs CAP_DAC_READ_SEARCH or /proc, and is never made by name", "[programs]"
) {
    folder here;
    REQUIRE(::chmod((here / "").c_str(), 0777) == 0);
    auto const makes_links = [&] {
        int error = 0;
        copy::tree const root = copy::tree::open((here / "").string(), error);
        std::string const name = ::geteuid() == 0 ? "roots" : "nobodys";
        std::ofstream{here / name} << "text";
        struct stat const s = root.status_of(name, error);
        auto const link = [&](std::string const& as) {
            return root.make_hard_link(name + as, name, copy::file_id::of(s), false, false);
        };
        int by_descriptor = -1;
        int by_proc = -1;
        int by_none = -1;
        by_descriptor = link("1");
        where_refused(
            SYS_linkat, ENOENT, [&] { by_proc = link("2"); }, AT_EMPTY_PATH, 4
        );
        where_refused(SYS_linkat, ENOENT, [&] { by_none = link("3"); });
        return by_descriptor == 0 && by_proc == 0 && by_none == EOPNOTSUPP &&
               root.status_of(name, error).st_nlink == 3;
    };
    CHECK(makes_links());
    if (::geteuid() == 0) CHECK(as_nobody(makes_links));
}

TEST_CASE("copy: of two files that get one name, neither removes the other") {
    folder here;
    int error = 0;
    copy::tree const root = copy::tree::open((here / "").string(), error);
    REQUIRE(error == 0);
    copy::descriptor const directory = root.open_at("", O_RDONLY | O_DIRECTORY, error);
    REQUIRE(error == 0);
    std::atomic<int> ready = 0;
    std::atomic<int> failures = 0;
    constexpr int rounds = 8'000;
    auto const name_files = [&](std::string const& temporary, bool is_link) {
        for (int i = 1; i <= rounds; ++i) {
            int failed = 0;
            copy::descriptor const file =
                copy::open_here(directory, temporary, O_RDWR | O_CREAT | O_EXCL, failed);
            struct stat s {};
            if (failed != 0 || ::fstat(file.get(), &s) != 0) ++failures;
            // Both at once.
            ++ready;
            while (ready < 2 * i) {}
            copy::file_id const id = copy::file_id::of(s);
            failed = is_link ? root.make_hard_link({"name"}, temporary, id, true, false)
                             : copy::give_name(directory, file, temporary, "name", id, true);
            if (is_link) ::unlinkat(directory.get(), temporary.c_str(), 0);
            // One that links an existing file does not know whether its name has been the other's.
            if (failed != 0 && !(is_link && failed == copy::error_target_changed)) ++failures;
            if (::faccessat(directory.get(), "name", F_OK, 0) != 0) ++failures;
        }
    };
    bool const has_links = GENERATE(false, true);
    std::thread other{[&] { name_files("two", has_links); }};
    name_files("one", has_links);
    other.join();
    CHECK(failures == 0);
    CHECK(fs::exists(here / "name"));
}
