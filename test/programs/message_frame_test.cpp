// The demos' message in a region: reads return what was written, and any other content is rejected.
#include "common/message_frame.hpp"

#include <cstring>
#include <random>
#include <vector>

#include "support/catch.hpp"

using namespace demo;

namespace {
std::vector<std::byte> framed(std::size_t size, std::string const& text) {
    std::vector<std::byte> region(size);
    write_frame(region, text);
    return region;
}
}  // namespace

TEST_CASE("a message comes back as it was written, bounded by its region", "[message_frame]") {
    for (std::size_t const size : {frame_bytes_min, frame_bytes_min + 1, std::size_t{4096}}) {
        std::vector<std::byte> const region = framed(size, "hello");
        CHECK(read_frame(region).text == "hello");
        // A text that is too long is cut.
        std::string const longer(2 * size, 'x');
        CHECK(read_frame(framed(size, longer)).text == longer.substr(0, size - frame_head_bytes));
        CHECK(read_frame(framed(size, "")).text == "");
    }
    // In a larger region of the peer: the bytes behind the frame are ignored.
    std::vector<std::byte> region = framed(256, "hello");
    region.resize(1024, std::byte{0xff});
    CHECK(read_frame(region).text == "hello");
}

TEST_CASE("every damaged byte of a message is detected", "[message_frame]") {
    std::vector<std::byte> const whole = framed(256, "hello");
    for (std::size_t i = 0; i < whole.size(); ++i) {
        std::vector<std::byte> damaged = whole;
        damaged[i] ^= std::byte{0x40};
        frame_text const read = read_frame(damaged);
        CHECK_FALSE(read.text);
        CHECK_FALSE(read.problem.empty());
    }
    CHECK_FALSE(read_frame(std::vector<std::byte>(256)).text);
    CHECK_FALSE(read_frame(std::vector<std::byte>(3)).text);
}

TEST_CASE("random bytes are never taken for a message", "[message_frame]") {
    std::mt19937 random{11};
    for (int i = 0; i < 20'000; ++i) {
        std::vector<std::byte> region(random() % 300);
        for (std::byte& b : region) b = static_cast<std::byte>(random());
        if (region.size() >= 4 && i % 2 == 0) std::memcpy(region.data(), "RCVD", 4);
        CHECK_FALSE(read_frame(region).text);
    }
}
