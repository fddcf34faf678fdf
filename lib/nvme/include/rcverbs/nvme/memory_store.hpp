// memory_store.hpp — a store in memory. Its contents end with it.
//
//     namespace_options disk;
//     disk.store = std::make_shared<memory_store>(std::uint64_t{1} << 30);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <rcverbs/export.hpp>
#include <rcverbs/nvme/block_store.hpp>

namespace rcverbs::nvme {

/// A store in memory of its own, zero at first.
class RCVERBS_EXPORT memory_store final : public block_store {
public:
    /// Maps the memory.
    ///
    /// @param size_bytes   The capacity: a multiple of block_bytes, above 0.
    /// @param block_bytes  512, 1024, 2048 or 4096.
    /// @throws boost::system::system_error: errc::invalid_option, ENOMEM.
    explicit memory_store(std::uint64_t size_bytes, std::uint32_t block_bytes = 4096);
    memory_store(memory_store const&) = delete;
    memory_store& operator=(memory_store const&) = delete;
    ~memory_store() override;

    store_geometry geometry() const override;
    /// Random: the contents end with the store.
    std::optional<std::array<std::byte, 16>> uuid() const override { return uuid_; }
    void start(store_request& request) override;
    std::span<std::byte> memory() noexcept override { return memory_; }

private:
    std::span<std::byte> memory_;
    std::uint32_t const block_bytes_;
    std::array<std::byte, 16> const uuid_;
};

}  // namespace rcverbs::nvme
