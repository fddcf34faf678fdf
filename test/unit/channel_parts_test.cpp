// Parts of channels that need no connection: work in turns, the memory for segments, and the bytes of a
// message.
#include <cstdint>
#include <memory>
#include <vector>

#include "messages/fetching.hpp"
#include "messages/outgoing_message.hpp"
#include "messages/turns.hpp"
#include "support/bytes.hpp"
#include "support/catch.hpp"

using namespace rcverbs;
using detail::outgoing_message;
using detail::parts_of;
using detail::turns;

TEST_CASE("work in turns starts in order, and as much at a time as may", "[messages]") {
    turns<std::shared_ptr<int>> all{2};
    std::vector<std::shared_ptr<int>> const work{
        std::make_shared<int>(0),
        std::make_shared<int>(1),
        std::make_shared<int>(2),
        std::make_shared<int>(3)};
    CHECK(all.begin(work[0]));
    CHECK(all.begin(work[1]));
    CHECK_FALSE(all.begin(work[2]));
    CHECK_FALSE(all.begin(work[3]));
    CHECK(all.end() == work[2]);
    CHECK(all.end() == work[3]);
    CHECK(all.end() == nullptr);
    CHECK(all.begin(work[0]));
    CHECK_FALSE(all.begin(work[1]));
    CHECK(all.take_all().size() == 1);
    CHECK(all.end() == nullptr);
    CHECK(all.end() == nullptr);
}

TEST_CASE("the memory of a fetch is cut where the sender's segments end", "[messages]") {
    std::vector<std::byte> bytes(100);
    auto const at = [&](std::size_t offset, std::size_t size) {
        return mutable_slice{std::span{bytes}.subspan(offset, size), local_key{7}};
    };
    wire::channel_segments segments;
    for (std::uint64_t const size : {10U, 0U, 25U, 5U})
        segments.list[segments.count++] =
            remote_region{4096, size, remote_key{1}, access_flags::remote_read};
    // Of 40 bytes in all, one of them empty.
    mutable_slices const into{std::vector{at(0, 4), at(50, 0), at(60, 30), at(10, 6)}};
    auto const parts = parts_of(rcverbs::detail::access::list_of(into), segments);
    std::vector<std::vector<std::pair<std::size_t, std::size_t>>> found;
    for (auto const& of_one : parts) {
        auto& list = found.emplace_back();
        for (mutable_slice const& each : of_one) {
            list.emplace_back(
                static_cast<std::size_t>(each.bytes().data() - bytes.data()), each.size()
            );
            CHECK(each.key() == local_key{7});
        }
    }
    using list = std::vector<std::pair<std::size_t, std::size_t>>;
    CHECK(found == std::vector<list>{{{0, 4}, {60, 6}}, {}, {{66, 24}, {10, 1}}, {{11, 5}}});
}

TEST_CASE("a message has its head, its prefix, and its body or segments", "[messages]") {
    std::vector<std::byte> const body(5, std::byte{0xbb});
    outgoing_message m;
    m.prefix.append(std::vector<std::byte>(3, std::byte{0xaa}));
    m.size_bytes = body.size();
    std::vector<std::byte> place(100, std::byte{0});
    wire::channel_head head;
    SECTION("a small one") {
        m.source = rcverbs::detail::slice_list{
            rcverbs::detail::access::plain_of(const_slice{body, local_key{}})};
        CHECK(m.encode(head, place) == 8);
        CHECK(head.count == 8);
        CHECK(place[wire::channel_head_bytes + 2] == std::byte{0xaa});
        CHECK(place[wire::channel_head_bytes + 3] == std::byte{0xbb});
        CHECK(place[wire::channel_head_bytes + 7] == std::byte{0xbb});
        CHECK(place[wire::channel_head_bytes + 8] == std::byte{0});
    }
    SECTION("a large one") {
        m.is_large = true;
        m.memory = std::make_unique<rcverbs::detail::outgoing_message::exposed>();
        m.memory->segments.resize(
            2, remote_region{4096, 5, remote_key{1}, access_flags::remote_read}
        );
        CHECK(m.encode(head, place) == 2 * remote_region::encoded_bytes + 3);
        CHECK(head.count == 2);
        CHECK(
            place[wire::channel_head_bytes + 2 * remote_region::encoded_bytes] == std::byte{0xaa}
        );
    }
    CHECK(m.all_bytes() == 8);
}
