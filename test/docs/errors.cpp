// Prints every error of the library for tables.py, one per line: enumeration, value, description,
// remedy, its conditions, its name in the C headers or in this library.
#include <iostream>
#include <string>
#include <utility>

#include "error/descriptions.hpp"
#include "error/symbols.hpp"

namespace {

using rcverbs::condition;

template <class Code>
void print(char const* enumeration, Code code) {
    rcverbs::detail::description const text = rcverbs::detail::describe(code);
    if (text.what == nullptr) return;
    rcverbs::error_code const ec = code;
    std::string conditions;
    for (auto const& [c, name] :
         {std::pair{condition::timed_out, "timed_out"},
          std::pair{condition::protocol_violation, "protocol_violation"},
          std::pair{condition::ended_by_peer, "ended_by_peer"},
          std::pair{condition::refused, "refused"},
          std::pair{condition::transient, "transient"},
          std::pair{condition::operation_only, "operation_only"}}) {
        if (ec == c) conditions += (conditions.empty() ? "" : ", ") + std::string{name};
    }
    std::cout << enumeration << '\t' << ec.value() << '\t' << text.what << '\t' << text.remedy
              << '\t' << conditions << '\t' << rcverbs::detail::symbol_of(ec) << '\n';
}

}  // namespace

int main() {
    for (int value = 1; value < 2000; ++value) {
        print("errc", static_cast<rcverbs::errc>(value));
        print("wc_errc", static_cast<rcverbs::wc_errc>(value));
        print("cm_errc", static_cast<rcverbs::cm_errc>(value));
        print("session_errc", static_cast<rcverbs::session_errc>(value));
        print("channel_errc", static_cast<rcverbs::channel_errc>(value));
    }
}
