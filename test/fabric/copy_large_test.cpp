// Files of ten gigabytes through eight megabytes.
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "device/copy_fixture.hpp"

using namespace test;

namespace {

constexpr std::uint64_t size = 10'000'000'000;

// The most that this process has had resident, in KiB.
long peak() {
    rusage used{};
    REQUIRE(::getrusage(RUSAGE_SELF, &used) == 0);
    return used.ru_maxrss;
}

bool have_same_content(fs::path const& a, fs::path const& b) {
    std::ifstream first{a, std::ios::binary};
    std::ifstream second{b, std::ios::binary};
    std::vector<char> x(mebibyte);
    std::vector<char> y(mebibyte);
    for (std::uint64_t done = 0; done < size;) {
        auto const bytes =
            static_cast<std::streamsize>(std::min<std::uint64_t>(mebibyte, size - done));
        first.read(x.data(), bytes);
        second.read(y.data(), bytes);
        if (first.gcount() != bytes || second.gcount() != bytes) return false;
        if (std::memcmp(x.data(), y.data(), static_cast<std::size_t>(bytes)) != 0) return false;
        done += static_cast<std::uint64_t>(bytes);
    }
    return fs::file_size(a) == size && fs::file_size(b) == size;
}

}  // namespace

TEST_CASE("ten gigabytes are copied through eight mebibytes", "[.gigabytes]") {
    folder here;
    constexpr std::uint64_t needed = 2 * size + (std::uint64_t{1} << 30);
    if (fs::space(here.string()).available < needed) {
        WARN("skipped: 21 GB of disk are needed in " << here.string());
        return;
    }
    bool const is_sparse = GENERATE(true, false);
    std::string const kind = is_sparse ? "with holes" : "without holes";
    if (is_sparse) {
        // The ends, and a few blocks between.
        write_large(here / "file", 100'000, 1);
        fs::resize_file(here / "file", size);
        std::ofstream in{here / "file", std::ios::binary | std::ios::in};
        for (std::uint64_t at = size / 7; at < size; at += size / 7) {
            in.seekp(static_cast<std::streamoff>(at));
            in.write("data", 4);
        }
    } else {
        write_large(here / "file", size, 1);
    }
    fs::create_directory(here / "target");
    long const before = peak();
    asio::io_context io;
    ends e{io, std::size_t{8} << 20, here / "target"};
    auto const done = pushed(e, io, {(here / "file").string()}, "");
    long const grown = peak() - before;
    CHECK(done.failed == 0);
    CHECK(done.bytes == size);
    CHECK(have_same_content(here / "file", here / "target/file"));
    // Both sides: 8 MiB of slots, 2 MiB of blocks, messages.
    std::printf("10 GB %s: %ld KiB more memory than before\n", kind.c_str(), grown);
    CHECK(grown < 40 * 1024);
}
