// How a file store recognizes its file, and keeps others away from it.
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <rcverbs/nvme/file_store.hpp>
#include <rcverbs/nvme/memory_store.hpp>

#include "block_size.hpp"
#include "identity.hpp"

namespace fs = std::filesystem;
namespace nvme = rcverbs::nvme;

namespace {

/// A folder whose files keep extended attributes.
class folder {
public:
    folder() {
        std::string name = "/var/tmp/rcverbs-identity-XXXXXX";
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path_ = name;
    }
    ~folder() { fs::remove_all(path_); }
    fs::path make(std::string const& name) const {
        std::ofstream{path_ / name};
        fs::resize_file(path_ / name, 65536);
        return path_ / name;
    }
    fs::path const& path() const { return path_; }

private:
    fs::path path_;
};

nvme::file_store_options with(bool is_read_only, bool is_shared) {
    nvme::file_store_options o;
    o.is_read_only = is_read_only;
    o.is_shared = is_shared;
    o.method = nvme::file_method::threads;
    o.threads = 1;
    return o;
}

auto uuid_of(fs::path const& file) {
    auto const id = nvme::file_store{file, with(false, false)}.uuid();
    REQUIRE(id.has_value());
    return *id;
}

// The error number of opening a store; 0 if it opens.
int opening(fs::path const& file, nvme::file_store_options const& o) {
    try {
        nvme::file_store const opened{file, o};
        return 0;
    } catch (boost::system::system_error const& e) {
        return e.code().value();
    }
}

std::string attribute_of(fs::path const& file) {
    std::string value(512, ' ');
    ssize_t const size = ::getxattr(file.c_str(), "user.rcverbs.uuid", value.data(), value.size());
    value.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return value;
}

}  // namespace

TEST_CASE("nvme: a file keeps its identity, under another name, too", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    auto const first = uuid_of(file);
    CHECK(uuid_of(file) == first);
    fs::rename(file, here.path() / "b");
    CHECK(uuid_of(here.path() / "b") == first);
}

TEST_CASE("nvme: another file of the same name has another identity", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    auto const first = uuid_of(file);
    fs::rename(here.make("b"), file);
    CHECK(uuid_of(file) != first);
}

TEST_CASE("nvme: a copy with its attributes has an identity of its own", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    auto const first = uuid_of(file);
    fs::path const copy = here.make("b");
    std::string const value = attribute_of(file);
    if (value.empty()) WARN("the file system keeps no attributes: the UUID is derived");
    else REQUIRE(::setxattr(copy.c_str(), "user.rcverbs.uuid", value.data(), value.size(), 0) == 0);
    auto const other = uuid_of(copy);
    CHECK(other != first);
    CHECK(uuid_of(copy) == other);
    CHECK(uuid_of(file) == first);
}

TEST_CASE("nvme: a file of a machine that was cloned has an identity of its own", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    auto const first = uuid_of(file);
    std::string const value = attribute_of(file);
    if (value.empty()) {
        WARN("skipped: the file system keeps no attributes");
        return;
    }
    CHECK_FALSE(nvme::file_store(file, with(false, false)).uuid_elsewhere());
    // As the clone finds it: another UUID, with the same handle, of another machine.
    std::string const handle = value.substr(37, value.find(' ', 37) - 37);
    std::string const original = "00112233-4455-6677-8899-aabbccddeeff " + handle + " another";
    auto const keep = [&](std::string const& text) {
        REQUIRE(::setxattr(file.c_str(), "user.rcverbs.uuid", text.data(), text.size(), 0) == 0);
    };
    keep(original);
    CHECK(uuid_of(file) == first);
    CHECK(attribute_of(file) == original);
    auto const elsewhere = nvme::file_store{file, with(false, false)}.uuid_elsewhere();
    REQUIRE(elsewhere);
    CHECK((*elsewhere)[1] == std::byte{0x11});
    // On its own machine, the file keeps what is there.
    keep("00112233-4455-6677-8899-aabbccddeeff " + handle + ' ' + nvme::detail::machine_name());
    CHECK(uuid_of(file) == *elsewhere);
}

TEST_CASE("nvme: a file that is only read gets no attribute", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    nvme::file_store const read_only{file, with(true, false)};
    CHECK(attribute_of(file).empty());
    CHECK(read_only.uuid().has_value());
}

TEST_CASE("nvme: each store in memory has an identity of its own", "[nvme]") {
    nvme::memory_store const a{4096};
    nvme::memory_store const b{4096};
    CHECK(a.uuid() != b.uuid());
    CHECK(a.uuid() == a.uuid());
}

TEST_CASE("nvme: a file is served by one store", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    {
        nvme::file_store const first{file, with(false, false)};
        CHECK(opening(file, with(false, false)) == EAGAIN);
        CHECK(opening(file, with(true, false)) == EAGAIN);
        CHECK(opening(file, with(false, true)) == EAGAIN);
    }
    CHECK(opening(file, with(false, false)) == 0);
}

TEST_CASE("nvme: a file that is only read may be read by several stores", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    nvme::file_store const first{file, with(true, false)};
    CHECK(opening(file, with(true, false)) == 0);
    CHECK(opening(file, with(false, false)) == EAGAIN);
    CHECK(opening(file, with(false, true)) == EAGAIN);
    CHECK(opening(file, with(true, true)) == EAGAIN);
}

TEST_CASE("nvme: a file is shared by stores that all allow it", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    nvme::file_store const first{file, with(false, true)};
    CHECK(opening(file, with(false, true)) == 0);
    CHECK(opening(file, with(true, true)) == 0);
    CHECK(opening(file, with(false, false)) == EAGAIN);
    CHECK(opening(file, with(true, false)) == EAGAIN);
}

TEST_CASE(
    "nvme: a store that takes another one's place may use the file in another way", "[nvme]"
) {
    folder here;
    fs::path const file = here.make("a");
    auto const way = [](int i) { return with(i == 1, i == 2); };
    int const before = GENERATE(0, 1, 2);
    int const after = GENERATE(0, 1, 2);
    INFO(before << " to " << after);
    auto first = std::make_unique<nvme::file_store>(file, way(before));
    auto second = std::make_unique<nvme::file_store>(file, way(after), *first);
    CHECK(second->uuid() == first->uuid());
    // As of the one that excludes more, until one of them is gone.
    bool const is_last_first = GENERATE(true, false);
    int const left = is_last_first ? before : after;
    (is_last_first ? second : first).reset();
    CHECK(opening(file, with(false, false)) == EAGAIN);
    CHECK(opening(file, with(true, false)) == (left == 1 ? 0 : EAGAIN));
    CHECK(opening(file, with(false, true)) == (left == 2 ? 0 : EAGAIN));
    first.reset();
    second.reset();
    CHECK(opening(file, with(false, false)) == 0);
}

TEST_CASE("nvme: a store that cannot take another one's place leaves it its lock", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    nvme::file_store const reader{file, with(true, false)};
    nvme::file_store const other{file, with(true, false)};
    try {
        nvme::file_store const writer{file, with(false, false), reader};
        FAIL("opened");
    } catch (boost::system::system_error const& e) {
        CHECK(e.code().value() == EAGAIN);
    }
    CHECK(opening(file, with(true, false)) == 0);
    CHECK(opening(file, with(false, true)) == EAGAIN);
}

TEST_CASE("nvme: a store that takes another one's place takes over its lock", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    auto first = std::make_unique<nvme::file_store>(file, with(false, false));
    nvme::file_store const second{file, with(true, false), *first};
    CHECK(second.uuid() == first->uuid());
    first.reset();
    CHECK(opening(file, with(false, false)) == EAGAIN);
    // The lock of another file is none of this one's.
    fs::path const other = here.make("b");
    nvme::file_store const holder{other, with(false, false)};
    try {
        nvme::file_store const third{other, with(false, false), second};
        FAIL("opened");
    } catch (boost::system::system_error const& e) {
        CHECK(e.code().value() == EAGAIN);
    }
}

TEST_CASE("nvme: a store knows whether a path leads to its file", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    nvme::file_store const store{file, with(false, false)};
    CHECK(store.is_at(file));
    fs::rename(here.make("b"), file);
    CHECK_FALSE(store.is_at(file));
    CHECK_FALSE(store.is_at(here.path() / "none"));
}

TEST_CASE("nvme: the block size is that of what the file holds", "[nvme]") {
    using nvme::detail::block_bytes_in;
    auto const holding = [](std::size_t at, std::string const& text) {
        std::vector<std::byte> image(nvme::detail::block_size_probe_bytes);
        std::memcpy(image.data() + at, text.data(), text.size());
        return image;
    };
    CHECK(block_bytes_in({}) == 4096);
    CHECK(block_bytes_in(holding(0, "nothing known")) == 4096);
    CHECK(block_bytes_in(holding(512, "EFI PART")) == 512);
    CHECK(block_bytes_in(holding(4096, "EFI PART")) == 4096);
    CHECK(block_bytes_in(holding(510, "\x55\xaa")) == 512);
    // A GUID partition table has a protective one of the old kind before it.
    auto both = holding(4096, "EFI PART");
    both[510] = std::byte{0x55};
    both[511] = std::byte{0xaa};
    CHECK(block_bytes_in(both) == 4096);
    for (auto const& [size, high, low] : {std::tuple{512U, 2, 0}, {4096U, 16, 0}, {1024U, 4, 0}}) {
        auto xfs = holding(0, "XFSB");
        xfs[102] = static_cast<std::byte>(high);
        xfs[103] = static_cast<std::byte>(low);
        CHECK(block_bytes_in(xfs) == size);
    }
    for (auto const& [size, log] : {std::pair{1024U, 0}, {2048U, 1}, {4096U, 2}, {4096U, 6}}) {
        auto ext = holding(1024 + 56, "\x53\xef");
        ext[1024 + 24] = static_cast<std::byte>(log);
        CHECK(block_bytes_in(ext) == size);
    }
    // Any bytes give a size that is valid, and nothing is read beyond them.
    for (std::size_t size = 0; size < 1200; size += 7) {
        std::vector<std::byte> const noise(size, std::byte{0x55});
        CHECK(block_bytes_in(noise) == 4096);
    }
}

TEST_CASE("nvme: a table of partitions shows its block size by where the first begins", "[nvme]") {
    using nvme::detail::block_bytes_in;
    auto const beginning_at = [](std::uint32_t block) {
        std::vector<std::byte> image(nvme::detail::block_size_probe_bytes);
        image[510] = std::byte{0x55};
        image[511] = std::byte{0xaa};
        for (int i = 0; i < 4; ++i)
            image[static_cast<std::size_t>(454 + i)] = static_cast<std::byte>(block >> 8 * i);
        return image;
    };
    CHECK(block_bytes_in(beginning_at(0)) == 512);
    CHECK(block_bytes_in(beginning_at(63)) == 512);
    CHECK(block_bytes_in(beginning_at(2048)) == 512);
    CHECK(block_bytes_in(beginning_at(256)) == 4096);
    // What GRUB writes begins with a jump, and is no file system.
    auto grub = beginning_at(2048);
    grub[0] = std::byte{0xeb};
    CHECK(block_bytes_in(grub) == 512);
    for (char const* const name : {"FAT16   ", "FAT32   "}) {
        auto fat = beginning_at(0);
        std::memcpy(fat.data() + (name[3] == '1' ? 54 : 82), name, 8);
        fat[12] = std::byte{0x10};
        CHECK(block_bytes_in(fat) == 4096);
        fat[12] = std::byte{0x02};
        CHECK(block_bytes_in(fat) == 512);
    }
}

namespace {

/// Reads the first block, as a host does.
class first_block final : public nvme::store_request {
public:
    explicit first_block(nvme::file_store& from) : block_(from.geometry().block_bytes) {
        operation_ = nvme::store_operation::read;
        size_bytes_ = block_.size();
        data_ = block_;
        from.start(*this);
        over_.get_future().get();
    }

private:
    void on_end(outcome) noexcept override { over_.set_value(); }

    std::vector<std::byte> block_;
    std::promise<void> over_;
};

std::uint32_t block_bytes_served(fs::path const& file, nvme::file_store_options const& options) {
    nvme::file_store s{file, options};
    first_block const read{s};
    return s.geometry().block_bytes;
}

}  // namespace

TEST_CASE("nvme: a file keeps the block size with which it was served", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    CHECK(block_bytes_served(file, with(false, false)) == 4096);
    if (attribute_of(file).empty()) {
        WARN("skipped: the file system keeps no attributes");
        return;
    }
    // A host writes a table of partitions that could be one of 512-byte blocks.
    {
        std::fstream table{file, std::ios::in | std::ios::out | std::ios::binary};
        table.seekp(510).write("\x55\xaa", 2);
    }
    CHECK(nvme::file_store{file, with(true, false)}.geometry().block_bytes == 4096);
    // What is asked for wins, and is kept when a host has used it.
    auto small = with(false, false);
    small.block_bytes = 1024;
    CHECK(nvme::file_store{file, small}.geometry().block_bytes == 1024);
    CHECK(nvme::file_store{file, with(false, false)}.geometry().block_bytes == 4096);
    CHECK(block_bytes_served(file, small) == 1024);
    CHECK(nvme::file_store{file, with(false, false)}.geometry().block_bytes == 1024);
    // Another file of the same name is looked at.
    fs::rename(here.make("b"), file);
    CHECK(nvme::file_store{file, with(false, false)}.geometry().block_bytes == 4096);
}

TEST_CASE("nvme: a device is named by a link that identifies it", "[nvme]") {
    using nvme::detail::identifying_link;
    CHECK(identifying_link({}).empty());
    CHECK(identifying_link({"dm-name-vg-data", "lvm-pv-uuid-x", "md-name-host:0"}).empty());
    CHECK(identifying_link({"dm-name-vg-data", "dm-uuid-LVM-x"}) == "dm-uuid-LVM-x");
    CHECK(identifying_link({"ata-b", "ata-a", "lvm-pv-uuid-x"}) == "ata-a");
    CHECK(identifying_link({"ata-a", "wwn-0x5", "scsi-1"}) == "wwn-0x5");
}

TEST_CASE("nvme: a store serves whole blocks of its file, and says what is left", "[nvme]") {
    folder here;
    fs::path const file = here.make("a");
    fs::resize_file(file, 3 * 4096 + 700);
    nvme::file_store const store{file, with(false, true)};
    CHECK(store.geometry().size_bytes == 3 * 4096);
    CHECK(store.geometry().block_bytes == 4096);
    CHECK(store.bytes_left_out() == 700);
    auto small = with(false, true);
    small.block_bytes = 512;
    nvme::file_store const other{file, small};
    CHECK(other.geometry().size_bytes == 3 * 4096 + 512);
    CHECK(other.bytes_left_out() == 188);
    small.block_bytes = 768;
    CHECK(opening(file, small) != 0);
    CHECK(opening(here.path(), with(true, true)) != 0);
}

TEST_CASE("nvme: derived identifiers differ by text and are well-formed", "[nvme]") {
    auto const a = nvme::detail::derived_uuid("a");
    CHECK(a == nvme::detail::derived_uuid("a"));
    CHECK(a != nvme::detail::derived_uuid("b"));
    CHECK(std::to_integer<int>(a[6] >> 4) == 5);
    auto const random = nvme::detail::random_uuid();
    CHECK(random != nvme::detail::random_uuid());
    CHECK(std::to_integer<int>(random[6] >> 4) == 4);
}
