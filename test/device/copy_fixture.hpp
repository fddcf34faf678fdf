// copy_fixture.hpp — copies of files between two ends of this process.
#pragma once

#include <boost/asio/co_spawn.hpp>

#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "device/channel_fixture.hpp"
#include "rdma-copy/directory_stream.hpp"
#include "rdma-copy/receiver.hpp"
#include "rdma-copy/session.hpp"
#include "support/folder.hpp"

namespace test {

namespace fs = std::filesystem;

inline constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

inline void write_file(fs::path const& at, std::span<std::byte const> bytes) {
    std::ofstream out{at, std::ios::binary};
    out.write(
        reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size())
    );
    REQUIRE(out.good());
}

/// A large file, whose pages all differ.
inline void write_large(fs::path const& at, std::uint64_t size, std::uint64_t seed) {
    std::vector<std::byte> page = pattern(4096, seed);
    std::ofstream out{at, std::ios::binary};
    for (std::uint64_t done = 0; done < size; done += page.size()) {
        std::memcpy(page.data(), &done, sizeof done);
        auto const bytes = std::min<std::uint64_t>(page.size(), size - done);
        out.write(reinterpret_cast<char const*>(page.data()), static_cast<std::streamsize>(bytes));
    }
    REQUIRE(out.good());
}

inline std::string content(fs::path const& at) {
    std::ifstream in{at, std::ios::binary};
    std::error_code ec;
    auto const size = fs::file_size(at, ec);
    if (ec) return {};  // it has another name now
    std::string all(size, '\0');
    in.read(all.data(), static_cast<std::streamsize>(all.size()));
    return all;
}

/// Each path in a folder, with all that a copy keeps.
inline std::map<std::string, std::string> listing(fs::path const& root) {
    std::map<std::string, std::string> all;
    for (auto const& e : fs::recursive_directory_iterator{root}) {
        struct stat s {};
        if (::lstat(e.path().c_str(), &s) != 0) continue;  // it has another name now
        std::string text = std::to_string(s.st_mode & (S_IFMT | 0777)) + ' ' +
                           std::to_string(s.st_mtim.tv_sec) + '.' +
                           std::to_string(s.st_mtim.tv_nsec) + ' ';
        if (S_ISREG(s.st_mode)) text += content(e.path());
        if (S_ISLNK(s.st_mode)) text += fs::read_symlink(e.path()).string();
        all[e.path().lexically_relative(root).string()] = text;
    }
    return all;
}

/// How many entries a folder has, at any depth.
inline std::size_t entries(fs::path const& root) {
    std::error_code ec;  // of what has another name now
    std::size_t count = 0;
    for (fs::recursive_directory_iterator i{root, ec}; i != end(i); i.increment(ec)) ++count;
    return count;
}

inline void set_time(fs::path const& at, long seconds, long nanoseconds) {
    std::array<timespec, 2> const times{timespec{0, UTIME_OMIT}, timespec{seconds, nanoseconds}};
    REQUIRE(::utimensat(AT_FDCWD, at.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) == 0);
}

/// Names of temporary files.
inline std::vector<std::string> leftovers(fs::path const& root) {
    std::vector<std::string> found;
    for (auto const& [path, text] : listing(root))
        if (path.find(".rdma-copy.") != std::string::npos) found.push_back(path);
    return found;
}

class ends {
    folder const own_;

public:
    /// @param at  What is served; without, a folder of its own.
    explicit ends(
        asio::io_context& io, std::size_t memory_bytes = std::size_t{1} << 20, fs::path at = {}
    )
        : files{io},
          door{io, {device_address(), 0}},
          options{memory_bytes, 60s},
          client{io, options},
          served{own_ / "", std::move(at)} {}

    copy::disk files;
    rcverbs::acceptor door;
    copy::link_options options;
    copy::link client;
    struct place {
        place(fs::path const& own, fs::path other)
            : path_{other.empty() ? own : std::move(other)} {}
        fs::path operator/(std::string const& name) const { return path_ / name; }
        std::string string() const { return path_.string(); }

    private:
        fs::path path_;
    };
    place const served;
    std::vector<std::string> failures;  // of the client's side
    std::vector<std::string> failures_of_server;
    copy::result of_server;
    bool allows_owners = false;  // the server
    bool allows_deletes = false;
    copy::extended allows;
    copy::hello hello_of_liar;  // of a client that breaks the rules
    rcverbs::error_code server_end;
    std::string why_server_ended;

    copy::failure_report report() {
        return [this](std::string const& path, std::string const& why) {
            failures.push_back(path + ": " + why);
        };
    }
};

inline asio::awaitable<void> serve_one(asio::io_context& io, ends& e) {
    int error = 0;
    copy::served_directory const root{
        copy::tree::open(e.served.string(), error),
        "root",
        e.allows_owners,
        e.allows_deletes,
        e.allows};
    rcverbs::connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
    e.door.close();  // which would keep the context running
    copy::link l{io, std::move(asked), e.options};
    try {
        co_await l.accept();
        auto const report = [&](std::string const& path, std::string const& why) {
            e.failures_of_server.push_back(path + ": " + why);
        };
        co_await copy::serve(l, e.files, root, report, e.of_server);
    } catch (boost::system::system_error const& failed) {
        e.server_end = failed.code();
        e.why_server_ended = l.failure_text(failed);
    }
}

// Not made in the call: g++ 12 destroys aggregates twice that are made in an awaited call.
inline copy::copy_options const no_options{};

inline asio::awaitable<void> push_to(
    ends& e,
    std::vector<std::string> const& sources,
    std::string const& target,
    copy::copy_options const& options,
    copy::result& done
) {
    co_await e.client.connect(e.door.local_endpoint());
    co_await copy::push(e.client, e.files, sources, target, options, e.report(), done);
}

/// A copy to the server.
inline copy::result pushed(
    ends& e,
    asio::io_context& io,
    std::vector<std::string> const& sources,
    std::string const& target,
    copy::copy_options const& options = {}
) {
    copy::result done;
    run(io, [&]() -> asio::awaitable<void> {
        co_await (serve_one(io, e) && push_to(e, sources, target, options, done));
    });
    return done;
}

inline void make_tree(fs::path const& root) {
    fs::create_directories(root / "a/b/c");
    fs::create_directories(root / "empty");
    write_large(root / "large", 3'000'001, 1);
    write_file(root / "a/page", pattern(4096, 2));
    write_file(root / "a/b/nothing", {});
    write_file(root / "a/b/c/odd name \n\xff", pattern(131, 3));
    for (int i = 0; i < 40; ++i)
        write_file(root / ("a/b/" + std::to_string(i)), pattern(static_cast<std::size_t>(i), 4));
    fs::create_symlink("../nowhere", root / "a/link");
    ::chmod((root / "large").c_str(), 0640);
    ::chmod((root / "a/b").c_str(), 0750);
    set_time(root / "large", 1'577'934'245, 123'456'789);
    set_time(root / "a/link", -5, 1);
    set_time(root / "a/b", 77, 999'999'999);
    set_time(root / "empty", 5, 5);
}

}  // namespace test
