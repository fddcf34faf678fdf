// store_delivery.hpp — results of requests, and news of a store, which are delivered without the store's lock: what is
// called may start requests, and end the last one before the store goes.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/nvme/block_store.hpp>

namespace rcverbs::nvme::detail {

/// How a request of a store on a server ended.
enum class store_outcome : std::uint8_t { done, differs, path_error };

/// Used with the lock, and for one owner, which outlives deliver().
class store_delivery {
public:
    void finish(store_request& r, store_outcome how, error_code const& failure = {}) {
        results_.push_back({&r, how, failure});
    }
    /// @param news  Nothing is told if it is empty.
    void tell(std::function<void()> news) {
        if (news) news_.push_back(std::move(news));
    }
    /// Tells a text.
    void say(std::function<void(std::string const&)> const& to, std::string text) {
        if (to) news_.push_back([to, t = std::move(text)] { to(t); });
    }

    /// Takes the lock, and has it only in between.
    void deliver(std::mutex& mutex) {
        std::unique_lock lock{mutex};
        while (!results_.empty() || !news_.empty()) {
            auto const results = std::exchange(results_, {});
            auto const news = std::exchange(news_, {});
            lock.unlock();
            for (auto const& each : news) each();
            for (result const& each : results) {
                switch (each.how) {
                case store_outcome::done: each.request->complete(each.failure); break;
                case store_outcome::differs: each.request->complete_mismatch(); break;
                case store_outcome::path_error: each.request->complete_path_error(); break;
                }
            }
            lock.lock();
        }
    }

private:
    struct result {
        store_request* request = nullptr;
        store_outcome how = store_outcome::done;
        error_code failure;
    };

    std::vector<result> results_;
    std::vector<std::function<void()>> news_;
};

}  // namespace rcverbs::nvme::detail
