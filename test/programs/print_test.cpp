// Programs that print while nobody reads.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <string>

#include "common/print.hpp"
#include "support/catch.hpp"

namespace {

// A pipe of one page, and a child whose output it is.
class printing_child {
public:
    explicit printing_child(std::function<void()> const& body) {
        std::array<int, 2> ends{};
        REQUIRE(::pipe(ends.data()) == 0);
        REQUIRE(::fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 0);
        read_from_ = ends[0];
        std::fflush(stdout);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::close(ends[0]);
            ::dup2(ends[1], STDOUT_FILENO);
            ::dup2(ends[1], STDERR_FILENO);
            body();
            ::_exit(0);
        }
        ::close(ends[1]);
    }
    ~printing_child() { close(); }

    void close() {
        if (read_from_ >= 0) ::close(read_from_);
        read_from_ = -1;
    }
    std::string read_all() const {
        std::string all;
        std::array<char, 4096> part{};
        for (ssize_t n = 0; (n = ::read(read_from_, part.data(), part.size())) > 0;)
            all.append(part.data(), static_cast<std::size_t>(n));
        return all;
    }
    // 0 if it ended by itself.
    int status() const {
        int status = 0;
        ::waitpid(pid_, &status, 0);
        return status;
    }

private:
    int read_from_ = -1;
    pid_t pid_ = 0;
};

void print_many(int count) {
    demo::background_printing const printing;
    for (int i = 0; i < count; ++i) demo::print("line " + std::to_string(i) + '.');
}

}  // namespace

TEST_CASE("a program whose output nobody reads goes on, and ends", "[programs]") {
    printing_child child{[] { print_many(3000); }};
    CHECK(child.status() == 0);
    CHECK(child.read_all().starts_with("line 0.\nline 1.\n"));
}

TEST_CASE("lines that found no room are counted when somebody reads again", "[programs]") {
    printing_child child{[] {
        demo::background_printing const printing;
        // While nobody reads: a page in the pipe, and a thousand lines behind it.
        for (int i = 0; i < 5000; ++i) demo::print("line " + std::to_string(i) + '.');
        ::usleep(300'000);
        demo::print("the last one.");
    }};
    ::usleep(100'000);
    std::string const all = child.read_all();
    CHECK(child.status() == 0);
    // Printed lines and missed ones are all there were; notes and the last line come on top.
    std::string const note = " lines were not printed, because nobody read them\n";
    std::ptrdiff_t printed = std::ranges::count(all, '\n') - 1;
    std::ptrdiff_t missed = 0;
    for (std::size_t gap = all.find(note); gap != all.npos; gap = all.find(note, gap + 1)) {
        std::size_t const begin = all.rfind(' ', gap - 1) + 1;
        missed += std::stoi(all.substr(begin, gap - begin));
        --printed;
    }
    CHECK(missed > 0);
    CHECK(printed + missed == 5000);
    CHECK(all.ends_with("not printed, because nobody read them\nthe last one.\n"));
}

TEST_CASE("a program whose reader has left goes on, and ends", "[programs]") {
    printing_child child{[] {
        ::usleep(50'000);
        print_many(100);
    }};
    child.close();
    CHECK(child.status() == 0);
}

TEST_CASE("all lines are printed in order, from both streams", "[programs]") {
    printing_child child{[] {
        demo::background_printing const printing;
        demo::print("one");
        demo::print_error("two");
        demo::print("three\n");
    }};
    std::string const all = child.read_all();
    CHECK(child.status() == 0);
    CHECK(all == "one\nprogram_tests: two\nthree\\x0a\n");
}
