#include "common/message_frame.hpp"

#include <boost/endian/conversion.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <xxhash.h>

namespace demo {

namespace {

constexpr std::uint32_t magic = 0x52435644;  // "RCVD"

template <class T>
void store(std::byte* at, T value) {
    boost::endian::native_to_big_inplace(value);
    std::memcpy(at, &value, sizeof value);
}

template <class T>
T load(std::byte const* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return boost::endian::big_to_native(value);
}

}  // namespace

void write_frame(std::span<std::byte> region, std::string_view text) {
    std::span<std::byte> const body = region.subspan(frame_head_bytes);
    std::size_t const length = std::min(text.size(), body.size());
    std::memcpy(body.data(), text.data(), length);
    // The padding differs from byte to byte and from text to text, so that misplaced or missing
    // bytes change the checksum.
    std::uint64_t state = XXH64(text.data(), length, 0);
    for (std::byte& b : body.subspan(length)) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;  // Knuth's MMIX generator
        b = static_cast<std::byte>(state >> 56);
    }
    store(region.data(), magic);
    store(region.data() + 4, static_cast<std::uint32_t>(length));
    store(region.data() + 8, static_cast<std::uint64_t>(region.size()));
    store(region.data() + 16, static_cast<std::uint64_t>(XXH64(body.data(), body.size(), length)));
}

frame_text read_frame(std::span<std::byte const> region) {
    if (region.size() < frame_head_bytes) return {{}, "the region is too small for a message"};
    std::size_t const length = load<std::uint32_t>(region.data() + 4);
    std::uint64_t const total = load<std::uint64_t>(region.data() + 8);
    if (load<std::uint32_t>(region.data()) != magic) return {{}, "no message arrived"};
    if (total > region.size())
        return {{}, "the message is longer than the region; use the same --size on both sides"};
    if (total < frame_head_bytes || length > total - frame_head_bytes)
        return {{}, "the message's lengths are wrong"};
    std::span<std::byte const> const body =
        region.subspan(frame_head_bytes, total - frame_head_bytes);
    if (XXH64(body.data(), body.size(), length) != load<std::uint64_t>(region.data() + 16)) {
        return {{}, "the message's checksum is wrong"};
    }
    return {std::string(reinterpret_cast<char const*>(body.data()), length), {}};  // bytes as text
}

}  // namespace demo
