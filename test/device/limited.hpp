// limited.hpp — programs with few descriptors, little lockable memory or no threads.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "device/programs.hpp"

namespace test {

/// Copies of programs that an unprivileged user can execute, wherever the build is.
class public_copies {
public:
    ~public_copies() {
        std::error_code ec;
        if (!folder_.empty()) std::filesystem::remove_all(folder_, ec);
    }
    std::string of(std::string const& path) {
        namespace fs = std::filesystem;
        if (folder_.empty()) {
            std::string name = (fs::temp_directory_path() / "rcverbs.XXXXXX").string();
            REQUIRE(mkdtemp(name.data()) != nullptr);
            folder_ = name;
            fs::permissions(folder_, fs::perms{0755});
        }
        fs::path const copy = folder_ / fs::path{path}.filename();
        fs::copy_file(path, copy, fs::copy_options::skip_existing);
        return copy.string();
    }

private:
    std::filesystem::path folder_;
};

/// Runs a command under a ulimit; optionally as an unprivileged user, since root is not bound by
/// some limits.
inline child_process limited(
    std::string const& limit,
    std::string const& name,
    std::vector<std::string> arguments,
    bool as_nobody = false
) {
    std::string line = "ulimit " + limit + " && exec \"$0\" \"$@\"";
    std::vector<std::string> all;
    if (as_nobody)
        all = {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"};
    for (std::string const& word : {std::string{"bash"}, std::string{"-c"}, line})
        all.push_back(word);
    static public_copies copies;
    all.push_back(as_nobody ? copies.of(program(name)) : program(name));
    for (std::string& word : arguments) all.push_back(std::move(word));
    return child_process{std::move(all)};
}

}  // namespace test
