// exclusions.hpp — which names are not copied.
//
// Patterns come from peers, too: the time is at most that of one step for each byte of a path and of the patterns.
#pragma once

#include <bitset>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace copy {

/// `*` and `?` stand for bytes that are no slash, `**` for any, `[a-z]` and `[!a-z]` for one of these, or none of
/// them; a backslash takes the meaning away. A pattern with a slash at its end is for directories. One with another
/// slash, or with `**`, is compared with the end of a path, from a slash on, and if it begins with a slash, with the
/// whole path; others with the last component.
class exclusions {
public:
    static constexpr std::size_t patterns_max = 256;
    /// Of all patterns together.
    static constexpr std::size_t bytes_max = 8192;

    exclusions() noexcept = default;

    /// False if the pattern has no meaning, or there are too many.
    bool add(std::string_view pattern);
    bool is_empty() const noexcept { return all_.empty(); }
    std::vector<std::string> const& patterns() const noexcept { return texts_; }

    /// @param path  Of an entry, below the source.
    bool has(std::string_view path, bool is_directory) const;

private:
    enum class kind { one, many, many_with_slashes };
    struct token {
        kind what = kind::one;
        std::bitset<256> bytes;  // of one
    };
    struct pattern {
        std::vector<token> tokens;
        bool is_of_directories = false;
        bool is_of_path = false;  // else of the last component
        bool is_whole = false;
    };
    static bool read(std::string_view text, pattern& into);
    static bool read_set(std::string_view& rest, std::bitset<256>& into);
    static bool matches(pattern const& p, std::string_view text);

    std::vector<pattern> all_;
    std::vector<std::string> texts_;
    std::size_t bytes_ = 0;
};

}  // namespace copy
