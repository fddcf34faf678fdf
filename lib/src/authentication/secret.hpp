// secret.hpp — bytes that are overwritten when they are no longer used.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace rcverbs::detail {

/// As OpenSSL names bytes.
inline unsigned char* octets(std::span<std::byte> of) noexcept {
    return reinterpret_cast<unsigned char*>(of.data());
}

class secret {
public:
    secret() = default;
    explicit secret(std::span<std::byte const> bytes) : bytes_(bytes.begin(), bytes.end()) {}
    explicit secret(std::size_t size) : bytes_(size) {}
    secret(secret const&) = default;
    secret(secret&&) noexcept = default;
    secret& operator=(secret other) noexcept {
        bytes_.swap(other.bytes_);
        return *this;
    }
    ~secret();

    std::span<std::byte const> bytes() const noexcept { return bytes_; }
    std::span<std::byte> bytes() noexcept { return bytes_; }
    bool is_empty() const noexcept { return bytes_.empty(); }

private:
    std::vector<std::byte> bytes_;
};

}  // namespace rcverbs::detail
