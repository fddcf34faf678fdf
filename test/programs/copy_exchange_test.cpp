// What rdma-copy does when a local user exchanges names in a target while it works there.
//
// No test depends on who is faster: the names are exchanged before the first system call with a path, before the
// second, and so on, until there is none left.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "rdma-copy/incoming_file.hpp"
#include "rdma-copy/result.hpp"
#include "rdma-copy/tree.hpp"
#include "support/catch.hpp"
#include "support/folder.hpp"
#include "support/system_calls.hpp"

using test::folder;

namespace fs = std::filesystem;

namespace {

// Both names exist afterwards, or nothing has changed.
void exchange(fs::path const& a, fs::path const& b) {
    static_cast<void>(!::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
}

struct stat status_of(fs::path const& at) {
    struct stat s {};
    if (::lstat(at.c_str(), &s) != 0) s = {};
    return s;
}

// The temporary file in a directory; none if there is none.
fs::path temporary_in(fs::path const& directory) {
    for (auto const& e : fs::directory_iterator{directory})
        if (copy::is_reserved(e.path().filename().string())) return e.path();
    return {};
}

struct attempt {
    folder here;
    copy::tree root;
    int error = 0;

    attempt() { root = copy::tree::open((here / "").string(), error); }
};

// Repeats an attempt with an exchange before each of its calls: for good, or until the next call.
void exchange_before_each_call(
    std::function<void(attempt&)> const& prepare,
    std::function<void(attempt&)> const& work,
    std::function<void(attempt&)> const& swap,
    std::function<void(attempt&)> const& check
) {
    bool const is_brief = GENERATE(false, true);
    bool has_swapped = true;
    for (unsigned at = 0; has_swapped; ++at) {
        attempt a;
        prepare(a);
        has_swapped = false;
        unsigned const calls = test::stop_before_paths(
            [&] { work(a); },
            [&](unsigned now, char const*) {
                if (now != at && !(is_brief && now == at + 1)) return;
                has_swapped = true;
                swap(a);
            }
        );
        if (calls == 0) {
            WARN("skipped: this kernel does not stop system calls");
            return;
        }
        CAPTURE(is_brief, at, calls, a.error);
        check(a);
    }
}

void write_text(fs::path const& at, std::string const& text) { std::ofstream{at} << text; }

}  // namespace

TEST_CASE("copy: a hard link is made to the file that was checked", "[programs]") {
    bool const replaces = GENERATE(false, true);
    copy::file_id id;
    exchange_before_each_call(
        [&](attempt& a) {
            write_text(a.here / "first", "root's");
            write_text(a.here / "hers", "hers");
            fs::create_directory(a.here / "private");
            if (replaces) write_text(a.here / "private/second", "old");
            id = {status_of(a.here / "first").st_dev, status_of(a.here / "first").st_ino};
        },
        [&](attempt& a) {
            a.error = a.root.make_hard_link("private/second", "first", id, replaces, false);
        },
        [&](attempt& a) { exchange(a.here / "first", a.here / "hers"); },
        [&](attempt& a) {
            fs::path const made = a.here / "private/second";
            if (a.error == 0) CHECK(status_of(made).st_ino == id.inode);
            else CHECK(fs::exists(made) == replaces);
            CHECK(temporary_in(a.here / "private").empty());
        }
    );
}

TEST_CASE("copy: a name that replaces another is that of the file that was made", "[programs]") {
    copy::file_id id;
    exchange_before_each_call(
        [&](attempt& a) {
            write_text(a.here / "first", "root's");
            write_text(a.here / "second", "old");
            write_text(a.here / "hers", "hers");
            id = {status_of(a.here / "first").st_dev, status_of(a.here / "first").st_ino};
        },
        [&](attempt& a) { a.error = a.root.make_hard_link("second", "first", id, true, false); },
        [&](attempt& a) {
            fs::path const temporary = temporary_in(a.here / "");
            if (!temporary.empty()) exchange(temporary, a.here / "hers");
        },
        [&](attempt& a) {
            if (a.error == 0) CHECK(status_of(a.here / "second").st_ino == id.inode);
        }
    );
}

TEST_CASE("copy: the attributes of a symbolic link go to that link", "[programs]") {
    if (::geteuid() != 0) {
        WARN("skipped: only root gives files to others");
        return;
    }
    bool const exists = GENERATE(false, true);
    struct stat now {};
    copy::attributes given;
    given.mtime = {5, 6};
    given.owned_by = copy::attributes::owner{1234, 5678};
    exchange_before_each_call(
        [&](attempt& a) {
            write_text(a.here / "precious", "root's");
            if (exists) fs::create_symlink("old", a.here / "link");
        },
        [&](attempt& a) {
            a.error = a.root.make_symbolic_link("link", "nowhere", given, true, false, now);
        },
        [&](attempt& a) { exchange(a.here / "link", a.here / "precious"); },
        [&](attempt& a) {
            for (fs::path const& at : {a.here / "link", a.here / "precious"}) {
                struct stat const s = status_of(at);
                if (!S_ISREG(s.st_mode)) continue;
                CHECK(s.st_uid == 0);
                CHECK(s.st_mtim.tv_sec != 5);
            }
            struct stat const s = status_of(a.here / "link");
            if (a.error == 0 && S_ISLNK(s.st_mode)) CHECK(s.st_uid == 1234);
        }
    );
}

TEST_CASE("copy: a directory gets rights that follow from its own", "[programs]") {
    ino_t closed = 0;
    copy::file_id id;
    exchange_before_each_call(
        [&](attempt& a) {
            fs::create_directory(a.here / "open");
            fs::create_directory(a.here / "closed");
            REQUIRE(::chmod((a.here / "open").c_str(), 0577) == 0);
            REQUIRE(::chmod((a.here / "closed").c_str(), 0500) == 0);
            closed = status_of(a.here / "closed").st_ino;
        },
        [&](attempt& a) { a.error = a.root.make_directory("open", id); },
        [&](attempt& a) { exchange(a.here / "open", a.here / "closed"); },
        [&](attempt& a) {
            for (fs::path const& at : {a.here / "open", a.here / "closed"}) {
                struct stat const s = status_of(at);
                CHECK((s.st_mode & 0077) == (s.st_ino == closed ? 0 : 0077));
            }
        }
    );
}

TEST_CASE("copy: a file that is finished has its name, or no other file has it", "[programs]") {
    bool const replaces = GENERATE(false, true);
    copy::file_id id;
    exchange_before_each_call(
        [&](attempt& a) {
            write_text(a.here / "hers", "hers");
            if (replaces) write_text(a.here / "name", "old");
        },
        [&](attempt& a) {
            copy::incoming_options options;
            options.size = 4;
            options.replaces = replaces;
            copy::incoming_file f = copy::incoming_file::create(a.root, "name", options, a.error);
            if (a.error != 0) return;
            bool const is_written = ::pwrite(f.descriptor_of_data(), "data", 4, 0) == 4;
            a.error = f.finish({}, {});
            if (!is_written) a.error = EIO;
            id = f.id();
        },
        [&](attempt& a) {
            fs::path const temporary = temporary_in(a.here / "");
            if (!temporary.empty()) exchange(temporary, a.here / "hers");
        },
        [&](attempt& a) {
            if (a.error == 0) CHECK(status_of(a.here / "name").st_ino == id.inode);
        }
    );
}

TEST_CASE("copy: what is verified is the file that was written", "[programs]") {
    std::string const good(5000, 'g');
    exchange_before_each_call(
        [&](attempt& a) { write_text(a.here / "hers", good); },
        [&](attempt& a) {
            copy::incoming_options options;
            options.size = good.size();
            options.verifies = true;
            copy::incoming_file f = copy::incoming_file::create(a.root, "name", options, a.error);
            if (a.error != 0) return;
            copy::file_part const part{good.size(), copy::hash_of(std::as_bytes(std::span{good}))};
            a.error = f.finish({}, {part});  // of a file that is full of zeros
        },
        [&](attempt& a) {
            fs::path const temporary = temporary_in(a.here / "");
            if (!temporary.empty()) exchange(temporary, a.here / "hers");
        },
        [&](attempt& a) {
            CHECK(a.error != 0);
            CHECK_FALSE(fs::exists(a.here / "name"));
        }
    );
}

TEST_CASE("copy: a file that was there is the one that gets the mode", "[programs]") {
    ino_t other = 0;
    exchange_before_each_call(
        [&](attempt& a) {
            write_text(a.here / "file", "data");
            write_text(a.here / "other", "secret");
            REQUIRE(::chmod((a.here / "file").c_str(), 0644) == 0);
            REQUIRE(::chmod((a.here / "other").c_str(), 0600) == 0);
            other = status_of(a.here / "other").st_ino;
        },
        [&](attempt& a) {
            copy::incoming_options options;
            options.size = 4;
            options.continues = true;
            options.mtime = status_of(a.here / "file").st_mtim;
            copy::incoming_file f = copy::incoming_file::create(a.root, "file", options, a.error);
            copy::attributes given;
            given.mode = 0666;
            if (a.error == 0) a.error = f.finish(given, {});
        },
        [&](attempt& a) { exchange(a.here / "file", a.here / "other"); },
        [&](attempt& a) {
            for (fs::path const& at : {a.here / "file", a.here / "other"}) {
                struct stat const s = status_of(at);
                if (s.st_ino == other) CHECK((s.st_mode & 0777) == 0600);
            }
        }
    );
}
