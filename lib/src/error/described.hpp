// described.hpp — an exception whose what() says what to do about it.
#pragma once

#include <string>
#include <utility>

#include <rcverbs/error.hpp>

namespace rcverbs::detail {

class described final : public boost::system::system_error {
public:
    described(error_code const& ec, std::string text) : boost::system::system_error{ec}, text_{std::move(text)} {}
    char const* what() const noexcept override { return text_.c_str(); }

private:
    std::string text_;
};

/// What to do about an errno from registering memory or making a queue: names the limit on locked memory and what of it is in
/// use. Empty for other errors.
std::string memory_remedy(error_code const& ec);

/// Throws what a failure to register `size_bytes` comes to.
[[noreturn]] void throw_registration_failure(error_code const& ec, std::size_t size_bytes);

}  // namespace rcverbs::detail
