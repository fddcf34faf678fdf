// Programs that print while nobody reads.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <optional>
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
    std::string read_all() const { return read_some(std::string::npos); }
    /// At least that many bytes, or all.
    std::string read_some(std::size_t least) const {
        std::string all;
        std::array<char, 4096> part{};
        for (ssize_t n = 1; n > 0 && all.size() < least;) {
            n = ::read(read_from_, part.data(), part.size());
            if (n > 0) all.append(part.data(), static_cast<std::size_t>(n));
        }
        return all;
    }
    /// Waits until there is something to read.
    void wait_for_bytes() const {
        pollfd filled{read_from_, POLLIN, 0};
        ::poll(&filled, 1, -1);
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

// What one process waits for and another one lets happen.
class occasion {
public:
    occasion() { REQUIRE(::pipe(ends_.data()) == 0); }
    ~occasion() {
        for (int const end : ends_) ::close(end);
    }
    void wait() const {
        char byte = 0;
        static_cast<void>(::read(ends_[0], &byte, 1));
    }
    void let_happen() const { static_cast<void>(::write(ends_[1], "!", 1)); }

private:
    std::array<int, 2> ends_{};
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
    occasion all_are_printed;
    occasion there_is_room;
    printing_child child{[&] {
        demo::background_printing const printing;
        // While nobody reads: a page in the pipe, and a thousand lines behind it. A printing thread that
        // begins late makes room for some of the last lines, too.
        for (int i = 0; i < 5000; ++i) demo::print("line " + std::to_string(i) + '.');
        all_are_printed.let_happen();
        there_is_room.wait();
        demo::print("the last one.");
    }};
    all_are_printed.wait();
    // More than the pipe holds, so lines that waited for it have gone.
    std::string all = child.read_some(8192);
    there_is_room.let_happen();
    all += child.read_all();
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
    CAPTURE(all.substr(all.size() - std::min<std::size_t>(all.size(), 300)));
    CHECK(missed > 0);
    CHECK(printed + missed == 5000);
    CHECK(all.ends_with("\nthe last one.\n"));
}

TEST_CASE("lines keep their bound when there is room for a single one", "[programs]") {
    occasion all_are_printed;
    occasion there_is_room;
    occasion more_are_printed;
    printing_child child{[&] {
        demo::background_printing const printing;
        // Each fills the pipe.
        std::string const page(4095, 'x');
        for (int i = 0; i < 1200; ++i) demo::print(page);
        all_are_printed.let_happen();
        there_is_room.wait();
        for (int i = 0; i < 500; ++i) demo::print(page);
        more_are_printed.let_happen();
    }};
    all_are_printed.wait();
    std::string all = child.read_some(4096);
    child.wait_for_bytes();
    there_is_room.let_happen();
    more_are_printed.wait();
    all += child.read_all();
    CHECK(child.status() == 0);
    // The queue holds a thousand lines; one is in the pipe, one is being written, one had been read.
    CHECK(std::ranges::count(all, 'x') <= 1010 * 4095);
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

TEST_CASE("output that a full device does not take is an error", "[programs]") {
    bool const is_in_background = GENERATE(false, true);
    CAPTURE(is_in_background);
    printing_child child{[&] {
        int const full = ::open("/dev/full", O_WRONLY);
        ::dup2(full, STDOUT_FILENO);
        {
            std::optional<demo::background_printing> printing;
            if (is_in_background) printing.emplace();
            demo::print("a line");
        }
        ::_exit(demo::output_error() == ENOSPC ? 3 : 4);
    }};
    child.close();
    int const status = child.status();
    CHECK(WEXITSTATUS(status) == 3);
}
