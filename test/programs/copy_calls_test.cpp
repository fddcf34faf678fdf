// System calls of rdma-copy for an entry.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "rdma-copy/batch_job.hpp"
#include "rdma-copy/removal.hpp"
#include "rdma-copy/tree.hpp"
#include "support/catch.hpp"
#include "support/folder.hpp"
#include "support/system_calls.hpp"

using test::folder;

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
    CHECK(most.calls - more.calls == more.calls - few.calls);
    CHECK(most.path_bytes - more.path_bytes == more.path_bytes - few.path_bytes);
}
