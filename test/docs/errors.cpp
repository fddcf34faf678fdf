// Prints every error of the library for tables.py, one per line: category, value, description,
// remedy, whether it is fatal and transient, and its name in the C headers.
#include <iostream>

#include "error/descriptions.hpp"
#include "error/symbols.hpp"

namespace {

template <class Code>
void print(char const* category, Code code) {
    rcverbs::detail::description const text = rcverbs::detail::describe(code);
    if (text.what == nullptr) return;
    rcverbs::error_code const ec = code;
    std::cout << category << '\t' << ec.value() << '\t' << text.what << '\t' << text.remedy << '\t'
              << rcverbs::is_fatal(ec) << '\t' << rcverbs::is_transient(ec) << '\t'
              << rcverbs::detail::symbol_of(ec) << '\n';
}

}  // namespace

int main() {
    for (int value = 1; value < 2000; ++value) {
        print("errc", static_cast<rcverbs::errc>(value));
        print("wc_errc", static_cast<rcverbs::wc_errc>(value));
        print("cm_errc", static_cast<rcverbs::cm_errc>(value));
    }
}
