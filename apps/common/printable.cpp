#include "common/printable.hpp"

namespace demo {

namespace {

void append_escaped(std::string& out, char c) {
    constexpr char digits[] = "0123456789abcdef";
    auto const byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

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
    for (char const c : text) {
        if (is_control(c)) append_escaped(out, c);
        else out += c;
    }
    return out;
}

}  // namespace demo
