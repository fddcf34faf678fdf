// key_set.hpp — the keys of identities, and the file that they come from.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rcverbs/authentication.hpp>

#include "authentication/secret.hpp"

namespace rcverbs::detail {

using key_map = std::map<std::string, std::vector<secret>, std::less<>>;

/// The keys of a file's text; after an error `ec` and `problem` say what is wrong, with the line.
key_map parse_keys(std::string_view text, error_code& ec, std::string& problem);

class key_set {
public:
    key_set() = default;
    key_set(std::string path, key_map keys) : path_{std::move(path)}, keys_{std::move(keys)} {}

    std::vector<secret> keys_of(std::string_view identity) const;
    std::vector<std::string> identities() const;
    error_code add(std::string_view identity, std::span<std::byte const> key);
    void reload(error_code& ec, std::string& problem);

private:
    std::string const path_;  // empty if there is no file
    mutable std::mutex mutex_;
    key_map keys_;
};

}  // namespace rcverbs::detail
