// A file store by itself: the same for io_uring and for threads. Needs a real kernel, no device.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <boost/asio/error.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/nvme/file_store.hpp>

#include "nvme/store_request.hpp"
#include "support/bytes.hpp"

using namespace rcverbs;
namespace nvme = rcverbs::nvme;
using op = nvme::store_operation;
using test::ending;
using request = test::store_request;

// In place of libc's.
extern "C" int fdatasync(int file);

namespace {

constexpr std::size_t block = test::store_request::block;
constexpr std::size_t file_bytes = 256 * block;

/// A file in memory, which can punch holes but not zero ranges.
class memory_file {
public:
    memory_file() : fd_{::memfd_create("store", MFD_CLOEXEC)} {
        REQUIRE(fd_ >= 0);
        resize(file_bytes);
    }
    ~memory_file() { ::close(fd_); }
    std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }
    void resize(std::size_t bytes) { REQUIRE(::ftruncate(fd_, static_cast<off_t>(bytes)) == 0); }

private:
    int const fd_;
};

int run_command(std::string const& command) { return std::system(command.c_str()); }

/// A block device whose medium can fail and work again: a RAM disk below the device mapper. It has
/// direct I/O, and reads that do not wait.
class failing_device {
public:
    failing_device() {
        REQUIRE(
            run_command("modprobe -rq brd; modprobe brd rd_nr=1 rd_size=4096 && modprobe dm-mod") ==
            0
        );
        REQUIRE(dmsetup("create --table '" + works() + "'") == 0);
        REQUIRE(dmsetup("mknodes") == 0);
    }
    ~failing_device() { dmsetup("remove --retry"); }
    std::filesystem::path path() const { return "/dev/mapper/rcverbs-test"; }
    void fail() { load("0 8192 error"); }
    void repair() { load(works()); }

private:
    static std::string works() { return "0 8192 linear /dev/ram0 0"; }
    static int dmsetup(std::string const& what) {
        std::string const verb = what.substr(0, what.find(' '));
        std::string const rest = what.substr(std::min(what.size(), verb.size()));
        return run_command("dmsetup --noudevsync " + verb + " rcverbs-test" + rest);
    }
    static void load(std::string const& table) {
        REQUIRE(dmsetup("suspend --noflush --nolockfs") == 0);
        REQUIRE(dmsetup("load --table '" + table + "'") == 0);
        REQUIRE(dmsetup("resume") == 0);
    }
};

/// While there is one, fdatasync(2) waits.
class slow_sync {
public:
    slow_sync() { now = this; }
    slow_sync(slow_sync const&) = delete;
    slow_sync& operator=(slow_sync const&) = delete;
    ~slow_sync() {
        go_on();
        now = nullptr;
    }
    void await_begin() { begun_.get_future().wait(); }
    void go_on() {
        if (!std::exchange(goes_on_, true)) end_.set_value();
    }
    int count() const { return count_; }
    void sync() {
        if (++count_ == 1) begun_.set_value();
        may_end_.wait();
    }

    static std::atomic<slow_sync*> now;

private:
    std::atomic<int> count_{0};
    std::promise<void> begun_;
    std::promise<void> end_;
    std::shared_future<void> may_end_{end_.get_future()};
    bool goes_on_ = false;
};

std::atomic<slow_sync*> slow_sync::now{nullptr};

std::vector<std::byte> random_blocks(std::size_t count, unsigned seed) {
    std::vector<std::byte> bytes(count * block);
    test::fill(bytes, seed);
    return bytes;
}

nvme::file_store_options by(nvme::file_method m) {
    nvme::file_store_options o;
    o.method = m;
    return o;
}

/// Opens a store; null if the system has no io_uring.
template <class File>
std::unique_ptr<nvme::file_store> open(File const& file, nvme::file_store_options o) {
    try {
        auto made = std::make_unique<nvme::file_store>(file.path(), o);
        if (o.method != nvme::file_method::automatic) CHECK(made->method() == o.method);
        return made;
    } catch (boost::system::system_error const& e) {
        if (o.method != nvme::file_method::io_uring) throw;
        bool const is_missing = e.code().value() == ENOSYS || e.code().value() == EPERM;
        if (!is_missing) throw;
        WARN("skipped: the system has no io_uring: " << e.what());
        return nullptr;
    }
}

ending run(nvme::file_store& s, request&& r) {
    s.start(r);
    return r.wait();
}

void must(nvme::file_store& s, request&& r) {
    ending const e = run(s, std::move(r));
    CHECK_FALSE(e.failure);
    CHECK(e.is_equal);
}

std::vector<std::byte> contents(nvme::file_store& s, std::size_t first, std::size_t blocks) {
    std::vector<std::byte> there(blocks * block, std::byte{0x5a});
    must(s, {op::read, first, blocks, there});
    return there;
}

bool is_zero(std::vector<std::byte> const& bytes) { return test::all_are(bytes, std::byte{0}); }

template <class File>
void check_operations(nvme::file_store_options const& options) {
    File file;
    auto const s = open(file, options);
    if (s == nullptr) return;
    auto data = random_blocks(64, 1);
    must(*s, {op::write, 8, 64, data});
    CHECK(contents(*s, 8, 64) == data);
    must(*s, std::move(request{op::write, 8, 64, data}.durable()));
    must(*s, {op::flush, 0, 0});
    must(*s, {op::compare, 8, 64, data});
    must(*s, {op::write, 8, 64, data});  // not on the disk when it is zeroed
    data.back() ^= std::byte{1};
    ending const differs = run(*s, {op::compare, 8, 64, data});
    CHECK_FALSE(differs.failure);
    CHECK_FALSE(differs.is_equal);
    // More than is written by hand at a time, and with the sync behind it.
    must(*s, std::move(request{op::write_zeroes, 10, 40}.durable()));
    CHECK(is_zero(contents(*s, 10, 40)));
    must(*s, {op::discard, 60, 4});
    CHECK(is_zero(contents(*s, 60, 4)));
    data.back() ^= std::byte{1};
    auto const left = contents(*s, 50, 10);
    CHECK(std::equal(left.begin(), left.end(), data.begin() + 42 * block));
}

// More at a time than an engine takes, in any order.
void check_many(nvme::file_method method) {
    memory_file file;
    auto const s = open(file, by(method));
    if (s == nullptr) return;
    auto const data = random_blocks(256, 2);
    std::vector<std::byte> copy = data;
    std::vector<std::byte> back(data.size());
    for (op const what : {op::write, op::read}) {
        std::vector<std::unique_ptr<request>> all;
        for (int round = 0; round < 4; ++round) {
            for (std::size_t i = 0; i < 256; ++i) {
                auto const memory = std::span{what == op::write ? copy : back};
                all.push_back(
                    std::make_unique<request>(what, i, 1, memory.subspan(i * block, block))
                );
                s->start(*all.back());
            }
        }
        for (auto const& r : all) CHECK_FALSE(r->wait().failure);
    }
    CHECK(back == data);
}

void check_failures(nvme::file_method method) {
    memory_file file;
    auto options = by(method);
    options.is_shared = true;
    auto const s = open(file, options);
    if (s == nullptr) return;
    options.is_read_only = true;
    auto const fixed = open(file, options);
    auto data = random_blocks(4, 3);
    CHECK(run(*fixed, {op::write, 0, 4, data}).failure.value() == EBADF);
    CHECK(run(*fixed, {op::write_zeroes, 0, 4}).failure.value() == EBADF);
    must(*fixed, {op::flush, 0, 0});
    // A file that has become shorter.
    file.resize(file_bytes / 2);
    CHECK(s->geometry().size_bytes == file_bytes / 2);
    CHECK(run(*s, {op::read, 126, 4, data}).failure.value() == EIO);
    CHECK(run(*s, {op::compare, 200, 1, std::span{data}.first(block)}).failure.value() == EIO);
    must(*s, {op::read, 124, 4, data});
}

// The kernel reports lost data once, and to whoever asks first.
void check_lost_data(nvme::file_method method) {
    failing_device device;
    auto const s = open(device, by(method));
    if (s == nullptr) return;
    auto data = random_blocks(4, 5);
    must(*s, {op::write, 0, 4, data});
    must(*s, {op::flush, 0, 0});
    must(*s, {op::write, 4, 4, data});
    device.fail();
    // Two at a time: the second one must not succeed because the first one was told.
    request first{op::flush, 0, 0};
    request second{op::flush, 0, 0};
    s->start(first);
    s->start(second);
    CHECK(first.wait().failure.value() == EIO);
    CHECK(second.wait().failure.value() == EIO);
    device.repair();
    CHECK(run(*s, {op::flush, 0, 0}).failure.value() == EIO);
    CHECK(run(*s, std::move(request{op::write, 0, 4, data}.durable())).failure.value() == EIO);
    CHECK(run(*s, {op::write, 0, 4, data}).failure.value() == EIO);
    CHECK(run(*s, {op::write_zeroes, 0, 4}).failure.value() == EIO);
    CHECK(run(*s, {op::discard, 0, 4}).failure.value() == EIO);
    CHECK(contents(*s, 0, 4) == data);
}

// Also for another store of the same file, which has opened it after the kernel has said so.
void check_lost_data_of_all(nvme::file_method method) {
    failing_device device;
    auto options = by(method);
    options.is_shared = true;
    auto const s = open(device, options);
    if (s == nullptr) return;
    auto data = random_blocks(4, 5);
    must(*s, {op::write, 0, 4, data});
    device.fail();
    CHECK(run(*s, {op::flush, 0, 0}).failure.value() == EIO);
    device.repair();
    auto const other = open(device, options);
    CHECK(run(*other, {op::flush, 0, 0}).failure.value() == EIO);
    CHECK(run(*other, {op::write, 0, 4, data}).failure.value() == EIO);
}

// A durable write syncs, and so its failure is as final as a flush's.
void check_lost_durable_write(nvme::file_method method) {
    failing_device device;
    auto const s = open(device, by(method));
    if (s == nullptr) return;
    auto data = random_blocks(4, 6);
    device.fail();
    CHECK(run(*s, std::move(request{op::write, 0, 4, data}.durable())).failure.value() == EIO);
    device.repair();
    CHECK(run(*s, {op::flush, 0, 0}).failure.value() == EIO);
}

// What is started while the engine is kept busy by somebody else; the order in which it ends.
class started_together {
public:
    explicit started_together(nvme::file_store& s) : store_{s} {
        // Larger than what is read at once.
        first_.then([this] { release_.get_future().wait(); });
        store_.start(first_);
    }
    void start(request& r, std::uint64_t host, char name) {
        r.of_host(host).then([this, name] { order_ += name; });
        store_.start(r);
        all_.push_back(&r);
    }
    std::string order() {
        release_.set_value();
        CHECK_FALSE(first_.wait().failure);
        for (request* const each : all_) CHECK_FALSE(each->wait().failure);
        return order_;
    }

private:
    nvme::file_store& store_;
    std::vector<std::byte> memory_ = random_blocks(64, 8);
    request first_{op::compare, 0, 64, memory_};
    std::promise<void> release_;
    std::vector<request*> all_;
    std::string order_;  // of one thread
};

// A file in memory cannot zero ranges: zeros are written, for which a host's short request does not wait.
void check_turns(nvme::file_method method) {
    memory_file file;
    constexpr std::size_t mib = 256;  // blocks
    file.resize(8 * mib * block);
    auto options = by(method);
    options.threads = 1;
    auto const s = open(file, options);
    if (s == nullptr) return;
    auto one = random_blocks(64, 7);
    auto other = random_blocks(64, 7);
    must(*s, {op::write, 0, 64, one});
    request zeroes{op::write_zeroes, mib, 4 * mib};
    request shorter{op::write_zeroes, 5 * mib, 2 * mib};
    request third{op::write, 64, 64, one};
    request own{op::write, 128, 64, other};
    started_together all{*s};
    all.start(zeroes, 1, 'z');
    all.start(shorter, 1, 's');
    all.start(own, 1, 'o');
    all.start(third, 2, 't');
    std::string const order = all.order();
    CHECK(order.substr(0, 2).find_first_of("zs") == std::string::npos);
    CHECK(order.substr(2) == "sz");
    CHECK(is_zero(contents(*s, mib, 6 * mib)));
}

// A store that goes has completed everything.
void check_end(nvme::file_method method) {
    memory_file file;
    auto s = open(file, by(method));
    if (s == nullptr) return;
    auto data = random_blocks(256, 4);
    std::vector<std::unique_ptr<request>> all;
    for (std::size_t i = 0; i < 256; ++i) {
        auto const part = std::span{data}.subspan(i * block, block);
        all.push_back(std::make_unique<request>(op::write, i, 1, part));
        s->start(*all.back());
    }
    s.reset();
    for (auto const& r : all) CHECK_FALSE(r->wait().failure);
}

}  // namespace

extern "C" int fdatasync(int file) {
    if (slow_sync* const slow = slow_sync::now) slow->sync();
    return static_cast<int>(::syscall(SYS_fdatasync, file));
}

namespace {

nvme::file_method any_method() {
    return GENERATE(
        nvme::file_method::automatic, nvme::file_method::io_uring, nvme::file_method::threads
    );
}

}  // namespace

TEST_CASE("nvme: a file store carries out every operation", "[device][nvme]") {
    check_operations<memory_file>(by(any_method()));
}

// With what was written still in the page cache, which the kernel drops for the holder of the exclusive
// descriptor only.
TEST_CASE("nvme: a file store carries out every operation on a device", "[device][nvme]") {
    check_operations<failing_device>(by(any_method()));
}

TEST_CASE("nvme: a shared store zeroes a device that is mounted", "[device][nvme]") {
    failing_device device;
    int const mount = ::open(device.path().c_str(), O_RDONLY | O_EXCL | O_CLOEXEC);
    REQUIRE(mount >= 0);
    auto options = by(any_method());
    options.is_shared = true;
    auto const s = open(device, options);
    if (s != nullptr) {
        auto data = random_blocks(64, 8);
        for (op const what : {op::write_zeroes, op::discard}) {
            must(*s, {op::write, 0, 64, data});
            must(*s, {what, 8, 40});
            CHECK(is_zero(contents(*s, 8, 40)));
            auto const before = contents(*s, 0, 8);
            CHECK(std::equal(before.begin(), before.end(), data.begin()));
            auto const behind = contents(*s, 48, 16);
            CHECK(std::equal(behind.begin(), behind.end(), data.begin() + 48 * block));
        }
    }
    ::close(mount);
}

// Each has the claim of the one before, which may be of another kind.
TEST_CASE("nvme: a store that takes another one's place discards", "[device][nvme]") {
    failing_device device;
    auto options = by(any_method());
    options.is_read_only = true;
    auto s = open(device, options);
    if (s == nullptr) return;
    CHECK(run(*s, {op::discard, 0, 4}).failure.value() == EBADF);
    auto data = random_blocks(16, 9);
    auto const check = [&](bool is_shared) {
        options.is_read_only = false;
        options.is_shared = is_shared;
        auto next = std::make_unique<nvme::file_store>(device.path(), options, *s);
        for (int i = 0; i < 2; ++i) {
            must(*next, {op::write, 0, 16, data});
            must(*next, {op::discard, 4, 8});
            CHECK(is_zero(contents(*next, 4, 8)));
            s = nullptr;  // the second time, without the one before
        }
        s = std::move(next);
    };
    check(false);
    check(true);
    check(false);
}

TEST_CASE("nvme: a file store takes any number of requests at a time", "[device][nvme]") {
    check_many(any_method());
}

TEST_CASE("nvme: a file store's failures are those of the system", "[device][nvme]") {
    check_failures(any_method());
}

TEST_CASE("nvme: after a failed sync every later flush and write fails", "[device][nvme]") {
    check_lost_data(any_method());
}

TEST_CASE("nvme: after a failed sync no other store of the file syncs either", "[device][nvme]") {
    check_lost_data_of_all(any_method());
}

TEST_CASE("nvme: a request that nobody waits for is not carried out", "[device][nvme]") {
    memory_file file;
    auto const s = open(file, by(any_method()));
    if (s == nullptr) return;
    auto data = random_blocks(4, 7);
    must(*s, {op::write, 0, 4, data});
    for (op const what : {op::write_zeroes, op::discard, op::write}) {
        auto zeros = std::vector<std::byte>(4 * block);
        bool const is_write = what == op::write;
        ending const e =
            run(*s,
                std::move(request{what, 0, 4, is_write ? std::span{zeros} : std::span<std::byte>{}}
                              .abandoned()));
        CHECK(e.failure == boost::asio::error::operation_aborted);
    }
    CHECK(contents(*s, 0, 4) == data);
}

TEST_CASE("nvme: after a failed durable write every later flush fails", "[device][nvme]") {
    check_lost_durable_write(any_method());
}

TEST_CASE("nvme: a host does not wait for another one's zeroes at a file store", "[device][nvme]") {
    check_turns(any_method());
}

TEST_CASE("nvme: a file store with a slow sync goes on reading", "[device][nvme]") {
    memory_file file;
    auto options = by(nvme::file_method::threads);
    options.threads = 2;
    auto const s = open(file, options);
    auto data = random_blocks(64, 9);
    must(*s, {op::write, 0, 64, data});
    slow_sync sync;
    request first{op::flush, 0, 0};
    request second{op::flush, 0, 0};
    request third{op::flush, 0, 0};
    s->start(first.of_host(1));
    sync.await_begin();
    s->start(second.of_host(2));
    s->start(third.of_host(3));
    request compare{op::compare, 0, 64, data};
    s->start(compare.of_host(4));
    REQUIRE(compare.is_over_within(std::chrono::minutes{1}));
    CHECK_FALSE(first.is_over());
    sync.go_on();
    for (request* const each : {&first, &second, &third}) CHECK_FALSE(each->wait().failure);
    // One of its own for the first one, and one for both others.
    CHECK(sync.count() == 2);
}

TEST_CASE("nvme: a file store that ends has completed its requests", "[device][nvme]") {
    check_end(any_method());
}

TEST_CASE("nvme: a file store passes the page cache by", "[device][nvme]") {
    nvme::file_store_options options = by(any_method());
    options.is_direct = true;
    check_operations<failing_device>(options);
    failing_device device;
    auto const s = open(device, options);
    if (s == nullptr) return;
    CHECK(s->method() != nvme::file_method::automatic);
    // Memory that is aligned is used in place, other memory is copied.
    std::vector<std::byte> memory(3 * block);
    void* at = memory.data();
    std::size_t room = memory.size();
    REQUIRE(std::align(block, 2 * block, at, room) != nullptr);
    auto const first = static_cast<std::size_t>(static_cast<std::byte*>(at) - memory.data());
    for (std::size_t const offset : {first, std::size_t{0}, std::size_t{1}}) {
        auto const place = std::span{memory}.subspan(offset, 2 * block);
        test::fill(place, static_cast<std::uint32_t>(offset + 1));
        std::vector<std::byte> const written(place.begin(), place.end());
        must(*s, {op::write, 5, 2, place});
        std::ranges::fill(place, std::byte{0});
        must(*s, {op::read, 5, 2, place});
        CHECK(test::same(place, written));
    }
}

TEST_CASE("nvme: direct I/O avoids io_uring on a device without RWF_NOWAIT", "[device][nvme]") {
    failing_device device;
    int const fd = ::open(device.path().c_str(), O_RDONLY | O_DIRECT);
    REQUIRE(fd >= 0);
    alignas(block) static std::byte memory[block];
    iovec const all{memory, sizeof memory};
    bool const is_supported = ::preadv2(fd, &all, 1, 0, RWF_NOWAIT) >= 0 || errno != EOPNOTSUPP;
    ::close(fd);
    nvme::file_store_options options = by(nvme::file_method::automatic);
    options.is_direct = true;
    CHECK(
        open(device, options)->method() ==
        (is_supported ? nvme::file_method::io_uring : nvme::file_method::threads)
    );
}

TEST_CASE("nvme: what the page cache has is read inside start()", "[device][nvme]") {
    nvme::file_method const method = any_method();
    failing_device device;
    auto const s = open(device, by(method));
    if (s == nullptr) return;
    auto data = random_blocks(16, 7);
    must(*s, {op::write, 0, 16, data});
    std::vector<std::byte> there(data.size());
    request cached{op::read, 0, 16, there};
    s->start(cached);
    CHECK(cached.is_over());
    CHECK_FALSE(cached.wait().failure);
    CHECK(there == data);
}
