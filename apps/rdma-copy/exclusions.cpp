#include "rdma-copy/exclusions.hpp"

#include <algorithm>

namespace copy {

namespace {

std::size_t number_of(char c) { return static_cast<unsigned char>(c); }

}  // namespace

bool exclusions::add(std::string_view text) {
    pattern p;
    bool const is_good = all_.size() < patterns_max && text.size() <= bytes_max - bytes_ &&
                         text.find('\0') == std::string_view::npos && read(text, p);
    if (!is_good) return false;
    bytes_ += text.size();
    all_.push_back(std::move(p));
    texts_.emplace_back(text);
    return true;
}

bool exclusions::read(std::string_view text, pattern& into) {
    if (text.ends_with('/')) {
        into.is_of_directories = true;
        text.remove_suffix(1);
    }
    into.is_whole = text.starts_with('/');
    if (into.is_whole) text.remove_prefix(1);
    into.is_of_path = into.is_whole || text.find('/') != std::string_view::npos;
    if (text.empty()) return false;
    while (!text.empty()) {
        char const c = text.front();
        text.remove_prefix(1);
        token t;
        if (c == '*') {
            t.what = text.starts_with('*') ? kind::many_with_slashes : kind::many;
            while (text.starts_with('*')) text.remove_prefix(1);
            if (t.what == kind::many_with_slashes) into.is_of_path = true;
        } else if (c == '?') {
            t.bytes.set();
            t.bytes.reset('/');
        } else if (c == '[') {
            if (!read_set(text, t.bytes)) return false;
        } else if (c == '\\') {
            if (text.empty()) return false;
            t.bytes.set(number_of(text.front()));
            text.remove_prefix(1);
        } else {
            t.bytes.set(number_of(c));
        }
        into.tokens.push_back(t);
    }
    return true;
}

// What follows the bracket, with the one that ends it.
bool exclusions::read_set(std::string_view& rest, std::bitset<256>& into) {
    bool const is_negative = rest.starts_with('!') || rest.starts_with('^');
    if (is_negative) rest.remove_prefix(1);
    for (bool is_first = true;; is_first = false) {
        if (rest.empty()) return false;
        char const c = rest.front();
        rest.remove_prefix(1);
        if (c == ']' && !is_first) break;
        if (rest.size() >= 2 && rest[0] == '-' && rest[1] != ']') {
            for (std::size_t i = number_of(c); i <= number_of(rest[1]); ++i) into.set(i);
            rest.remove_prefix(2);
        } else {
            into.set(number_of(c));
        }
    }
    if (is_negative) into.flip();
    into.reset('/');
    return true;
}

// All places of the pattern at which the text may be are followed at once.
bool exclusions::matches(pattern const& p, std::string_view text) {
    std::size_t const end = p.tokens.size();
    std::vector<char> now(end + 1, 0);
    std::vector<char> next(end + 1, 0);
    auto const pass_stars = [&](std::vector<char>& at) {
        for (std::size_t i = 0; i < end; ++i)
            if (at[i] != 0 && p.tokens[i].what != kind::one) at[i + 1] = 1;
    };
    now[0] = 1;
    pass_stars(now);
    for (char const c : text) {
        std::ranges::fill(next, char{0});
        for (std::size_t i = 0; i < end; ++i) {
            if (now[i] == 0) continue;
            token const& t = p.tokens[i];
            if (t.what == kind::one && t.bytes[number_of(c)]) next[i + 1] = 1;
            if (t.what == kind::many_with_slashes || (t.what == kind::many && c != '/'))
                next[i] = 1;
        }
        if (c == '/' && !p.is_whole) next[0] = 1;
        pass_stars(next);
        std::swap(now, next);
    }
    return now[end] != 0;
}

bool exclusions::has(std::string_view path, bool is_directory) const {
    std::string_view const name = path.substr(path.rfind('/') + 1);
    return std::ranges::any_of(all_, [&](pattern const& p) {
        return (is_directory || !p.is_of_directories) && matches(p, p.is_of_path ? path : name);
    });
}

}  // namespace copy
