#include "rdma-copy/session.hpp"

#include <cerrno>
#include <deque>
#include <filesystem>
#include <utility>

#include <rcverbs/channel_error.hpp>

#include "rdma-copy/receiver.hpp"
#include "rdma-copy/sender.hpp"

namespace copy {

namespace {

[[noreturn]] void refuse(link& peer) {
    peer.close_violated();
    throw boost::system::system_error{rcverbs::channel_errc::malformed_message};
}

asio::awaitable<void> greet(link& server, hello h) {
    std::string const name = h.name;
    server.send(std::move(h));
    copy_message const m = co_await server.receive();
    auto const* const w = std::get_if<welcome>(&m);
    if (w == nullptr) refuse(server);
    int const error = w->speaks == version ? w->error : EPROTONOSUPPORT;
    if (error == 0) co_return;
    co_await server.finish();
    throw refused{"the server refuses " + (name.empty() ? "this" : name) + ": " + why(error)};
}

// Without slashes at either end.
std::string trimmed(std::string path) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    path.erase(0, std::min(path.find_first_not_of('/'), path.size()));
    return path;
}

// A path of this process's as the directory that it is in, and its name there.
std::pair<std::string, std::string> split(std::string const& path) {
    namespace fs = std::filesystem;
    fs::path p = path;
    while (!p.has_filename() && p.has_parent_path() && p != p.root_path()) p = p.parent_path();
    std::string const name = p.filename().string();
    if (name.empty() || name == "." || name == "..") {
        std::error_code ec;
        p = fs::canonical(p.empty() ? fs::path{"."} : p, ec);
    }
    std::string const parent = p.parent_path().string();
    return {parent.empty() ? "." : parent, p.filename().string()};
}

}  // namespace

std::optional<remote_place> parse_place(std::string const& text) {
    if (text.starts_with('[')) {
        std::size_t const end = text.find("]:");
        if (end == std::string::npos) return {};
        return remote_place{text.substr(1, end - 1), text.substr(end + 2)};
    }
    std::size_t const colon = text.find(':');
    if (colon == std::string::npos || colon == 0 || text.find('/') < colon) return {};
    return remote_place{text.substr(0, colon), text.substr(colon + 1)};
}

asio::awaitable<result> push(
    link& to,
    disk& files,
    std::vector<std::string> const& sources,
    std::string const& target,
    bool replaces,
    failure_report report
) {
    bool const is_into = sources.size() > 1 || target.ends_with('/');
    hello const wish{version, direction::to_server, is_into, replaces, trimmed(target)};
    co_await greet(to, wish);
    std::deque<tree> parents;
    std::vector<source> all;
    sender s{to, files, report};
    for (std::string const& path : sources) {
        auto const [parent, name] = split(path);
        int error = 0;
        tree t = tree::open(parent, error);
        if (error != 0) {
            s.fail(path, error);
            continue;
        }
        parents.push_back(std::move(t));
        all.push_back({&parents.back(), name, name});
    }
    co_await s.run(std::move(all));
    co_await to.finish();
    co_return s.counters();
}

asio::awaitable<result> pull(
    link& from,
    disk& files,
    std::string const& source,
    std::string const& target,
    bool replaces,
    failure_report report
) {
    std::error_code ec;
    bool const is_directory = target.ends_with('/') || std::filesystem::is_directory(target, ec);
    auto const [parent, name] = is_directory ? std::pair{target, std::string{}} : split(target);
    int error = 0;
    tree const root = tree::open(parent, error);
    if (error != 0) throw refused{parent + ": " + why(error)};
    destination to{&root, "", {}, replaces};
    if (!is_directory) to.name = name;
    hello const wish{version, direction::to_client, false, replaces, trimmed(source)};
    co_await greet(from, wish);
    receiver r{from, files, std::move(to), std::move(report)};
    co_await r.run();
    co_await from.finish();
    co_return r.counters();
}

asio::awaitable<result> serve(
    link& client, disk& files, tree const& root, std::string const& root_name, failure_report report
) {
    copy_message const m = co_await client.receive();
    auto const* const h = std::get_if<hello>(&m);
    if (h == nullptr) refuse(client);
    int error = h->speaks == version ? 0 : EPROTONOSUPPORT;
    if (error == 0 && !h->name.empty() && !is_inside(h->name)) error = EACCES;
    result done;
    if (h->way == direction::to_server) {
        destination to;
        if (error == 0)
            to = co_await files.run([&] {
                return destination_of(root, h->name, h->is_into_directory, error);
            });
        to.replaces = h->replaces;
        client.send(welcome{version, error});
        if (error == 0) {
            receiver r{client, files, std::move(to), std::move(report)};
            co_await r.run();
            done = r.counters();
        }
    } else {
        if (error == 0) co_await files.run([&] { return root.status_of(h->name, error).st_mode; });
        client.send(welcome{version, error});
        if (error == 0) {
            std::size_t const slash = h->name.rfind('/');
            std::string name = slash == std::string::npos ? h->name : h->name.substr(slash + 1);
            if (name.empty()) name = root_name;
            sender s{client, files, std::move(report)};
            std::vector<source> one;
            one.push_back({&root, h->name, std::move(name)});
            co_await s.run(std::move(one));
            done = s.counters();
        }
    }
    co_await client.finish();
    co_return done;
}

}  // namespace copy
