#include "settings.hpp"

#include <charconv>
#include <cstdlib>
#include <stdexcept>

namespace rcverbs::fabric::detail {

namespace {

constexpr char const* network_name = "RCVERBS_FABRIC_NETWORK";
constexpr char const* directory_name = "RCVERBS_FABRIC_DIRECTORY";
constexpr char const* node_name = "RCVERBS_FABRIC_NODE";
constexpr char const* devices_name = "RCVERBS_FABRIC_DEVICES";
constexpr char const* seed_name = "RCVERBS_FABRIC_SEED";
constexpr char const* loss_name = "RCVERBS_FABRIC_LOSS";
constexpr char const* delay_name = "RCVERBS_FABRIC_DELAY_US";
constexpr char const* capture_name = "RCVERBS_FABRIC_PCAP";
constexpr char const* stepped_name = "RCVERBS_FABRIC_STEPPED";
constexpr char const* kill_name = "RCVERBS_FABRIC_KILL";

std::optional<std::string> text(char const* name) {
    char const* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
}

template <class Number>
Number parse(std::string const& what, std::string const& value, Number min, Number max) {
    Number n{};
    auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (error != std::errc{} || end != value.data() + value.size() || !(n >= min && n <= max))
        throw std::runtime_error{
            what + "=" + value + " is not a number from " + std::to_string(min) + " to " +
            std::to_string(max)};
    return n;
}

template <class Number>
std::optional<Number> number(char const* name, Number min, Number max) {
    std::optional<std::string> const value = text(name);
    if (!value) return std::nullopt;
    return parse(name, *value, min, max);
}

void store(char const* name, std::string const& value) { ::setenv(name, value.c_str(), 1); }

}  // namespace

settings settings::of_environment() {
    settings s;
    s.network = text(network_name).value_or(s.network);
    s.directory_path = text(directory_name).value_or("");
    s.node = number<std::uint32_t>(node_name, 1, 254).value_or(0);
    s.devices = number<std::uint32_t>(devices_name, 1, 16).value_or(s.devices);
    s.seed = number<std::uint64_t>(seed_name, 0, ~std::uint64_t{0});
    s.loss = number(loss_name, 0.0, 1.0).value_or(0);
    s.delay_us = number<std::uint32_t>(delay_name, 0, 60'000'000).value_or(0);
    s.is_stepped = number(stepped_name, 0U, 1U).value_or(0) == 1;
    s.kill = text(kill_name).value_or("");
    s.capture = text(capture_name).value_or("");
    return s;
}

void settings::to_environment() const {
    store(network_name, network);
    store(directory_name, directory_path);
    store(node_name, std::to_string(node));
    store(devices_name, std::to_string(devices));
    if (seed) store(seed_name, std::to_string(*seed));
    store(loss_name, std::to_string(loss));
    store(delay_name, std::to_string(delay_us));
    store(kill_name, kill);
    store(stepped_name, is_stepped ? "1" : "0");
    store(capture_name, capture);
}

kill_order parse_kill(std::string const& text) {
    std::size_t const at = text.find('@');
    if (at == std::string::npos) throw std::runtime_error{text + " is not NODE@PACKET"};
    return {
        parse<std::uint32_t>("NODE", text.substr(0, at), 1, 254),
        parse<std::uint64_t>("PACKET", text.substr(at + 1), 1, ~std::uint64_t{0})};
}

}  // namespace rcverbs::fabric::detail
