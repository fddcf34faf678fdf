// descriptor_set.hpp — an io_context's descriptors, gathered for an event loop other than Asio's.
//
// A service of the io_context. Before open(), add() has no effect. A descriptor leaves the set when
// it is closed.
#pragma once

#include <boost/asio/execution_context.hpp>

#include <chrono>

#include <rcverbs/error.hpp>

namespace rcverbs::progress {

class descriptor_set final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = descriptor_set;

    explicit descriptor_set(boost::asio::execution_context& context)
        : boost::asio::execution_context::service{context} {}
    ~descriptor_set() override;

    error_code open(std::chrono::milliseconds tick) noexcept;
    /// Readable when any descriptor of the set is, and once per tick.
    int descriptor() const noexcept { return all_; }
    /// No error if it is in the set already.
    error_code add(int descriptor) noexcept;
    /// The set is no longer readable because of this descriptor.
    void remove(int descriptor) noexcept;
    /// Consumes the ticks that have expired.
    void take_tick() noexcept;
    /// Makes the next tick expire at once.
    void hurry() noexcept;

private:
    void shutdown() noexcept override {}
    error_code set_timer(std::chrono::milliseconds first) noexcept;

    std::chrono::milliseconds tick_{0};
    int all_ = -1;
    int timer_ = -1;
};

}  // namespace rcverbs::progress
