#include "error/symbols.hpp"

#include <cstring>
#include <span>

#include "error/descriptions.hpp"
#include "error/symbol_tables.hpp"

namespace rcverbs::detail {

namespace {

// Source: InfiniBand specification, table of rejection reasons.
constexpr named reasons[] = {
    {1, "no queue pair available"},
    {3, "no resources available"},
    {4, "timeout"},
    {5, "unsupported request"},
    {6, "invalid communication id"},
    {8, "invalid service id"},
    {9, "invalid service type"},
    {10, "stale connection"},
    {12, "invalid GID"},
    {13, "invalid LID"},
    {14, "invalid service level"},
    {15, "invalid traffic class"},
    {16, "invalid hop limit"},
    {17, "invalid packet rate"},
    {24, "port and CM redirection"},
    {25, "port redirection"},
    {26, "invalid path MTU"},
    {27, "insufficient responder resources"},
    {28, "consumer defined"},
    {29, "invalid RNR retry count"},
    {33, "unsupported class version"},
    {34, "invalid flow label"},
    {35, "invalid alternate flow label"},
};

// A rejection has the code 1000 + reason, to keep it apart from event numbers.
constexpr int rejections = 1000;

char const* find(std::span<named const> in, int value) noexcept {
    for (named const& n : in) {
        if (n.value == value) return n.name;
    }
    return nullptr;
}

std::string or_empty(char const* name) { return name != nullptr ? name : ""; }

}  // namespace

std::string symbol_of(error_code const& ec) {
    int const value = ec.value();
    if (ec.category() == work_completion_category()) return or_empty(find(statuses, value));
    if (ec.category() == connection_manager_category()) {
        if (value < rejections) return or_empty(find(events, value));
        char const* const reason = find(reasons, value - rejections);
        return "RDMA_CM_EVENT_REJECTED, reason: " +
               (reason != nullptr ? reason : std::to_string(value - rejections));
    }
    if (ec.category() == boost::system::system_category())
        return or_empty(::strerrorname_np(value));
    auto const* const described = dynamic_cast<described_category const*>(&ec.category());
    return described != nullptr ? or_empty(described->describe(value).symbol) : "";
}

std::string describe_status(error_code const& ec, int status) {
    if (status == 0) return "";
    std::string const number = std::to_string(status);
    if (ec.category() == work_completion_category()) return "vendor error " + number;
    char const* const event =
        ec.category() == rcverbs_category() ? find(device_events, status) : nullptr;
    if (event != nullptr) return event + (" (" + number + ')');
    char const* const name = status < 0 ? ::strerrorname_np(-status) : nullptr;
    return "status " + number + (name != nullptr ? std::string{' '} + name : "");
}

}  // namespace rcverbs::detail
