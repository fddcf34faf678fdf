// own_store.cpp — an NVMe target whose blocks a program makes itself.
//
// Usage: own_store ADDRESS
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include <rcverbs/nvme/target.hpp>

namespace asio = boost::asio;
namespace nvme = rcverbs::nvme;

// A disk of 1 TiB that needs memory only for blocks that are not zero. With several io_pollers it would need
// a lock.
class sparse_store final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override {
        return {.size_bytes = std::uint64_t{1} << 40, .block_bytes = block_bytes};
    }

    void start(nvme::store_request& r) override {
        std::uint64_t const first = r.offset_bytes() / block_bytes;
        std::uint64_t const count = r.size_bytes() / block_bytes;
        bool is_equal = true;
        switch (r.operation()) {
        case nvme::store_operation::flush: break;
        case nvme::store_operation::write_zeroes:
        case nvme::store_operation::discard:
            blocks_.erase(blocks_.lower_bound(first), blocks_.lower_bound(first + count));
            break;
        default:
            for (std::uint64_t i = 0; i < count; ++i)
                is_equal &= transfer(r, first + i, r.data().subspan(i * block_bytes, block_bytes));
        }
        if (is_equal) r.complete({});
        else r.complete_mismatch();
    }

private:
    static constexpr std::uint32_t block_bytes = 4096;

    // One block. False if a comparison found a difference.
    bool transfer(nvme::store_request const& r, std::uint64_t at, std::span<std::byte> data) {
        auto const found = blocks_.find(at);
        std::vector<std::byte> const& there = found == blocks_.end() ? zeros_ : found->second;
        if (r.operation() == nvme::store_operation::read) std::ranges::copy(there, data.begin());
        if (r.operation() == nvme::store_operation::write)
            blocks_[at].assign(data.begin(), data.end());
        return r.operation() != nvme::store_operation::compare || std::ranges::equal(there, data);
    }

    std::vector<std::byte> const zeros_ = std::vector<std::byte>(block_bytes);
    std::map<std::uint64_t, std::vector<std::byte>> blocks_;
};

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    asio::io_context io;
    nvme::namespace_options disk;
    disk.store = std::make_shared<sparse_store>();
    nvme::subsystem_options subsystem;
    subsystem.nqn = "nqn.2026-01.org.example:sparse";
    subsystem.namespaces = {disk};
    nvme::target target{io, {argv[1], 4420}, {subsystem}};
    std::cout << "serving at port " << target.local_endpoint().port() << std::endl;
    asio::signal_set signals{io, SIGINT, SIGTERM};
    signals.async_wait([&](boost::system::error_code const&, int) { target.close(); });
    io.run();
}
