// store_request.hpp — a request for a store, in a test without a target.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <span>
#include <utility>

#include <rcverbs/nvme/block_store.hpp>

namespace test {

namespace nvme = rcverbs::nvme;

struct ending {
    rcverbs::error_code failure;
    bool is_equal = true;
    bool is_path_error = false;
};

/// A request whose end can be waited for.
class store_request final : public nvme::store_request {
public:
    using op = nvme::store_operation;
    static constexpr std::size_t block = 4096;

    store_request(op what, std::size_t first, std::size_t blocks, std::span<std::byte> data = {}) {
        operation_ = what;
        offset_bytes_ = first * block;
        size_bytes_ = blocks * block;
        data_ = data;
    }
    store_request& durable() {
        is_durable_ = true;
        return *this;
    }
    store_request& abandoned() {
        static std::atomic<bool> const is_abandoned{true};
        is_abandoned_ = &is_abandoned;
        return *this;
    }
    store_request& of_host(std::uint64_t number) {
        host_number_ = number;
        return *this;
    }
    /// The thread that ends it waits until the function returns.
    store_request& then(std::function<void()> what) {
        at_end_ = std::move(what);
        return *this;
    }
    ending wait() { return ended_.get(); }
    bool is_over_within(std::chrono::seconds time) const {
        return ended_.wait_for(time) == std::future_status::ready;
    }
    bool is_over() const {
        return ended_.wait_for(std::chrono::seconds{0}) == std::future_status::ready;
    }

private:
    void on_end(outcome how) noexcept override {
        if (at_end_) at_end_();
        end_.set_value({how.failure, how.how != end::differs, how.how == end::path_error});
    }

    std::function<void()> at_end_;
    std::promise<ending> end_;
    std::future<ending> ended_ = end_.get_future();
};

}  // namespace test
