// detailed_error.hpp — an exception whose what() includes a remedy.
#pragma once

#include <string>
#include <utility>

#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

class protection_domain;

}  // namespace rcverbs

namespace rcverbs::detail {

class detailed_error final : public boost::system::system_error {
public:
    detailed_error(error_code const& ec, std::string text)
        : boost::system::system_error{ec},
          text_{std::move(text)} {}
    char const* what() const noexcept override { return text_.c_str(); }

private:
    std::string text_;
};

/// Throws what a function has reported.
inline void throw_if(error_code const& ec, char const* function) {
    if (ec) throw boost::system::system_error{ec, function};
}

/// The remedy for ENOMEM from registering memory or creating a queue: names the limit on locked
/// memory and the amount in use. Empty for other errors.
std::string memory_remedy(error_code const& ec);

/// Throws a detailed_error for a failure to register `size_bytes` in a domain.
[[noreturn]] void throw_registration_failure(
    protection_domain const& domain, error_code const& ec, std::size_t size_bytes
);

}  // namespace rcverbs::detail
