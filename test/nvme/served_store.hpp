// served_store.hpp — a store on a server, with a thread that runs it.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nvme/store_request.hpp"
#include "support/bytes.hpp"
#include "support/catch.hpp"

namespace test {

/// The context on a thread of its own, and a store.
template <class Store, class Options>
class served_store {
public:
    explicit served_store(std::string const& place, Options o = {}) {
        o.on_event = [this](std::string const& text) {
            std::lock_guard const lock{mutex_};
            events_.push_back(text);
        };
        o.on_resized = [this] { ++resized_; };
        o.on_reached = [this] { ++reached_; };
        store_ = std::make_unique<Store>(io_.get_executor(), place, o);
        thread_ = std::thread{[this] { io_.run(); }};
    }
    served_store(served_store const&) = delete;
    served_store& operator=(served_store const&) = delete;
    ~served_store() {
        store_.reset();
        work_.reset();
        thread_.join();
    }
    Store& store() { return *store_; }
    ending run(store_request&& r) {
        store_->start(r);
        return r.wait();
    }
    std::vector<std::byte> read(std::size_t first, std::size_t blocks) {
        std::vector<std::byte> bytes(blocks * store_request::block);
        ending const e = run({nvme::store_operation::read, first, blocks, bytes});
        CHECK(e.failure.message() == rcverbs::error_code{}.message());
        return bytes;
    }
    bool has_event(std::string const& text) {
        std::lock_guard const lock{mutex_};
        return std::ranges::any_of(events_, [&](auto const& e) { return e.find(text) != e.npos; });
    }
    std::size_t events() {
        std::lock_guard const lock{mutex_};
        return events_.size();
    }
    int resized() const { return resized_; }
    int reached() const { return reached_; }

private:
    boost::asio::io_context io_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
        io_.get_executor()};
    std::mutex mutex_;
    std::vector<std::string> events_;
    std::atomic<int> resized_{0};
    std::atomic<int> reached_{0};
    std::unique_ptr<Store> store_;
    std::thread thread_;
};

inline std::vector<std::byte> pattern(std::size_t blocks, unsigned seed) {
    std::vector<std::byte> bytes(blocks * store_request::block);
    fill(bytes, seed);
    return bytes;
}

inline bool is_zero(std::vector<std::byte> const& bytes) {
    return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

/// Of a store with zeros in its first 4 MiB.
template <class Served>
void check_every_operation(Served& s) {
    // Three MiB and a block: more than a piece of anything.
    auto data = pattern(769, 1);
    CHECK(!s.run({store_request::op::write, 5, 769, data}).failure);
    CHECK(s.read(5, 769) == data);
    CHECK(is_zero(s.read(0, 5)));
    CHECK(!s.run({store_request::op::flush, 0, 0}).failure);

    ending const same = s.run({store_request::op::compare, 5, 769, data});
    CHECK(same.is_equal);
    CHECK(!same.failure);
    data.back() ^= std::byte{1};
    CHECK(!s.run({store_request::op::compare, 5, 769, data}).is_equal);

    CHECK(!s.run(std::move(store_request{
                     store_request::op::write, 800, 1, std::span{data}.first(store_request::block)}
                               .durable()))
               .failure);
    CHECK(!s.run({store_request::op::discard, 6, 600}).failure);
    CHECK(is_zero(s.read(6, 600)));
    CHECK(
        !s.run(std::move(store_request{store_request::op::write_zeroes, 700, 74}.durable())).failure
    );
    CHECK(is_zero(s.read(700, 74)));
    CHECK(std::ranges::equal(s.read(5, 1), std::span{data}.first(store_request::block)));
    CHECK(std::ranges::equal(s.read(800, 1), std::span{data}.first(store_request::block)));
}

}  // namespace test
