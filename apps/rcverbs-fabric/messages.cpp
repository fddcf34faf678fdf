#include "messages.hpp"

#include <charconv>

#include "directory.hpp"

namespace rcverbs::fabric {

namespace {

void put(std::vector<std::byte>& to, std::uint32_t number) {
    for (int i = 0; i < 4; ++i) to.push_back(static_cast<std::byte>(number >> (8 * i)));
}

// Takes a number and what follows it off the text; none if it is above `max`.
template <class Number>
std::optional<Number> take(std::string_view& text, Number max, std::string_view behind = {}) {
    Number n = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc{} || n == 0 || n > max) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.starts_with(behind)) return std::nullopt;
    text.remove_prefix(behind.size());
    return n;
}

}  // namespace

std::string network_state::encode() const {
    std::string text;
    for (std::uint32_t const n : nodes) text += std::to_string(n) + '\n';
    for (auto const& [node, slot] : places)
        text += std::to_string(node) + '.' + std::to_string(slot) + '\n';
    for (port const& p : ports)
        text += std::to_string(p.node) + ':' + std::to_string(p.number) + ' ' +
                std::to_string(p.slot) + '\n';
    return text;
}

std::optional<network_state> network_state::decode(std::string_view text) {
    network_state s;
    while (!text.empty()) {
        std::size_t const end = text.find('\n');
        if (end == std::string_view::npos) return std::nullopt;
        std::string_view line = text.substr(0, end);
        text.remove_prefix(end + 1);
        auto const node = take(line, detail::nodes_max);
        if (!node) return std::nullopt;
        if (line.empty()) {
            s.nodes.insert(*node);
            continue;
        }
        bool const is_port = line.front() == ':';
        if (!s.nodes.contains(*node) || (!is_port && line.front() != '.')) return std::nullopt;
        line.remove_prefix(1);
        std::uint16_t number = 0;
        if (is_port) {
            auto const found = take<std::uint16_t>(line, UINT16_MAX, " ");
            if (!found) return std::nullopt;
            number = *found;
        }
        auto const slot = take(line, detail::slots_max);
        if (!slot || !line.empty()) return std::nullopt;
        if (is_port) s.ports.insert({*node, number, *slot});
        else s.places.insert({*node, *slot});
    }
    return s;
}

std::vector<std::byte> encode(
    message_type what,
    std::initializer_list<std::uint32_t> numbers,
    std::span<std::byte const> bytes
) {
    std::vector<std::byte> m;
    m.reserve(5 + 4 * numbers.size() + bytes.size());
    put(m, static_cast<std::uint32_t>(1 + 4 * numbers.size() + bytes.size()));
    m.push_back(static_cast<std::byte>(what));
    for (std::uint32_t const n : numbers) put(m, n);
    m.insert(m.end(), bytes.begin(), bytes.end());
    return m;
}

std::optional<std::uint32_t> take_number(std::span<std::byte const>& content) noexcept {
    if (content.size() < 4) return std::nullopt;
    std::uint32_t n = 0;
    for (std::size_t i = 4; i-- > 0;) n = n << 8 | std::to_integer<std::uint32_t>(content[i]);
    content = content.subspan(4);
    return n;
}

}  // namespace rcverbs::fabric
