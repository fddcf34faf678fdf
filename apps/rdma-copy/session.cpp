#include "rdma-copy/session.hpp"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
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

asio::awaitable<void> greet(link& server, hello h, exclusions const& excluded) {
    h.exclusions = static_cast<std::uint16_t>(excluded.patterns().size());
    if (h.name.size() > text_bytes_max) throw refused{h.name + ": " + why(ENAMETOOLONG)};
    server.send(h);
    for (std::string const& each : excluded.patterns()) server.send(exclude{each});
    server.set_idle(true);
    copy_message const m = co_await server.receive();
    auto const* const w = std::get_if<welcome>(&m);
    if (w == nullptr) refuse(server);
    int const error = w->speaks == version ? w->error : EPROTONOSUPPORT;
    if (error == 0) co_return;
    co_await server.finish();
    std::string hint;
    auto const add = [&](bool is_asked, char const* option) {
        if (is_asked && h.way == direction::to_server)
            hint += (hint.empty() ? "; " : ", ") + std::string{option};
    };
    if (error == EPERM) {
        add(h.keeps_owners, "--owners");
        add(h.deletes, "--delete");
        add(h.keeps_attributes, "--xattrs");
        add(h.keeps_acls, "--acls");
        if (!hint.empty()) hint += " must be allowed there, too";
    }
    throw refused{
        "the server refuses " + (h.name.empty() ? "this" : h.name) + ": " + why(error) + hint};
}

// Without slashes at either end, and without components that are dots.
std::string trimmed(std::string const& path) {
    std::string text;
    for (auto const& component : std::filesystem::path{path})
        if (std::string const name = component.string();
            !name.empty() && name != "/" && name != ".")
            text += (text.empty() ? "" : "/") + name;
    return text;
}

// A path of this process's as the directory that it is in, and its name there; empty for the root.
std::pair<std::string, std::string> split(std::string const& path, int& error) {
    namespace fs = std::filesystem;
    error = 0;
    fs::path p = path;
    while (!p.has_filename() && p.has_parent_path() && p != p.root_path()) p = p.parent_path();
    std::string const name = p.filename().string();
    if (name.empty() || name == "." || name == "..") {
        std::error_code ec;
        p = fs::canonical(p.empty() ? fs::path{"."} : p, ec);
        error = ec.value();
    }
    std::string const parent = p.parent_path().string();
    return {parent.empty() ? "." : parent, p.filename().string()};
}

placing placing_of(std::string const& target, copy_options const& options) {
    if (options.is_onto) return placing::onto;
    std::string const last = std::filesystem::path{target}.filename().string();
    return last.empty() || last == "." || last == ".." ? placing::into : placing::either;
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

bool is_served_root(std::string const& path) { return trimmed(path).empty(); }

asio::awaitable<void> push(
    link& to,
    disk& files,
    std::vector<std::string> const& sources,
    std::string const& target,
    copy_options const& options,
    failure_report report,
    result& counters
) {
    hello wish;
    wish.where = placing_of(target, options);
    if (sources.size() > 1) wish.where = placing::into;
    wish.replaces = options.replaces;
    wish.keeps_owners = options.keeps_owners;
    wish.verifies = options.verifies;
    wish.wants_total = options.wants_total;
    wish.continues = options.continues;
    wish.keeps_attributes = options.keeps.attributes;
    wish.keeps_acls = options.keeps.acl;
    wish.lists = options.lists;
    wish.deletes = options.deletes;
    wish.bytes_per_second = options.bytes_per_second;
    wish.name = trimmed(target);
    co_await greet(to, wish, options.excluded);
    std::map<std::string, tree> parents;
    std::vector<source> all;
    auto how = sender_options::of(wish, options.excluded, options.listed, options.listed_deletion);
    sender s{to, files, std::move(how), report, counters};
    std::set<std::string> names;
    for (std::string const& path : sources) {
        int error = 0;
        auto [parent, name] = split(path, error);
        if (error != 0) {
            s.skip({nullptr, path, path}, error);
            continue;
        }
        bool const is_root = name.empty();
        if (is_root) name = "root";
        // Each source has a place of its own at the target.
        if (!names.insert(name).second) {
            s.skip({nullptr, path, name}, error_name_twice);
            continue;
        }
        auto known = parents.find(parent);
        if (known == parents.end()) {
            tree t = tree::open_to_read(parent, error);
            if (error == 0) known = parents.emplace(parent, std::move(t)).first;
        }
        if (error != 0) {
            s.skip({nullptr, path, name}, error);
            continue;
        }
        all.push_back({&known->second, is_root ? "" : name, name});
    }
    co_await s.run(std::move(all));
    co_await to.finish();
}

asio::awaitable<void> pull(
    link& from,
    disk& files,
    std::string const& source,
    std::string const& target,
    copy_options const& options,
    failure_report report,
    result& counters
) {
    std::error_code ec;
    placing const where = placing_of(target, options);
    bool const is_all = trimmed(source).empty();
    int error = 0;
    tree root;
    bool exists = false;
    if (where == placing::either) {
        root = tree::open(target, error, O_NOFOLLOW);
        exists = error != ENOENT && error != ENOTDIR && error != ELOOP;
        // An earlier copy may have made it: its server would choose where this one writes.
        if (!exists && std::filesystem::is_symlink(target, ec) &&
            std::filesystem::is_directory(target, ec))
            throw refused{
                target +
                " is a symbolic link: add a slash to copy into the directory that it leads to"};
    }
    if (exists && options.continues && !is_all)
        throw refused{target + ": " + why(error_place_unclear)};
    // All of a server's directory gets a name of its own: a server may not choose which files it writes.
    bool const is_directory = where == placing::into || (exists && !options.continues);
    std::string parent = target;
    std::string name;
    if (!is_directory) {
        std::tie(parent, name) = split(target, error);
        if (error != 0) throw refused{target + ": " + why(error)};
    }
    if (!is_directory || where == placing::into) root = tree::open(parent, error);
    if (error != 0) throw refused{parent + ": " + why(error)};
    destination to;
    to.root = &root;
    to.replaces = options.replaces;
    to.keeps_owners = options.keeps_owners;
    to.keeps = options.keeps;
    to.verifies = options.verifies;
    to.continues = options.continues;
    to.lists = options.lists;
    to.listed = options.listed;
    to.deletes = options.deletes;
    to.listed_deletion = options.listed_deletion;
    to.excluded = options.excluded;
    if (!is_directory) to.name = name;
    to.needs_entries = true;
    hello wish;
    wish.way = direction::to_client;
    wish.verifies = options.verifies;
    wish.wants_total = options.wants_total;
    wish.continues = options.continues;
    wish.keeps_attributes = options.keeps.attributes;
    wish.keeps_acls = options.keeps.acl;
    wish.lists = options.lists;
    wish.bytes_per_second = options.bytes_per_second;
    wish.name = trimmed(source);
    if (!wish.name.empty()) to.expected = wish.name.substr(wish.name.rfind('/') + 1);
    else if (is_directory)
        throw refused{
            target + " exists: name a target that does not, for all of the server's directory"};
    co_await greet(from, wish, options.excluded);
    receiver r{from, files, std::move(to), std::move(report), counters};
    co_await r.run();
    co_await from.finish();
}

namespace {

asio::awaitable<void> take(
    link& client,
    disk& files,
    served_directory const& directory,
    hello const& h,
    exclusions excluded,
    int error,
    failure_report report,
    result& counters
) {
    destination to;
    bool const is_allowed = (!h.keeps_owners || directory.allows_owners) &&
                            (!h.deletes || directory.allows_deletes) &&
                            (!h.keeps_attributes || directory.allows.attributes) &&
                            (!h.keeps_acls || directory.allows.acl);
    if (error == 0 && !is_allowed) error = EPERM;
    if (error == 0)
        to = co_await files.run([&] {
            return destination_of(directory.root, h.name, h.where, h.continues, h.lists, error);
        });
    to.replaces = h.replaces;
    to.keeps_owners = h.keeps_owners;
    to.keeps = {h.keeps_attributes, h.keeps_acls};
    to.verifies = h.verifies;
    to.continues = h.continues;
    to.lists = h.lists;
    to.deletes = to.reports_deletions = h.deletes;
    to.excluded = std::move(excluded);
    client.send(welcome{version, error});
    if (error != 0) co_return report(h.name, why(error));
    counters.asked = h;
    receiver r{client, files, std::move(to), std::move(report), counters};
    co_await r.run();
}

asio::awaitable<void> give(
    link& client,
    disk& files,
    served_directory const& directory,
    hello const& h,
    exclusions excluded,
    int error,
    failure_report report,
    result& counters
) {
    if (error == 0)
        co_await files.run([&] { return directory.root.status_of(h.name, error).st_mode; });
    client.send(welcome{version, error});
    if (error != 0) co_return report(h.name, why(error));
    counters.asked = h;
    std::size_t const slash = h.name.rfind('/');
    std::string name = slash == std::string::npos ? h.name : h.name.substr(slash + 1);
    if (name.empty()) name = directory.name;
    auto how = sender_options::of(h, std::move(excluded));
    sender s{client, files, std::move(how), std::move(report), counters};
    std::vector<source> one;
    one.push_back({&directory.root, h.name, std::move(name)});
    co_await s.run(std::move(one));
}

}  // namespace

asio::awaitable<void> serve(
    link& client,
    disk& files,
    served_directory const& directory,
    failure_report report,
    result& counters
) {
    client.require_message();
    copy_message const m = co_await client.receive();
    auto const* const h = std::get_if<hello>(&m);
    if (h == nullptr) refuse(client);
    int error = h->speaks == version ? 0 : EPROTONOSUPPORT;
    exclusions excluded;
    for (std::uint16_t i = 0; error == 0 && i < h->exclusions; ++i) {
        client.require_message();
        copy_message const next = co_await client.receive();
        auto const* const e = std::get_if<exclude>(&next);
        if (e == nullptr || !excluded.add(e->pattern)) refuse(client);
    }
    if (error == 0 && !h->name.empty() && (!is_inside(h->name) || is_reserved(h->name)))
        error = EACCES;
    auto const act = h->way == direction::to_server ? &take : &give;
    co_await act(
        client, files, directory, *h, std::move(excluded), error, std::move(report), counters
    );
    co_await client.finish();
}

}  // namespace copy
