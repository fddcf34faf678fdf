// System calls of rdma-copy: how many for an entry, and in which order.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rdma-copy/batch_job.hpp"
#include "rdma-copy/removal.hpp"
#include "rdma-copy/tree.hpp"
#include "support/catch.hpp"
#include "support/folder.hpp"
#include "support/system_calls.hpp"

using test::folder;
using test::where_refused;

namespace fs = std::filesystem;

namespace {

struct cost {
    unsigned calls = 0;
    std::size_t path_bytes = 0;  // which the kernel walks
};

cost cost_of(std::function<void()> const& work) {
    cost c;
    c.calls = test::stop_before_paths(work, [&](unsigned, char const* path) {
        c.path_bytes += std::strlen(path);
    });
    return c;
}

copy::batch_item item(
    copy::entry_type type, std::string name, std::shared_ptr<copy::target_directory> in
) {
    copy::batch_item i;
    i.what.type = type;
    i.name = std::move(name);
    i.in = std::move(in);
    i.gets.mode = 0755;
    return i;
}

// Of directories in one another, with a file in each.
cost cost_of_making(std::size_t depth) {
    folder here;
    int error = 0;
    copy::tree const root = copy::tree::open(here.string(), error);
    std::vector<std::shared_ptr<copy::target_directory>> open{
        std::make_shared<copy::target_directory>()};
    std::vector<copy::batch_item> items;
    for (std::size_t i = 0; i < depth; ++i) {
        items.push_back(item(copy::entry_type::directory, "directory", open.back()));
        auto const made = std::make_shared<copy::target_directory>();
        made->name = "directory";
        made->above = open.back();
        items.back().itself = made;
        open.push_back(made);
        items.push_back(item(copy::entry_type::file, "file", made));
    }
    for (; open.size() > 1; open.pop_back()) {
        items.push_back(item(copy::entry_type::directory_end, open.back()->name, open.back()->above)
        );
        items.back().itself = open.back();
    }
    copy::batch_job job{root};
    cost const c = cost_of([&] { job.run(items, {}); });
    for (copy::batch_item const& i : items) CHECK(i.error == 0);
    return c;
}

cost cost_of_removing(std::size_t depth) {
    folder here;
    fs::path at = here / "directory";
    for (std::size_t i = 0; i < depth; ++i) {
        fs::create_directory(at);
        std::ofstream{at / "file"};
        at /= "directory";
    }
    int error = 0;
    copy::tree const root = copy::tree::open(here.string(), error);
    copy::removal r{{}, false};
    cost const c = cost_of([&] {
        r.begin(copy::directory_stream::open(root, "", error), "", {}, {});
        while (!r.run()) static_cast<void>(r.take_results());
    });
    CHECK(fs::is_empty(here.string()));
    return c;
}

}  // namespace

TEST_CASE("copy: a deep entry takes the same system calls as another", "[programs]") {
    auto const of = GENERATE(&cost_of_making, &cost_of_removing);
    // Reads a file of /proc the first time.
    static_cast<void>(copy::identity_of({}));
    // More than the directories that stay open.
    cost const few = of(200);
    if (few.calls == 0) {
        WARN("skipped: this kernel does not stop system calls");
        return;
    }
    cost const more = of(300);
    cost const most = of(400);
    // One more call for each level would be 100. A call that is interrupted is made again.
    CHECK(most.calls - more.calls < more.calls - few.calls + 25);
    // Half of the path for each level would be a hundred times as many.
    CHECK(most.path_bytes - more.path_bytes < 2 * (more.path_bytes - few.path_bytes));
}

namespace {

constexpr std::size_t batch_files = 8;

// What a batch of files does to the disk and to names, in this order: "sync NAME", "sync all", "name NAME".
struct synced_batch {
    unsigned stopped = 0;
    std::vector<std::string> calls;
    std::vector<copy::batch_item> items;
    std::set<std::string> names;  // at the end
};

void run_batch(synced_batch& b) {
    folder here;
    int error = 0;
    copy::tree const root = copy::tree::open(here.string(), error);
    auto const top = std::make_shared<copy::target_directory>();
    for (std::size_t i = 0; i < batch_files; ++i)
        b.items.push_back(item(copy::entry_type::file, "file" + std::to_string(i), top));
    copy::batch_job job{root};
    b.stopped = test::stop_before(
        {SYS_openat, SYS_fsync, SYS_syncfs, SYS_renameat2},
        [&] { job.run(b.items, {}); },
        [&](seccomp_data const& call) {
            auto const fd = static_cast<int>(call.args[0]);
            if (call.nr == SYS_renameat2)
                b.calls.push_back(
                    std::string{"name "} + reinterpret_cast<char const*>(call.args[3])
                );
            else if (call.nr == SYS_syncfs && fd >= 0) b.calls.emplace_back("sync all");
            else if (call.nr == SYS_fsync) {
                fs::path const of = fs::read_symlink("/proc/self/fd/" + std::to_string(fd));
                std::string const name = of.filename().string();
                bool const is_directory = of == fs::path{here.string()};
                b.calls.push_back(
                    "sync " + (is_directory ? "." : name.substr(1, name.find(".rdma-copy.") - 1))
                );
            }
        }
    );
    for (auto const& e : fs::directory_iterator{here.string()})
        b.names.insert(e.path().filename().string());
}

}  // namespace

TEST_CASE("copy: without syncfs each file is on the disk before it has its name", "[programs]") {
    synced_batch b;
    auto const run = [&] { run_batch(b); };
    SECTION("a file system for which syncfs promises less") {
        where_refused(SYS_fstatfs, ENOSYS, run);
    }
    SECTION("a sandbox") {
        int const refusal = GENERATE(ENOSYS, EPERM);
        where_refused(SYS_syncfs, refusal, run);
    }
    if (b.stopped == 0) {
        WARN("skipped: this kernel does not stop system calls");
        return;
    }
    CHECK(std::ranges::count(b.calls, "sync all") == 0);
    for (copy::batch_item const& i : b.items) {
        CAPTURE(i.name, b.calls);
        CHECK(i.error == 0);
        CHECK(b.names.contains(i.name));
        auto const synced = std::ranges::find(b.calls, "sync " + i.name);
        auto const named = std::ranges::find(b.calls, "name " + i.name);
        CHECK(synced < named);
        // The name, too, before the entry is reported.
        CHECK(std::find(named, b.calls.end(), "sync .") != b.calls.end());
    }
}

TEST_CASE("copy: a batch whose files cannot be synced gives none its name", "[programs]") {
    synced_batch b;
    auto const run = [&] { run_batch(b); };
    SECTION("together") {
        where_refused(SYS_syncfs, EIO, [&] { where_refused(SYS_fsync, EIO, run); });
    }
    SECTION("one by one") {
        where_refused(SYS_fstatfs, ENOSYS, [&] { where_refused(SYS_fsync, EIO, run); });
    }
    if (b.stopped == 0) {
        WARN("skipped: this kernel does not stop system calls");
        return;
    }
    for (copy::batch_item const& i : b.items) CHECK(i.error == EIO);
    CHECK(b.names.empty());
}
