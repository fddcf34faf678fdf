// folder.hpp — a directory that is removed with what is in it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/catch.hpp"

namespace test {

class folder {
public:
    folder() {
        std::string name = (std::filesystem::temp_directory_path() / "rdma-copy.XXXXXX").string();
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path_ = name;
    }
    folder(folder const&) = delete;
    folder& operator=(folder const&) = delete;
    ~folder() {
        std::error_code ec;
        std::filesystem::remove_all(path_, ec);
    }
    std::filesystem::path operator/(std::string const& name) const { return path_ / name; }
    std::string string() const { return path_.string(); }

private:
    std::filesystem::path path_;
};

}  // namespace test
