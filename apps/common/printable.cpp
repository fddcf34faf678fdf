#include "common/printable.hpp"

#include <algorithm>

namespace demo {

namespace {

void append_escaped(std::string& out, char c) {
    constexpr char digits[] = "0123456789abcdef";
    auto const byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Bytes of the first character, in UTF-8; 0 if it is none, or one that controls a terminal.
// Source: The Unicode Standard, table 3-7; U+0080 to U+009F are controls.
std::size_t character_bytes(std::string_view text) {
    auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    unsigned char const first = byte(0);
    if (first < 0x80) return is_control(text[0]) ? 0 : 1;
    std::size_t const size = first < 0xc2   ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
    if (size == 0 || text.size() < size) return 0;
    unsigned char const least = first == 0xc2 || first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char const most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(1) < least || byte(1) > most) return 0;
    for (std::size_t i = 2; i < size; ++i) {
        if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
    }
    return size;
}

}  // namespace

std::string printable(std::string_view text, std::size_t bytes_max) {
    std::string out;
    for (char const c : text.substr(0, bytes_max)) {
        bool const is_plain = !is_control(c) && static_cast<unsigned char>(c) < 0x80 && c != '\\';
        if (is_plain) out += c;
        else append_escaped(out, c);
    }
    if (text.size() > bytes_max)
        out += " (and " + std::to_string(text.size() - bytes_max) + " bytes more)";
    return out;
}

std::string one_line(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        std::size_t const size = character_bytes(text);
        if (size > 0) out += text.substr(0, size);
        else append_escaped(out, text.front());
        text.remove_prefix(std::max<std::size_t>(size, 1));
    }
    return out;
}

}  // namespace demo
